"""Pooling: the largest element or the mean of every window."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rushlight import kernels
from rushlight.autograd import new_tensor, record
from rushlight.errors import DtypeError, ShapeError
from rushlight.kernels import INT64, Array, K, Shape
from rushlight.ops.conv import Size, sizes
from rushlight.ops.convert import TensorLike, as_tensor, is_real
from rushlight.ops.index import gather
from rushlight.ops.pieces import cat
from rushlight.ops.reduce import mean
from rushlight.ops.shape import flatten, reshape, squeeze, unsqueeze

if TYPE_CHECKING:
    from rushlight.tensor import Tensor

Sizes = tuple[int, ...]


def max_pool2d(
    input: TensorLike,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window; NaN wins.  (N, C, H, W) -> (N, C, H', W').

    H' = floor((H + 2 * padding - dilation * (kernel_size - 1) - 1) / stride) + 1; ceil_mode rounds
    up instead, for windows that begin inside the input. N may be missing.
    input: float32/float64.  stride: kernel_size unless given.  padding: places that do not count,
    at most half a window.  return_indices: also the places, (N, C, H', W') int64 in H * W.
    Raises: ShapeError for a window that does not fit; DtypeError; ValueError.
    """
    windows = _windows("max_pool2d", 2, input, kernel_size, stride, padding, dilation, ceil_mode)
    return _max_pool(windows, return_indices)


