"""Moving between channels and space: pixel shuffles, windows as columns; dropping channels."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rushlight import kernels
from rushlight.autograd import new_tensor, record
from rushlight.errors import ShapeError
from rushlight.kernels import Array, Shape
from rushlight.ops.conv import Size, sizes
from rushlight.ops.convert import TensorLike, as_real, as_tensor
from rushlight.ops.dropout import dropout
from rushlight.ops.elementwise import mul
from rushlight.ops.padding import pad
from rushlight.ops.pool import images
from rushlight.ops.shape import permute, reshape, squeeze

if TYPE_CHECKING:
    from rushlight.tensor import Tensor


# ---- pixel shuffles ----


def pixel_shuffle(input: TensorLike, upscale_factor: int) -> Tensor:
    """Channels become space.  (..., C * r^2, H, W) -> (..., C, H * r, W * r), r = upscale_factor.

    Raises: ShapeError, ValueError.  Source: Shi et al. 2016, arXiv:1609.05158.
    """
    x, r = as_tensor(input), upscale_factor
    *batch, channels, y_size, x_size = _image("pixel_shuffle", x, r)
    if channels % (r * r):
        raise ShapeError(f"pixel_shuffle: {channels} channels of {x.array.shape}, factor {r}")
    n = len(batch)
    out = reshape(x, (*batch, channels // (r * r), r, r, y_size, x_size))
    out = permute(out, (*range(n + 1), n + 3, n + 1, n + 4, n + 2))
    return reshape(out, (*batch, channels // (r * r), y_size * r, x_size * r))


def pixel_unshuffle(input: TensorLike, downscale_factor: int) -> Tensor:
    """Space becomes channels.  (..., C, H * r, W * r) -> (..., C * r^2, H, W).

    r: downscale_factor.  The inverse of `pixel_shuffle`.  Raises: ShapeError, ValueError.
    """
    x, r = as_tensor(input), downscale_factor
    *batch, channels, y_size, x_size = _image("pixel_unshuffle", x, r)
    if y_size % r or x_size % r:
        raise ShapeError(f"pixel_unshuffle: input {x.array.shape} is not made of squares of {r}")
    n = len(batch)
    out = reshape(x, (*batch, channels, y_size // r, r, x_size // r, r))
    out = permute(out, (*range(n + 1), n + 2, n + 4, n + 1, n + 3))
    return reshape(out, (*batch, channels * r * r, y_size // r, x_size // r))


def _image(name: str, x: Tensor, factor: int) -> Shape:
    if x.array.ndim < 3:
        raise ShapeError(f"{name}: input {x.array.shape}, expected (..., C, H, W)")
    if not isinstance(factor, int) or factor < 1:
        raise ValueError(f"{name}: the factor must be a positive integer, got {factor!r}")
    return tuple(x.array.shape)


# ---- windows as columns ----


class Windows(NamedTuple):
    """How windows lie in a padded image, per axis."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    def fitting(self, size: Shape) -> Shape:
        """How many windows fit in each axis."""
        lies = zip(size, self.kernel, self.stride, self.dilation, strict=True)
        return tuple((n - d * (k - 1) - 1) // s + 1 for n, k, s, d in lies)


def unfold(
    input: TensorLike, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1
) -> Tensor:
    """Every window as a column.  (N, C, H, W) -> (N, C * KH * KW, L), L windows row by row.

    input: float32/float64, may lack N.  Sizes: an integer for both axes, or one each.
    Raises: ShapeError where no window fits; DtypeError; ValueError.
    """
    x, single = images("unfold", 2, input)
    windows, around = _windows("unfold", kernel_size, dilation, padding, stride)
    padded = pad(x, (around[1], around[1], around[0], around[0])) if any(around) else x
    if min(windows.fitting(padded.array.shape[2:])) < 1:
        raise ShapeError(f"unfold: no window of {windows} fits input {x.array.shape}, {around=}")
    out = _unfold(padded, windows)
    return squeeze(out, 0) if single else out


def fold(
    input: TensorLike,
    output_size: Size,
    kernel_size: Size,
    dilation: Size = 1,
    padding: Size = 0,
    stride: Size = 1,
) -> Tensor:
    """The sum of windows, each at its place.  (N, C * KH * KW, L) -> (N, C, *output_size).

    The transpose of `unfold`, not its inverse: where windows overlap they add up.
    Raises: ShapeError where the input is not what `unfold` makes of that size; DtypeError;
    ValueError.
    """
    x, single = images("fold", 1, input)
    windows, around = _windows("fold", kernel_size, dilation, padding, stride)
    size = sizes("fold", "output_size", output_size, 2, 1)
    padded = tuple(n + 2 * p for n, p in zip(size, around, strict=True))
    counts, taps = windows.fitting(padded), math.prod(windows.kernel)
    rows, columns = x.array.shape[1:]
    if rows % taps or min(counts) < 1 or columns != math.prod(counts):
        wanted = f"(N, C * {taps}, {counts[0]} * {counts[1]})"
        raise ShapeError(f"fold: input {x.array.shape} for {size}, expected {wanted}")
    out = _fold(x, (x.array.shape[0], rows // taps, *padded), windows)
    if any(around):
        out = pad(out, (-around[1], -around[1], -around[0], -around[0]))
    return squeeze(out, 0) if single else out


def _windows(
    name: str, kernel_size: Size, dilation: Size, padding: Size, stride: Size
) -> tuple[Windows, tuple[int, ...]]:
    kernel = sizes(name, "kernel_size", kernel_size, 2, 1)
    steps, spread = sizes(name, "stride", stride, 2, 1), sizes(name, "dilation", dilation, 2, 1)
    return Windows(kernel, steps, spread), sizes(name, "padding", padding, 2, 0)


def _strided(x: Array, windows: Windows) -> Array:
    """(N, C, H, W) as (N, C, KH, KW, H', W'), a view in which elements appear several times."""
    shape = (*x.shape[:2], *windows.kernel, *windows.fitting(x.shape[2:]))
    n, c, *space = x.strides
    inner = [s * d for s, d in zip(space, windows.dilation, strict=True)]
    outer = [s * d for s, d in zip(space, windows.stride, strict=True)]
    strides = (n, c, *inner, *outer)
    return np.lib.stride_tricks.as_strided(x, shape, strides, writeable=False)


def _unfold(x: Tensor, windows: Windows) -> Tensor:
    view = _strided(x.array, windows)
    n, c = shape = x.array.shape[:2]
    out = kernels.copy(view).reshape(n, c * math.prod(windows.kernel), math.prod(view.shape[4:]))
    whole = (*shape, *x.array.shape[2:])
    return record("unfold", out, (x,), lambda g: (_fold(g, whole, windows),))


def _fold(x: Tensor, shape: Shape, windows: Windows) -> Tensor:
    out, counts = kernels.full(shape, 0.0, x.array.dtype), windows.fitting(shape[2:])
    taps = kernels.contiguous(x.array).reshape(*shape[:2], *windows.kernel, *counts)
    for tap in np.ndindex(*windows.kernel):
        lies = zip(tap, counts, windows.stride, windows.dilation, strict=True)
        place = [slice(t * d, t * d + s * (n - 1) + 1, s) for t, n, s, d in lies]
        if taps.size:
            kernels.accumulate(out[:, :, place[0], place[1]], taps[:, :, tap[0], tap[1]])
    return record("fold", out, (x,), lambda g: (_unfold(g, windows),))


# ---- dropping whole channels, whole samples ----


def dropout1d(
    input: TensorLike, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """Whole channels zero with probability p, the others divided by 1 - p.  (N, C, L), (C, L).

    inplace changes nothing: use what is returned.  The input itself when not training.
    Raises: ShapeError; ValueError for p outside [0, 1].  Source: arXiv:1411.4280.
    """
    return _drop_channels("dropout1d", 1, input, p, training)


def dropout2d(
    input: TensorLike, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """`dropout1d` for (N, C, H, W).  As in PyTorch, three axes are taken for (N, C, L)."""
    return _drop_channels("dropout2d", 2, input, p, training)


def dropout3d(
    input: TensorLike, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Tensor:
    """`dropout1d` for (N, C, D, H, W) and (C, D, H, W)."""
    return _drop_channels("dropout3d", 3, input, p, training)


def drop_path(input: TensorLike, p: float = 0.0, training: bool = True) -> Tensor:
    """Whole samples zero with probability p, the others divided by 1 - p.  (N, ...) -> the same.

    For the branches of residual networks ("stochastic depth").  The input itself when not training.
    Raises: ShapeError for an input without axes; ValueError for p outside [0, 1].
    Source: Huang et al. 2016, arXiv:1603.09382.
    """
    x = as_real(input)
    if x.array.ndim == 0:
        raise ShapeError("drop_path: expected (N, ...), got an input without axes")
    return _drop_first("drop_path", x, 1, p, training)


def _drop_channels(name: str, axes: int, input: TensorLike, p: float, training: bool) -> Tensor:
    """Dropout for channels of so many axes; in two, the first axis is always one of samples."""
    x = as_real(input)
    if x.array.ndim not in (axes + 1, axes + 2):
        raise ShapeError(f"{name}: input {x.array.shape}, expected {axes + 1} or {axes + 2} axes")
    return _drop_first(name, x, 2 if axes == 2 else x.array.ndim - axes, p, training)


def _drop_first(name: str, x: Tensor, axes: int, p: float, training: bool) -> Tensor:
    """Dropout of whole parts, one for each index of the first axes."""
    if not 0 <= p <= 1:
        raise ValueError(f"{name}: p must lie in [0, 1], got {p}")
    if not training or p == 0:
        return x
    shape = x.array.shape[:axes] + (1,) * (x.array.ndim - axes)
    return mul(x, dropout(new_tensor(kernels.full(shape, 1.0, x.array.dtype)), p))
