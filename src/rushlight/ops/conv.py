"""Convolution in one, two or three spatial axes, and its transpose.

Three operations are each other's derivatives, however often: the convolution y = w * x, the
gradient of its input and that of its weight. The transposed convolution is the second.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rushlight import kernels
from rushlight.autograd import is_grad_enabled, new_tensor, record
from rushlight.errors import DtypeError, ShapeError
from rushlight.kernels import Array, K, Shape
from rushlight.ops.convert import TensorLike, as_tensor, is_real
from rushlight.ops.elementwise import ACTIVATIONS, add, check_activation, expand_to, mul
from rushlight.ops.shape import reshape, squeeze, unsqueeze

if TYPE_CHECKING:
    from rushlight.tensor import Tensor

Size = int | Sequence[int]

_LARGEST = 2**31 - 1  # of strides, paddings, dilations and windows: sums of them fit the kernels


class Geometry(NamedTuple):
    """How windows lie: per spatial axis stride, padding before the first element, dilation."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    array: Array  # (3, 3), as the kernels want it

    @classmethod
    def of(
        cls,
        stride: tuple[int, ...],
        padding: tuple[int, ...],
        dilation: tuple[int, ...],
        groups: int,
    ) -> Geometry:
        """With the array; fillers stand for spatial axes that are not there."""
        filled = zip((1, 0, 1), (stride, padding, dilation), strict=True)
        array = np.array([(filler,) * (3 - len(row)) + row for filler, row in filled], np.int64)
        return cls(stride, padding, dilation, groups, array)

    @property
    def attrs(self) -> dict[str, Any]:
        """As nodes keep them."""
        return dict(zip(self._fields[:4], self[:4], strict=True))


def conv1d(
    input: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    activation: str | None = None,
    scale: TensorLike | None = None,
    residual: TensorLike | None = None,
) -> Tensor:
    """`conv2d` over one axis.  (N, C, L), (O, C / groups, K) -> (N, O, L')."""
    windows = stride, padding, dilation, groups
    return _conv("conv1d", 1, input, weight, bias, windows, activation, scale, residual)


def conv2d(
    input: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    activation: str | None = None,
    scale: TensorLike | None = None,
    residual: TensorLike | None = None,
) -> Tensor:
    """Weighted sums of windows.  (N, C, H, W), (O, C / groups, KH, KW) -> (N, O, H', W').

    y[n, o, i] = bias[o] + sum over c, k of weight[o, c, k] * x[n, c, i * stride + k * dilation -
    padding], with zeros outside of x and c running over o's group; H' = floor((H + 2 * padding -
    dilation * (KH - 1) - 1) / stride) + 1.
    input: float32/float64, may lack N, and then so does the result.  bias: (O,).
    stride, padding, dilation: an integer for all spatial axes, or one each. padding "valid" is 0,
    "same" keeps the size (with stride 1; an odd number of zeros has its last behind the input).
    activation ("relu", "gelu", "gelu_tanh" or "silu"), scale (O,) or with axes of size
    1 behind, residual (as the result): activation(scale * y + residual), in one pass where no
    gradient is recorded.
    Raises: ShapeError when sizes do not fit or a window is larger than the padded input;
    DtypeError; ValueError for a stride, padding, dilation or groups that makes no sense.
    """
    windows = stride, padding, dilation, groups
    return _conv("conv2d", 2, input, weight, bias, windows, activation, scale, residual)


def conv3d(
    input: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Size = 1,
    padding: Size | str = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    activation: str | None = None,
    scale: TensorLike | None = None,
    residual: TensorLike | None = None,
) -> Tensor:
    """`conv2d` over three axes.  (N, C, D, H, W), (O, C / groups, KD, KH, KW) -> the same kind."""
    windows = stride, padding, dilation, groups
    return _conv("conv3d", 3, input, weight, bias, windows, activation, scale, residual)


