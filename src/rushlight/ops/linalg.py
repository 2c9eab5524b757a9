"""Matrix products, all through one kernel that takes any strides, so transposes cost no copy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from rushlight import kernels
from rushlight.autograd import is_grad_enabled, new_tensor, record
from rushlight.errors import DtypeError, ShapeError
from rushlight.kernels import Array
from rushlight.ops.convert import TensorLike, as_tensor, host, is_real, pair
from rushlight.ops.elementwise import (
    ACTIVATIONS,
    check_activation,
    expand_to,
    kept_operands,
    mul,
    sum_to,
)
from rushlight.ops.shape import permute, reshape, squeeze, transpose, unsqueeze

if TYPE_CHECKING:
    from rushlight.tensor import Tensor


def _rows(x: Array) -> Array:
    """(..., D) as (R, D)."""
    return x if x.ndim == 2 else kernels.contiguous(x).reshape(math.prod(x.shape[:-1]), x.shape[-1])


def linear(
    x: TensorLike,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str | None = None,
    residual: Tensor | None = None,
) -> Tensor:
    """activation(x W^T + bias) + residual.  x (..., K), weight (N, K), bias (N,) -> (..., N).

    activation: None, "relu", "gelu", "gelu_tanh" or "silu"; residual (..., N).
    Raises: ShapeError, DtypeError, ValueError for another activation.
    """
    x, weight = as_tensor(x), as_tensor(weight)
    a, w = x.array, weight.array
    if not is_real(x) or w.dtype != a.dtype:
        raise DtypeError(
            f"linear: input is {a.dtype}, weight {w.dtype}; expected float32 or float64, the same"
        )
    if w.ndim != 2 or a.ndim == 0 or a.shape[-1] != w.shape[1]:
        raise ShapeError(
            f"linear: input {a.shape} does not fit weight {w.shape}, expected (..., K), (N, K)"
        )
    if bias is not None and bias.array.shape != w.shape[:1]:
        raise ShapeError(f"linear: bias has shape {bias.array.shape}, expected ({w.shape[0]},)")
    if bias is not None and bias.array.dtype != a.dtype:
        raise DtypeError(f"linear: bias is {bias.array.dtype}, expected {a.dtype}")
    check_activation("linear", activation)
    shape = (*a.shape[:-1], w.shape[0])
    if residual is not None and residual.array.shape != shape:
        raise ShapeError(f"linear: residual has shape {residual.array.shape}, expected {shape}")
    if residual is not None and residual.array.dtype != a.dtype:
        raise DtypeError(f"linear: residual is {residual.array.dtype}, expected {a.dtype}")
    out = kernels.empty(shape, a.dtype)
    pre = None if activation is None else new_tensor(kernels.empty(shape, a.dtype))
    kernels.gemm(
        _rows(out),
        _rows(a),
        w.T,
        bias=None if bias is None else kernels.contiguous(bias.array),
        residual=None if residual is None else _rows(kernels.contiguous(residual.array)),
        pre=None if pre is None else _rows(pre.array),
        activation=activation,
    )

    def vjp(g: Tensor) -> tuple[Any, ...]:
        if activation is None or pre is None:
            return (*linear_backward(g, x, weight, bias), g)
        again = linear(x, weight, bias) if is_grad_enabled() else pre  # recorded for the second
        return (*linear_backward(ACTIVATIONS[activation][1](g, again), x, weight, bias), g)

    saved = (x, weight) if pre is None else (x, weight, pre)
    return record("linear", out, (x, weight, bias, residual), vjp, saved=saved)


def linear_backward(
    g: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients of x, weight and bias; None where none is needed."""
    gx = gweight = gbias = None
    rows, dtype = _rows(g.array), g.array.dtype
    if x.needs_grad:
        out = kernels.empty(x.array.shape, dtype)
        kernels.gemm(_rows(out), rows, weight.array)
        gx = record("linear_backward", out, (g, weight), lambda h: _gx_vjp(h, g, weight))
    if weight.needs_grad or (bias is not None and bias.needs_grad):
        sums = None if bias is None else kernels.empty(bias.array.shape, dtype)
        out = kernels.gemm(
            kernels.empty(weight.array.shape, dtype), rows.T, _rows(x.array), row_sum=sums
        )
        gweight = record("linear_backward", out, (g, x), lambda h: _gweight_vjp(h, g, x))
        if sums is not None:
            gbias = record("linear_backward", sums, (g,), lambda h: (expand_to(h, g.array.shape),))
    return gx, gweight, gbias


