"""Softmax and its relatives over one axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rushlight import kernels
from rushlight.autograd import record
from rushlight.ops.convert import TensorLike, as_real
from rushlight.ops.shape import axis, contiguous, transpose, unsqueeze

if TYPE_CHECKING:
    from rushlight.tensor import Tensor


def _along(name: str, rows: Callable[[Tensor], Tensor], x: TensorLike, dim: int) -> Tensor:
    """Apply a function of the last axis along another one."""
    x = as_real(x)
    dim = axis(name, dim, x.array.ndim)
    last = x.array.ndim - 1
    if x.array.ndim == 0:
        return rows(unsqueeze(x, 0))[0]
    if dim == last:
        return rows(contiguous(x))
    return transpose(rows(contiguous(transpose(x, dim, last))), dim, last)


def softmax(x: TensorLike, dim: int) -> Tensor:
    """exp(x) / sum(exp(x)) along dim.  (...) -> (...)."""
    return _along("softmax", _softmax_rows, x, dim)


def _softmax_rows(x: Tensor) -> Tensor:
    out = kernels.softmax(x.array)
    return record("softmax", out, (x,), lambda g, y: (_softmax_backward(g, y),), keeps_output=True)


def _softmax_backward(g: Tensor, y: Tensor) -> Tensor:
    out = kernels.softmax_backward(kernels.contiguous(g.array), y.array)
    return record("softmax_backward", out, (g, y), None)


def log_softmax(x: TensorLike, dim: int) -> Tensor:
    """X - log(sum(exp(x))) along dim.  (...) -> (...)."""
    return _along("log_softmax", _log_softmax_rows, x, dim)


def _log_softmax_rows(x: Tensor) -> Tensor:
    out = kernels.log_softmax(x.array)
    return record(
        "log_softmax", out, (x,), lambda g, y: (_log_softmax_backward(g, y),), keeps_output=True
    )


def _log_softmax_backward(g: Tensor, y: Tensor) -> Tensor:
    out = kernels.log_softmax_backward(kernels.contiguous(g.array), y.array)
    return record("log_softmax_backward", out, (g, y), None)


def logsumexp(x: TensorLike, dim: int = -1, keepdim: bool = False) -> Tensor:
    """log(sum(exp(x))) along dim, which goes unless keepdim; -inf where all are -inf, slope 0."""
    x = as_real(x)
    dim = axis("logsumexp", dim, x.array.ndim)
    if x.array.ndim == 0:
        x = unsqueeze(x, 0)
    elif dim != x.array.ndim - 1:
        out = logsumexp(transpose(x, dim, -1))
        out = unsqueeze(out, -1)
        out = transpose(out, dim, -1)
        return out if keepdim else out.squeeze(dim)
    x = contiguous(x)
    y = kernels.logsumexp(x.array)

    def vjp(g: Tensor, _: Tensor) -> tuple[Tensor]:
        out = kernels.logsumexp_backward(kernels.contiguous(g.array), x.array, y)
        return (record("logsumexp_backward", out, (g, x), None),)

    result = record("logsumexp", y, (x,), vjp, saved=(x,), keeps_output=True)
    return unsqueeze(result, -1) if keepdim else result
