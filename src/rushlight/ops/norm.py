"""Normalisation over the last axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rushlight import kernels
from rushlight.autograd import record
from rushlight.errors import DtypeError, ShapeError
from rushlight.ops.convert import TensorLike, as_tensor, is_real
from rushlight.ops.shape import contiguous, flatten, reshape

if TYPE_CHECKING:
    from rushlight.tensor import Tensor


def _check(
    name: str, x: Tensor, shape: int | Sequence[int], *parameters: Tensor | None
) -> tuple[int, ...]:
    if not is_real(x):
        raise DtypeError(f"{name}: input is {x.array.dtype}, expected float32 or float64")
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if not shape or x.array.shape[-len(shape) :] != shape:
        raise ShapeError(f"{name}: input {x.array.shape} does not end in normalized_shape {shape}")
    for parameter in parameters:
        if parameter is not None and parameter.array.shape != shape:
            raise ShapeError(f"{name}: parameter {parameter.array.shape}, expected {shape}")
    return shape


def layer_norm(
    x: TensorLike,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias over the last axes.

    x: (..., *normalized_shape) -> the same.  weight, bias: normalized_shape.  Biased variance.
    Raises: ShapeError.  Source: Ba, Kiros & Hinton 2016, arXiv:1607.06450.
    """
    x = as_tensor(x)
    shape = _check("layer_norm", x, normalized_shape, weight, bias)
    if len(shape) > 1:
        rows = flatten(x, x.array.ndim - len(shape))
        flat_weight, flat_bias = (None if p is None else flatten(p) for p in (weight, bias))
        size = (math.prod(shape),)
        return reshape(layer_norm(rows, size, flat_weight, flat_bias, eps), x.array.shape)
    x = contiguous(x)
    w, b = (None if p is None else kernels.contiguous(p.array) for p in (weight, bias))
    out, stats = kernels.layer_norm(x.array, w, b, eps)

    def vjp(g: Tensor) -> tuple[Tensor | None, ...]:
        rows = kernels.contiguous(g.array)
        gradients = kernels.layer_norm_backward(rows, x.array, stats, w, b is not None)
        inputs = tuple(i for i in (g, x, weight) if i is not None)
        return tuple(
            None if a is None else record("layer_norm_backward", a, inputs, None) for a in gradients
        )

    saved = (x,) if weight is None else (x, weight)
    return record("layer_norm", out, (x, weight, bias), vjp, saved=saved, attrs={"eps": eps})


def rms_norm(
    x: TensorLike,
    normalized_shape: int | Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Root-mean-square normalisation over the last axes: x / sqrt(mean(x^2) + eps) * weight.

    x: (..., *normalized_shape) -> the same.  weight: normalized_shape.
    eps: the dtype's own by default.
    Raises: ShapeError.  Source: Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4.
    """
    x = as_tensor(x)
    shape = _check("rms_norm", x, normalized_shape, weight)
    if eps is None:
        eps = float(np.finfo(x.array.dtype).eps)
    if len(shape) > 1:
        rows = flatten(x, x.array.ndim - len(shape))
        flat = None if weight is None else flatten(weight)
        return reshape(rms_norm(rows, (math.prod(shape),), flat, eps), x.array.shape)
    x = contiguous(x)
    w = None if weight is None else kernels.contiguous(weight.array)
    out, stats = kernels.rms_norm(x.array, w, eps)

    def vjp(g: Tensor) -> tuple[Tensor | None, ...]:
        gradients = kernels.rms_norm_backward(kernels.contiguous(g.array), x.array, stats, w)
        inputs = tuple(i for i in (g, x, weight) if i is not None)
        return tuple(
            None if a is None else record("rms_norm_backward", a, inputs, None) for a in gradients
        )

    saved = (x,) if weight is None else (x, weight)
    return record("rms_norm", out, (x, weight), vjp, saved=saved, attrs={"eps": eps})