def _gx_vjp(h: Tensor, g: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Of gx = g W."""
    rows = math.prod(g.array.shape[:-1])
    flat = reshape(g, (rows, g.array.shape[-1])), reshape(h, (rows, h.array.shape[-1]))
    return linear(h, weight), matmul(transpose(flat[0], 0, 1), flat[1])


def _gweight_vjp(h: Tensor, g: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Of gW = g^T x."""
    return linear(x, h), matmul(g, h)


def matmul(x: TensorLike, y: TensorLike) -> Tensor:
    """Matrix product.  (..., M, K), (..., K, N) -> (..., M, N); leading axes broadcast.

    An operand with one axis is a row (left) or a column (right); the result lacks that axis.
    Raises: ShapeError when the inner sizes differ.
    """
    x, y = pair(x, y)
    if x.array.ndim == 0 or y.array.ndim == 0:
        raise ShapeError(f"matmul: operands need axes, got {x.array.shape} and {y.array.shape}")
    if x.array.shape[-1] != y.array.shape[max(y.array.ndim - 2, 0)]:
        raise ShapeError(f"matmul: shapes {x.array.shape} and {y.array.shape}: inner sizes differ")
    if x.array.ndim == 1:
        out = matmul(unsqueeze(x, 0), y)
        return squeeze(out, -1 if y.array.ndim == 1 else -2)
    if y.array.ndim == 1:
        return squeeze(matmul(x, unsqueeze(y, 1)), -1)
    batch = kernels.broadcast("matmul", x.array.shape[:-2], y.array.shape[:-2])
    if not is_real(x):
        return new_tensor(np.matmul(host(x, "matmul"), host(y, "matmul")))
    if y.array.ndim == 2 and x.array.ndim > 2:  # one large product instead of a batch of small ones
        rows = math.prod(x.array.shape[:-1])
        flat = matmul(reshape(x, (rows, x.array.shape[-1])), y)
        return reshape(flat, (*x.array.shape[:-1], y.array.shape[-1]))
    product = kernels.empty((*batch, x.array.shape[-2], y.array.shape[-1]), x.array.dtype)
    kernels.gemm(product, x.array, y.array)

    xs, ys = x.array.shape, y.array.shape
    kept_x, kept_y, saved = kept_operands(x, y)

    def vjp(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        gx = None if kept_y is None else sum_to(matmul(g, transpose(kept_y, -2, -1)), xs)
        gy = None if kept_x is None else sum_to(matmul(transpose(kept_x, -2, -1), g), ys)
        return gx, gy

    return record("matmul", product, (x, y), vjp, saved=saved)


def rmatmul(x: Tensor, y: TensorLike) -> Tensor:
    """Y @ x."""
    return matmul(y, x)


def dot(x: TensorLike, y: TensorLike) -> Tensor:
    """Sum of the products of two vectors (N,), (N,) -> ()."""
    x, y = pair(x, y)
    if x.array.ndim != 1 or x.array.shape != y.array.shape:
        raise ShapeError(
            f"dot: expected two vectors of one size, got {x.array.shape}, {y.array.shape}"
        )
    return matmul(x, y)


def outer(x: TensorLike, y: TensorLike) -> Tensor:
    """(N,), (M,) -> (N, M): all products."""
    x, y = pair(x, y)
    if x.array.ndim != 1 or y.array.ndim != 1:
        raise ShapeError(f"outer: expected two vectors, got {x.array.shape} and {y.array.shape}")
    return mul(unsqueeze(x, 1), unsqueeze(y, 0))


def t(x: TensorLike) -> Tensor:
    """The transpose of a matrix; a vector stays as it is."""
    x = as_tensor(x)
    if x.array.ndim > 2:
        raise ShapeError(f"t: expected at most two axes, shape is {x.array.shape}")
    return transpose(x, 0, 1) if x.array.ndim == 2 else x


def transposed(x: Tensor) -> Tensor:
    """All axes in reverse order."""
    return permute(x, range(x.array.ndim - 1, -1, -1))


def matrix_transposed(x: Tensor) -> Tensor:
    """The last two axes exchanged."""
    if x.array.ndim < 2:
        raise ShapeError(f"mT: expected at least two axes, shape is {x.array.shape}")
    return transpose(x, -2, -1)