def conv_transpose1d(
    input: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """`conv_transpose2d` over one axis.  (N, C, L), (C, O / groups, K) -> (N, O, L')."""
    options = stride, padding, output_padding, groups, dilation
    return _conv_transpose("conv_transpose1d", 1, input, weight, bias, *options)


def conv_transpose2d(
    input: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """The gradient of `conv2d` with respect to its input, as a layer.

    (N, C, H, W), weight (C, O / groups, KH, KW), bias (O,) -> (N, O, H', W') with H' =
    (H - 1) * stride - 2 * padding + dilation * (KH - 1) + output_padding + 1: every element adds
    its window, weighted, to the output.  output_padding: rows at the end that no whole window
    reaches, fewer than stride or dilation.
    Raises: as `conv2d`.
    """
    options = stride, padding, output_padding, groups, dilation
    return _conv_transpose("conv_transpose2d", 2, input, weight, bias, *options)


def conv_transpose3d(
    input: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None = None,
    stride: Size = 1,
    padding: Size = 0,
    output_padding: Size = 0,
    groups: int = 1,
    dilation: Size = 1,
) -> Tensor:
    """`conv_transpose2d` over three axes.  (N, C, D, H, W), (C, O / groups, KD, KH, KW)."""
    options = stride, padding, output_padding, groups, dilation
    return _conv_transpose("conv_transpose3d", 3, input, weight, bias, *options)


def _conv(
    name: str,
    axes: int,
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    windows: tuple[Any, ...],
    activation: str | None,
    scale: TensorLike | None,
    residual: TensorLike | None,
) -> Tensor:
    x, weight, bias, single = _operands(name, axes, x, weight, bias)
    shapes = x.array.shape, weight.array.shape
    try:
        shape, geometry = _lay_out(name, axes, *shapes, *windows)
    except TypeError:  # unhashable: lists, and what is no size at all
        shape, geometry = _lay_out.__wrapped__(name, axes, *shapes, *windows)
    _check_vector(name, "bias", bias, shape[1])
    if activation is not None or scale is not None or residual is not None:
        scale = None if scale is None else as_tensor(scale)
        residual = None if residual is None else as_tensor(residual)
        if residual is not None and single:
            residual = unsqueeze(residual, 0)
        _check_epilogue(name, x.array.dtype, shape, activation, scale, residual)
    if is_grad_enabled() and any(
        t is not None and t.needs_grad for t in (x, weight, bias, scale, residual)
    ):
        out = _forward(x, weight, bias, shape, geometry)
        out = out if scale is None else mul(out, reshape(scale, (shape[1],) + (1,) * axes))
        out = out if residual is None else add(out, residual)
        out = out if activation is None else ACTIVATIONS[activation][0](out)
    else:
        out = new_tensor(kernels.empty(shape, x.array.dtype))
        _run(out.array, x, weight, bias, geometry, activation, scale, residual)
    return squeeze(out, 0) if single else out


@functools.lru_cache(1024, typed=True)
def _lay_out(
    name: str,
    axes: int,
    x: Shape,
    weight: Shape,
    stride: Size,
    padding: Size | str,
    dilation: Size,
    groups: int,
) -> tuple[Shape, Geometry]:
    """The shape of the output, and how the windows lie, from shapes of input and weight."""
    steps = sizes(name, "stride", stride, axes, 1)
    spread = sizes(name, "dilation", dilation, axes, 1)
    reach = [d * (k - 1) for d, k in zip(spread, weight[2:], strict=True)]
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise ValueError(f"{name}: padding {padding!r} is not 'same', 'valid' or a number")
        if padding == "same" and max(steps) > 1:
            raise ValueError(f"{name}: padding 'same' goes with stride 1 only, got {steps}")
        total = reach if padding == "same" else [0] * axes
        before = tuple(r // 2 for r in total)
    else:
        before = sizes(name, "padding", padding, axes, 0)
        total = [2 * p for p in before]
    outputs = []
    for i, (size, around, r) in enumerate(zip(x[2:], total, reach, strict=True)):
        if size + around < r + 1:
            raise ShapeError(
                f"{name}: a window of {r + 1} is larger than the input of {size + around}, "
                f"padding included (input {x}, weight {weight})"
            )
        outputs.append((size + around - r - 1) // steps[i] + 1)
    _check_groups(name, groups, x, weight, weight[0], lambda: weight[1] * groups)
    return (x[0], weight[0], *outputs), Geometry.of(steps, before, spread, groups)


def _conv_transpose(
    name: str,
    axes: int,
    x: TensorLike,
    weight: TensorLike,
    bias: TensorLike | None,
    stride: Size,
    padding: Size,
    output_padding: Size,
    groups: int,
    dilation: Size,
) -> Tensor:
    x, weight, bias, single = _operands(name, axes, x, weight, bias)
    steps = sizes(name, "stride", stride, axes, 1)
    spread = sizes(name, "dilation", dilation, axes, 1)
    before = sizes(name, "padding", padding, axes, 0)
    extra = sizes(name, "output_padding", output_padding, axes, 0)
    outputs = []
    for i, (size, k) in enumerate(zip(x.array.shape[2:], weight.array.shape[2:], strict=True)):
        if extra[i] >= max(steps[i], spread[i]):
            raise ValueError(
                f"{name}: output_padding {extra[i]} must be smaller than stride {steps[i]} or "
                f"dilation {spread[i]}"
            )
        whole = (size - 1) * steps[i] + spread[i] * (k - 1) + 1
        outputs.append(whole - 2 * before[i] + extra[i])
        if outputs[i] < 1:
            raise ShapeError(f"{name}: padding {before[i]} leaves nothing of {whole} elements")
    shapes = x.array.shape, weight.array.shape
    _check_groups(name, groups, *shapes, shapes[0][1], lambda: shapes[1][0])
    filters = weight.array.shape[1] * groups
    _check_vector(name, "bias", bias, filters)
    geometry = Geometry.of(steps, before, spread, groups)
    out = _input_gradient(x, weight, (x.array.shape[0], filters, *outputs), geometry)
    if bias is not None:
        out = add(out, reshape(bias, (filters,) + (1,) * axes))
    return squeeze(out, 0) if single else out


# ---- the three operations ----


def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, shape: Shape, geometry: Geometry
) -> Tensor:
    out = kernels.empty(shape, x.array.dtype)
    _run(out, x, weight, bias, geometry)

    def vjp(g: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        gx = gweight = gbias = None
        if x.needs_grad:
            gx = _input_gradient(g, weight, x.array.shape, geometry)
        if weight.needs_grad or (bias is not None and bias.needs_grad):
            with_bias = bias is not None and bias.needs_grad
            gweight, gbias = _weight_gradient(g, x, weight.array.shape, geometry, with_bias)
        return gx, gweight, gbias

    return record("conv", out, (x, weight, bias), vjp, saved=(x, weight), attrs=geometry.attrs)


def _run(
    out: Array,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    geometry: Geometry,
    activation: str | None = None,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
) -> None:
    contiguous = kernels.contiguous
    kernels.call(
        K.conv,
        out,
        contiguous(x.array),
        contiguous(weight.array),
        None if bias is None else contiguous(bias.array),
        None if scale is None else contiguous(scale.array).reshape(-1),
        None if residual is None else contiguous(residual.array),
        geometry.array,
        geometry.groups,
        kernels.ACTIVATIONS[activation],
    )


def _input_gradient(g: Tensor, weight: Tensor, shape: Shape, geometry: Geometry) -> Tensor:
    out = kernels.empty(shape, g.array.dtype)
    operands = kernels.contiguous(g.array), kernels.contiguous(weight.array)
    kernels.call(K.conv_backward_input, out, *operands, geometry.array, geometry.groups)

    def vjp(h: Tensor) -> tuple[Tensor | None, Tensor | None]:
        gg = _forward(h, weight, None, g.array.shape, geometry) if g.needs_grad else None
        gweight = None
        if weight.needs_grad:
            gweight, _ = _weight_gradient(g, h, weight.array.shape, geometry, False)
        return gg, gweight

    attrs = geometry.attrs
    return record("conv_transpose", out, (g, weight), vjp, saved=(g, weight), attrs=attrs)


def _weight_gradient(
    g: Tensor, x: Tensor, shape: Shape, geometry: Geometry, with_bias: bool
) -> tuple[Tensor, Tensor | None]:
    """Of the weight, whose shape it is, and of the bias."""
    out = kernels.empty(shape, g.array.dtype)
    sums = kernels.empty(shape[:1], g.array.dtype) if with_bias else None
    operands = kernels.contiguous(g.array), kernels.contiguous(x.array)
    kernels.call(K.conv_backward_weight, out, sums, *operands, geometry.array, geometry.groups)

    def vjp(h: Tensor) -> tuple[Tensor | None, Tensor | None]:
        gg = _forward(x, h, None, g.array.shape, geometry) if g.needs_grad else None
        gx = _input_gradient(g, h, x.array.shape, geometry) if x.needs_grad else None
        return gg, gx

    gshape = g.array.shape

    def bias_vjp(h: Tensor) -> tuple[Tensor]:
        return (expand_to(reshape(h, (1, -1) + (1,) * (len(gshape) - 2)), gshape),)

    gweight = record("conv_backward", out, (g, x), vjp, saved=(g, x))
    return gweight, None if sums is None else record("conv_backward", sums, (g,), bias_vjp)


# ---- arguments ----


def sizes(name: str, what: str, given: Size, axes: int, least: int) -> tuple[int, ...]:
    """An integer for every spatial axis, from one for all or from as many.  Raises: ValueError."""
    try:
        numbers = [*given] if isinstance(given, Sequence) else [given] * axes
        found = tuple(operator.index(n) for n in (numbers * axes if len(numbers) == 1 else numbers))
    except TypeError:
        found = ()
    if len(found) != axes or min(found) < least or max(found) > _LARGEST:
        wanted = f"{axes} integers" if axes > 1 else "an integer"
        limits = f"up to {_LARGEST}" if max(found, default=0) > _LARGEST else f"from {least} on"
        raise ValueError(f"{name}: {what} must be {wanted} {limits}, got {given!r}")
    return found


def _operands(
    name: str, axes: int, x: TensorLike, weight: TensorLike, bias: TensorLike | None
) -> tuple[Tensor, Tensor, Tensor | None, bool]:
    x, weight = as_tensor(x), as_tensor(weight)
    bias = None if bias is None else as_tensor(bias)
    dtype = x.array.dtype
    mixed = weight.array.dtype != dtype or (bias is not None and bias.array.dtype != dtype)
    if mixed or not is_real(x):
        dtypes = {t.array.dtype for t in (x, weight, bias) if t is not None}
        found = ", ".join(sorted(map(str, dtypes)))
        raise DtypeError(f"{name}: got {found}; expected float32 or float64, the same for all")
    single = x.array.ndim == axes + 1
    if weight.array.ndim != axes + 2 or not (single or x.array.ndim == axes + 2):
        raise ShapeError(
            f"{name}: input {x.array.shape} and weight {weight.array.shape}, expected "
            f"{axes + 2} axes (the input may lack the first)"
        )
    if 0 in weight.array.shape[2:]:
        raise ShapeError(f"{name}: weight {weight.array.shape} has an empty window")
    return (unsqueeze(x, 0) if single else x), weight, bias, single


def _check_epilogue(
    name: str,
    dtype: Any,
    shape: Shape,
    activation: str | None,
    scale: Tensor | None,
    residual: Tensor | None,
) -> None:
    check_activation(name, activation)
    if scale is not None and not scale.array.shape[:1] == (scale.array.size,) == shape[1:2]:
        expected = f"expected {shape[1:2]}, or with axes of size 1 behind"
        raise ShapeError(f"{name}: scale has shape {scale.array.shape}, {expected}")
    for what, tensor in (("scale", scale), ("residual", residual)):
        if tensor is not None and tensor.array.dtype != dtype:
            raise DtypeError(f"{name}: {what} is {tensor.array.dtype}, expected {dtype}")
    if residual is not None and residual.array.shape != shape:
        raise ShapeError(f"{name}: residual has shape {residual.array.shape}, expected {shape}")


def _check_groups(
    name: str, groups: Any, x: Shape, weight: Shape, divided: int, channels: Callable[[], int]
) -> None:
    if not isinstance(groups, int) or groups < 1:
        raise ValueError(f"{name}: groups must be a positive integer, got {groups!r}")
    if divided % groups or x[1] != channels():
        raise ShapeError(f"{name}: input {x} does not fit weight {weight} in {groups} groups")


def _check_vector(name: str, what: str, x: Tensor | None, filters: int) -> None:
    if x is not None and x.array.shape != (filters,):
        raise ShapeError(f"{name}: {what} has shape {x.array.shape}, expected ({filters},)")
