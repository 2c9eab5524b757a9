"""Dropout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rushlight import kernels
from rushlight.autograd import record
from rushlight.kernels import Array
from rushlight.ops.convert import TensorLike, as_real
from rushlight.ops.shape import contiguous
from rushlight.random import current

if TYPE_CHECKING:
    from rushlight.tensor import Tensor


def dropout(x: TensorLike, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Each element zero with probability p, the others divided by 1 - p; x when not training.

    inplace changes nothing: use what is returned. Raises: ValueError for p outside [0, 1].
    Source: Srivastava et al. 2014.
    """
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: p must lie in [0, 1], got {p}")
    x = as_real(x)
    if not training or p == 0:
        return x
    x = contiguous(x)
    out, keep = kernels.dropout(x.array, current().state, p)
    return record("dropout", out, (x,), lambda g: (_backward(g, keep, p),), attrs={"p": p})


def _backward(g: Tensor, keep: Array, p: float) -> Tensor:
    out = kernels.dropout_backward(kernels.contiguous(g.array), keep, p)
    return record("dropout_backward", out, (g,), lambda h: (_backward(h, keep, p),))