def max_pool1d(
    input: TensorLike,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """`max_pool2d` over one axis.  (N, C, L) -> (N, C, L')."""
    windows = _windows("max_pool1d", 1, input, kernel_size, stride, padding, dilation, ceil_mode)
    return _max_pool(windows, return_indices)


def max_pool3d(
    input: TensorLike,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    dilation: Size = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """`max_pool2d` over three axes.  (N, C, D, H, W) -> (N, C, D', H', W')."""
    windows = _windows("max_pool3d", 3, input, kernel_size, stride, padding, dilation, ceil_mode)
    return _max_pool(windows, return_indices)


def avg_pool2d(
    input: TensorLike,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window.  (N, C, H, W) -> (N, C, H', W'); sizes as of `max_pool2d`.

    count_include_pad: zeros of the padding count as elements. divisor_override: the sum is divided
    by this instead of by the number of elements.
    Raises: as `max_pool2d`.
    """
    windows = _windows("avg_pool2d", 2, input, kernel_size, stride, padding, 1, ceil_mode)
    return _avg_pool(windows, count_include_pad, divisor_override)


def avg_pool1d(
    input: TensorLike,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """`avg_pool2d` over one axis.  (N, C, L) -> (N, C, L')."""
    windows = _windows("avg_pool1d", 1, input, kernel_size, stride, padding, 1, ceil_mode)
    return _avg_pool(windows, count_include_pad)


def avg_pool3d(
    input: TensorLike,
    kernel_size: Size,
    stride: Size | None = None,
    padding: Size = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """`avg_pool2d` over three axes.  (N, C, D, H, W) -> (N, C, D', H', W')."""
    windows = _windows("avg_pool3d", 3, input, kernel_size, stride, padding, 1, ceil_mode)
    return _avg_pool(windows, count_include_pad, divisor_override)


def adaptive_avg_pool1d(input: TensorLike, output_size: Any) -> Tensor:
    """`adaptive_avg_pool2d` over one axis.  (N, C, L) -> (N, C, L')."""
    return _adaptive("adaptive_avg_pool1d", 1, input, output_size, avg_pool1d)


def adaptive_avg_pool2d(input: TensorLike, output_size: Any) -> Tensor:
    """Means of as many windows as wanted.  (N, C, H, W) -> (N, C, *output_size).

    Window i of n covers floor(i * H / n) up to ceil((i + 1) * H / n).  output_size: an integer for
    all axes, or one each; None keeps an axis as it is.
    Raises: ShapeError, DtypeError, ValueError.
    """
    return _adaptive("adaptive_avg_pool2d", 2, input, output_size, avg_pool2d)


def adaptive_avg_pool3d(input: TensorLike, output_size: Any) -> Tensor:
    """`adaptive_avg_pool2d` over three axes.  (N, C, D, H, W) -> (N, C, D', H', W')."""
    return _adaptive("adaptive_avg_pool3d", 3, input, output_size, avg_pool3d)


def adaptive_max_pool1d(input: TensorLike, output_size: Any) -> Tensor:
    """As `adaptive_avg_pool1d`, of the largest elements."""
    return _adaptive("adaptive_max_pool1d", 1, input, output_size, max_pool1d)


def adaptive_max_pool2d(input: TensorLike, output_size: Any) -> Tensor:
    """As `adaptive_avg_pool2d`, of the largest elements."""
    return _adaptive("adaptive_max_pool2d", 2, input, output_size, max_pool2d)


def adaptive_max_pool3d(input: TensorLike, output_size: Any) -> Tensor:
    """As `adaptive_avg_pool3d`, of the largest elements."""
    return _adaptive("adaptive_max_pool3d", 3, input, output_size, max_pool3d)


# ---- the largest ----


def _max_pool(windows: _Windows, return_indices: bool) -> Any:
    x, geometry = windows.x, _array(windows.geometry)
    shape = (*x.array.shape[:2], *windows.outputs)
    out = kernels.empty(shape, x.array.dtype)
    index = kernels.empty(shape, INT64) if return_indices or x.needs_grad else None
    places = None if index is None else _five(index)
    kernels.call(K.max_pool, _five(out), places, _five(x.array), geometry)

    def vjp(g: Tensor) -> tuple[Tensor]:
        assert index is not None
        return (_max_pool_gradient(g, index, x.array.shape),)

    result = windows.finished(record("max_pool", out, (x,), vjp, attrs=windows.attributes()))
    if not return_indices:
        return result
    assert index is not None
    return result, new_tensor(index[0] if windows.single else index)


def _max_pool_gradient(g: Tensor, index: Array, shape: Shape) -> Tensor:
    out = kernels.empty(shape, g.array.dtype)
    kernels.call(K.max_pool_backward, _five(out), _five(g.array), _five(index))

    def vjp(h: Tensor) -> tuple[Tensor]:
        flat = new_tensor(index.reshape(*index.shape[:2], -1))
        return (reshape(gather(flatten(h, 2), 2, flat), index.shape),)

    return record("max_pool_backward", out, (g,), vjp)


# ---- the mean ----


def _avg_pool(windows: _Windows, include_pad: bool, override: int | None = None) -> Tensor:
    if override is not None and override == 0:
        raise ValueError("avg_pool: divisor_override must not be 0")
    x, geometry = windows.x, windows.geometry
    counts = x.array.shape[2:], windows.outputs, geometry, include_pad, override
    attrs = windows.attributes() | {"count_include_pad": include_pad}
    return windows.finished(_avg(x, _divisor(*counts, x.array.dtype), geometry, attrs))


def _avg(x: Tensor, divisor: Array, geometry: Geometry, attrs: dict[str, Any]) -> Tensor:
    out = kernels.empty((*x.array.shape[:2], *divisor.shape), x.array.dtype)
    kernels.call(K.avg_pool, _five(out), _five(x.array), divisor, _array(geometry))
    shape = x.array.shape
    return record(
        "avg_pool", out, (x,), lambda g: (_spread(g, divisor, geometry, shape, attrs),), attrs=attrs
    )


def _spread(
    g: Tensor, divisor: Array, geometry: Geometry, shape: Shape, attrs: dict[str, Any]
) -> Tensor:
    """The gradient of `_avg`, whose own is `_avg`."""
    out = kernels.empty(shape, g.array.dtype)
    kernels.call(K.avg_pool_backward, _five(out), _five(g.array), divisor, _array(geometry))
    return record("avg_pool_backward", out, (g,), lambda h: (_avg(h, divisor, geometry, attrs),))


@functools.lru_cache(maxsize=64)
def _divisor(
    inputs: Sizes,
    outputs: Sizes,
    geometry: Geometry,
    include_pad: bool,
    override: int | None,
    dtype: np.dtype[Any],
) -> Array:
    """How many elements each window has, (H', W')."""
    counts = np.ones((), dtype)
    for size, n, stride, padding, _, window in zip(inputs, outputs, *geometry, strict=True):
        start = np.arange(n) * stride - padding
        end = np.minimum(start + window, size + (padding if include_pad else 0))
        inside = end - (start if include_pad else np.maximum(start, 0))
        counts = counts[..., None] * inside.astype(dtype)
    return counts if override is None else np.full(outputs, override, dtype)


# ---- as many windows as wanted ----


def _adaptive(
    name: str, axes: int, x: TensorLike, output_size: Any, pool: Callable[..., Tensor]
) -> Tensor:
    x, single = images(name, axes, x)
    inputs = x.array.shape[2:]
    given = [*output_size] if isinstance(output_size, Sequence) else [output_size] * axes
    if len(given) != axes:
        raise ValueError(f"{name}: output_size must be {axes} integers, got {output_size!r}")
    filled = [size if n is None else n for n, size in zip(given, inputs, strict=True)]
    outputs = sizes(name, "output_size", filled, axes, 1)
    if max(outputs) == 1 and name.startswith("adaptive_avg"):
        out = mean(x, tuple(range(2, 2 + axes)), keepdim=True)
    elif all(size % n == 0 for size, n in zip(inputs, outputs, strict=True)):
        out = pool(x, tuple(size // n for size, n in zip(inputs, outputs, strict=True)))
    else:
        cuts = [
            [slice(i * size // n, -((i + 1) * size // -n)) for i in range(n)]
            for size, n in zip(inputs, outputs, strict=True)
        ]
        parts = [x[(..., *window)] for window in itertools.product(*cuts)]
        cells = [flatten(pool(part, part.array.shape[2:]), 2) for part in parts]
        out = reshape(cat(cells, 2), (*x.array.shape[:2], *outputs))
    return squeeze(out, 0) if single else out


# ---- arguments ----

# stride, padding, dilation, window: one number each per spatial axis
Geometry = tuple[Sizes, Sizes, Sizes, Sizes]


def images(name: str, axes: int, x: TensorLike) -> tuple[Tensor, bool]:
    """X with an axis of samples, and whether it came without.

    Raises: DtypeError; ShapeError for another number of axes, or none of a size above 0.
    """
    x = as_tensor(x)
    if not is_real(x):
        raise DtypeError(f"{name}: input is {x.array.dtype}, expected float32 or float64")
    single = x.array.ndim == axes + 1
    if not single and x.array.ndim != axes + 2:
        raise ShapeError(f"{name}: input {x.array.shape}, expected {axes + 1} or {axes + 2} axes")
    if 0 in x.array.shape[-axes:]:
        raise ShapeError(f"{name}: input {x.array.shape} has no places")
    return (unsqueeze(x, 0) if single else x), single


class _Windows(NamedTuple):
    """An input, and where windows lie in it."""

    x: Tensor  # (N, C, ...)
    single: bool  # it came without N
    geometry: Geometry
    outputs: Sizes  # how many windows, per axis
    ceil_mode: bool

    def attributes(self) -> dict[str, Any]:
        """Of the recorded operation."""
        names = ("stride", "padding", "dilation", "kernel_size")
        return dict(zip(names, self.geometry, strict=True)) | {"ceil_mode": self.ceil_mode}

    def finished(self, out: Tensor) -> Tensor:
        """The result, without N where the input came without."""
        return squeeze(out, 0) if self.single else out


def _windows(
    name: str,
    axes: int,
    input: TensorLike,
    kernel_size: Size,
    stride: Size | None,
    padding: Size,
    dilation: Size,
    ceil_mode: bool,
) -> _Windows:
    x, single = images(name, axes, input)
    window = sizes(name, "kernel_size", kernel_size, axes, 1)
    step = window if stride in (None, (), []) else sizes(name, "stride", stride, axes, 1)  # type: ignore[arg-type]
    before = sizes(name, "padding", padding, axes, 0)
    spread = sizes(name, "dilation", dilation, axes, 1)
    outputs = []
    for i, size in enumerate(x.array.shape[2:]):
        if 2 * before[i] > window[i]:
            raise ValueError(f"{name}: padding {before[i]} is more than half of {window[i]}")
        padded, reach = size + 2 * before[i], spread[i] * (window[i] - 1) + 1
        if padded < reach:
            there = f"the input of {padded}, padding included (input {x.array.shape})"
            raise ShapeError(f"{name}: a window of {reach} is larger than {there}")
        room = padded - reach
        count = (-(-room // step[i]) if ceil_mode else room // step[i]) + 1
        outputs.append(count - (ceil_mode and (count - 1) * step[i] >= size + before[i]))
    return _Windows(x, single, (step, before, spread, window), tuple(outputs), ceil_mode)


@functools.cache
def _array(geometry: Geometry) -> Array:
    """(4, 3), as the kernels want it."""
    missing = 3 - len(geometry[0])
    fillers = (1, 0, 1, 1)
    return np.array([(f,) * missing + row for f, row in zip(fillers, geometry, strict=True)], INT64)


def _five(x: Array) -> Array:
    """With axes of size 1 in front of the spatial ones that are there."""
    x = kernels.contiguous(x)
    return x.reshape(*x.shape[:2], *(1,) * (5 - x.ndim), *x.shape[2:])
