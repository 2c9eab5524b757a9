"""Activations that are composed of others.

inplace is taken for the sake of PyTorch's scripts and changes nothing: use what is returned.
All are element-wise, (...) -> (...), float32 or float64 (integers become float32); a slope at a
point where two pieces meet is the one that PyTorch takes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rushlight import kernels
from rushlight.autograd import record
from rushlight.kernels import Array
from rushlight.ops.convert import TensorLike, as_real
from rushlight.ops.elementwise import add, div, exp, mul, relu, sigmoid, sub, tanh

if TYPE_CHECKING:
    from rushlight.tensor import Tensor


def hardtanh(
    x: TensorLike, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False
) -> Tensor:
    """X kept within [min_val, max_val]; the gradient passes strictly between them.

    Raises: ValueError for min_val > max_val.
    """
    if not min_val <= max_val:
        raise ValueError(f"hardtanh: min_val {min_val} must not exceed max_val {max_val}")
    x = as_real(x)
    low, high = np.array(min_val, x.array.dtype), np.array(max_val, x.array.dtype)
    out = kernels.minimum(kernels.maximum(x.array, low), high)
    attrs = {"min_val": min_val, "max_val": max_val}

    def vjp(g: Tensor) -> tuple[Tensor]:
        return (_where_positive(g, kernels.sub(x.array, low), kernels.sub(high, x.array)),)

    return record("hardtanh", out, (x,), vjp, saved=(x,), attrs=attrs)


def _where_positive(g: Tensor, *tests: Array) -> Tensor:
    """G where every test is positive, 0 elsewhere; in kernels, unlike a comparison."""
    out = g.array
    for test in tests:
        out = kernels.relu_backward(out, test)
    return record("where_positive_backward", out, (g,), lambda h: (_where_positive(h, *tests),))


def relu6(x: TensorLike, inplace: bool = False) -> Tensor:
    """X kept within [0, 6].  Source: arXiv:1704.04861."""
    return hardtanh(x, 0.0, 6.0)


def hardsigmoid(x: TensorLike, inplace: bool = False) -> Tensor:
    """relu6(x + 3) / 6.  Source: arXiv:1905.02244."""
    return div(relu6(add(as_real(x), 3.0)), 6.0)


def hardswish(x: TensorLike, inplace: bool = False) -> Tensor:
    """X * hardsigmoid(x).  Source: arXiv:1905.02244."""
    x = as_real(x)
    return mul(x, hardsigmoid(x))


def _negative_part(x: Tensor) -> Tensor:
    """The smaller of x and 0, with slope 1 at 0, where `relu` has 0."""
    a = x.array
    out = kernels.minimum(a, np.zeros((), a.dtype))

    def vjp(g: Tensor) -> tuple[Tensor]:
        return (sub(g, _where_positive(g, a)),)

    return record("negative_part", out, (x,), vjp, saved=(x,))


def leaky_relu(x: TensorLike, negative_slope: float = 0.01, inplace: bool = False) -> Tensor:
    """X where it is positive, negative_slope * x elsewhere.  Source: Maas, Hannun & Ng 2013."""
    x = as_real(x)
    return add(relu(x), mul(_negative_part(x), negative_slope))


def elu(x: TensorLike, alpha: float = 1.0, inplace: bool = False) -> Tensor:
    """X where it is positive, alpha * (exp(x) - 1) elsewhere.  Source: arXiv:1511.07289."""
    x = as_real(x)
    a, one = x.array, np.ones((), x.array.dtype)
    half = kernels.mul(kernels.minimum(a, np.zeros((), a.dtype)), np.array(0.5, a.dtype))
    # exp(x) - 1 = 2 t / (1 - t) for t = tanh(x / 2), which loses no digits near 0
    t = kernels.tanh(half)
    out = kernels.mul(kernels.div(t, kernels.sub(one, t)), np.array(2 * alpha, a.dtype))

    def vjp(g: Tensor) -> tuple[Tensor]:
        above = _where_positive(g, a)
        return (add(above, mul(sub(g, above), mul(exp(_negative_part(x)), alpha))),)

    out = kernels.add(kernels.relu(a), out)
    return record("elu", out, (x,), vjp, saved=(x,), attrs={"alpha": alpha})


def softplus(x: TensorLike, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta * x)) / beta; x itself where beta * x > threshold."""
    x = as_real(x)
    z = x if beta == 1 else mul(x, beta)
    out = _softplus(z, threshold)
    return out if beta == 1 else div(out, beta)


def _softplus(x: Tensor, threshold: float) -> Tensor:
    a, one = x.array, np.ones((), x.array.dtype)
    u = kernels.exp(kernels.neg(kernels.absolute(a)))
    w = kernels.add(u, one)  # log(1 + u), with the part of u that w has lost
    lost = kernels.div(kernels.sub(kernels.sub(w, one), u), w)
    rest = kernels.sub(kernels.log(w), lost)
    over = kernels.sub(a, np.array(threshold, a.dtype))
    rest = kernels.sub(rest, kernels.relu_backward(rest, over))
    out = kernels.add(kernels.relu(a), rest)

    def vjp(g: Tensor) -> tuple[Tensor]:
        slope = mul(g, sigmoid(x))
        return (add(slope, _where_positive(sub(g, slope), over)),)  # 1 above the threshold

    return record("softplus", out, (x,), vjp, saved=(x,), attrs={"threshold": threshold})


def mish(x: TensorLike, inplace: bool = False) -> Tensor:
    """X * tanh(softplus(x)).  Source: arXiv:1908.08681."""
    x = as_real(x)
    return mul(x, tanh(softplus(x)))
