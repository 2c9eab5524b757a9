"""Element-wise operations: arithmetic with broadcasting, activations, comparisons.

Shapes: every operand broadcasts to the result's shape under NumPy's rules; gradients are summed
back to the operand's own shape. float32 and float64 run in kernels and are differentiable;
arithmetic on integers and all comparisons go through NumPy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from rushlight import kernels
from rushlight.autograd import new_tensor, record, record_view
from rushlight.errors import DtypeError
from rushlight.kernels import Array, Shape
from rushlight.ops.convert import TensorLike, as_real, as_tensor, host, is_real, pair

if TYPE_CHECKING:
    from rushlight.tensor import Tensor


# ---- arithmetic ----


def sum_to(g: Tensor, shape: Shape) -> Tensor:
    """Sum a broadcast gradient back to the operand's shape."""
    if g.array.shape == shape:
        return g
    added = g.array.ndim - len(shape)
    axes = [*range(added)]
    axes += [added + d for d, n in enumerate(shape) if n == 1 and g.array.shape[added + d] != 1]
    out = kernels.sum_axes(g.array, axes).reshape(shape)
    whole = g.array.shape
    return record("sum_to", out, (g,), lambda h: (expand_to(h, whole),))


def expand_to(x: Tensor, shape: Shape) -> Tensor:
    """X repeated to a shape it broadcasts to, as a view."""
    if x.array.shape == shape:
        return x
    own = x.array.shape
    return record_view("expand", kernels.expanded(x.array, shape), x, lambda g: (sum_to(g, own),))


def _on_integers(name: str, function: Callable[..., Array], *operands: Tensor) -> Tensor:
    if any(x.array.dtype.kind == "f" for x in operands):
        listed = ", ".join(str(x.array.dtype) for x in operands)
        raise DtypeError(f"{name}: no kernel for {listed}; use float32 or float64")
    kernels.broadcast(name, *(x.array.shape for x in operands))
    return new_tensor(function(*(host(x, name) for x in operands)))


def add(x: TensorLike, y: TensorLike, *, alpha: float = 1) -> Tensor:
    """X + alpha * y."""
    if alpha != 1:
        y = mul(y, alpha)
    x, y = pair(x, y)
    if not is_real(x):
        return _on_integers("add", np.add, x, y)
    xs, ys = x.array.shape, y.array.shape
    out = kernels.add(x.array, y.array)
    return record("add", out, (x, y), lambda g: (sum_to(g, xs), sum_to(g, ys)))


def sub(x: TensorLike, y: TensorLike, *, alpha: float = 1) -> Tensor:
    """X - alpha * y."""
    if alpha != 1:
        y = mul(y, alpha)
    x, y = pair(x, y)
    if not is_real(x):
        return _on_integers("sub", np.subtract, x, y)
    xs, ys = x.array.shape, y.array.shape
    out = kernels.sub(x.array, y.array)
    needs_y = y.needs_grad
    return record(
        "sub", out, (x, y), lambda g: (sum_to(g, xs), neg(sum_to(g, ys)) if needs_y else None)
    )


def kept_operands(x: Tensor, y: Tensor) -> tuple[Tensor | None, Tensor | None, tuple[Tensor, ...]]:
    """The operands of a product that its gradient needs, each for the other's, and both to save."""
    kept_x = x if y.needs_grad else None
    kept_y = y if x.needs_grad else None
    return kept_x, kept_y, tuple([kept for kept in (kept_x, kept_y) if kept is not None])


def mul(x: TensorLike, y: TensorLike) -> Tensor:
    """X * y."""
    x, y = pair(x, y)
    if not is_real(x):
        return _on_integers("mul", np.multiply, x, y)

    xs, ys = x.array.shape, y.array.shape
    kept_x, kept_y, saved = kept_operands(x, y)

    def vjp(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        gx = None if kept_y is None else sum_to(mul(g, kept_y), xs)
        gy = None if kept_x is None else sum_to(mul(g, kept_x), ys)
        return gx, gy

    return record("mul", kernels.mul(x.array, y.array), (x, y), vjp, saved=saved)


def div(x: TensorLike, y: TensorLike) -> Tensor:
    """X / y; integers are converted to float32."""
    x, y = pair(x, y)
    x, y = as_real(x), as_real(y)
    xs, ys, needs_x = x.array.shape, y.array.shape, x.needs_grad
    kept = x if y.needs_grad else None

    def vjp(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        gx = sum_to(div(g, y), xs) if needs_x else None
        gy = None if kept is None else sum_to(neg(mul(g, div(kept, mul(y, y)))), ys)
        return gx, gy

    saved = (y,) if kept is None else (x, y)
    return record("div", kernels.div(x.array, y.array), (x, y), vjp, saved=saved)


def pow(x: TensorLike, y: TensorLike) -> Tensor:
    """X to the power y."""
    if isinstance(y, int | float) and y == 2:
        return square(as_real(x) if isinstance(y, float) else x)
    x, y = pair(x, y)
    if not is_real(x):
        return _on_integers("pow", np.power, x, y)

    def vjp(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        gx = gy = None
        if x.needs_grad:  # x ** 0 has slope 0 at x = 0 too, where x ** -1 would be infinite
            slope = where(eq(y, 0), zero_like(y), mul(y, pow(x, sub(y, 1))))
            gx = sum_to(mul(g, slope), x.array.shape)
        if y.needs_grad:  # 0 ** y is flat in y > 0, where log(0) would give NaN
            logarithm = where(eq(x, 0), zero_like(x), log(x))
            gy = sum_to(mul(g, mul(pow(x, y), logarithm)), y.array.shape)
        return gx, gy

    return record("pow", kernels.power(x.array, y.array), (x, y), vjp, saved=(x, y))


def rsub(x: TensorLike, y: TensorLike) -> Tensor:
    """Y - x."""
    return sub(y, x)


def rdiv(x: TensorLike, y: TensorLike) -> Tensor:
    """Y / x."""
    return div(y, x)


def rpow(x: TensorLike, y: TensorLike) -> Tensor:
    """Y to the power x."""
    return pow(y, x)


def floor_divide(x: TensorLike, y: TensorLike) -> Tensor:
    """The largest whole number not above x / y; not differentiable."""
    x, y = pair(x, y)
    _refuse_zero("floor_divide", y)
    return new_tensor(np.asarray(np.floor_divide(host(x, "floor_divide"), host(y, "floor_divide"))))


def remainder(x: TensorLike, y: TensorLike) -> Tensor:
    """X - y * floor(x / y), with the sign of y."""
    x, y = pair(x, y)
    _refuse_zero("remainder", y)
    out = np.asarray(np.remainder(host(x, "remainder"), host(y, "remainder")))
    if not is_real(x):
        return new_tensor(out)

    def vjp(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        gy = None
        if y.needs_grad:
            gy = sum_to(neg(mul(g, floor_divide(x, y))), y.array.shape)
        return sum_to(g, x.array.shape) if x.needs_grad else None, gy

    return record("remainder", out, (x, y), vjp, saved=(x, y))


def _refuse_zero(name: str, y: Tensor) -> None:
    if y.array.dtype.kind != "f" and not host(y, name).all():
        raise ZeroDivisionError(f"{name}: integer division by zero")


def zero_like(x: Tensor) -> Tensor:
    """A zero without axes, of x's dtype."""
    return new_tensor(np.zeros((), x.array.dtype))


def maximum(x: TensorLike, y: TensorLike) -> Tensor:
    """The larger of x and y; NaN wins, equal elements share the gradient."""
    return _extreme("maximum", kernels.maximum, np.maximum, gt, x, y)


def minimum(x: TensorLike, y: TensorLike) -> Tensor:
    """The smaller of x and y; NaN wins, equal elements share the gradient."""
    return _extreme("minimum", kernels.minimum, np.minimum, lt, x, y)


def _extreme(
    name: str,
    kernel: Callable[[Array, Array], Array],
    on_integers: Callable[..., Array],
    wins: Callable[[TensorLike, TensorLike], Tensor],
    x: TensorLike,
    y: TensorLike,
) -> Tensor:
    x, y = pair(x, y)
    if not is_real(x):
        return _on_integers(name, on_integers, x, y)

    def vjp(g: Tensor) -> tuple[Tensor, Tensor]:
        none = zero_like(g)
        shared = where(eq(x, y), mul(g, 0.5), none)
        gx = add(where(wins(x, y), g, none), shared)
        gy = add(where(wins(y, x), g, none), shared)
        return sum_to(gx, x.array.shape), sum_to(gy, y.array.shape)

    return record(name, kernel(x.array, y.array), (x, y), vjp, saved=(x, y))


def clamp(x: TensorLike, min: float | None = None, max: float | None = None) -> Tensor:
    """X kept within [min, max]; the gradient passes where it was within."""
    x = as_tensor(x)
    if min is None and max is None:
        raise ValueError("clamp: min or max must be given")
    low = -np.inf if min is None else min
    high = np.inf if max is None else max
    if any(isinstance(bound, float) for bound in (min, max)):
        x = as_real(x)
    if not is_real(x):
        return _on_integers("clamp", lambda a: np.clip(a, min, max), x)
    bounds = np.array(low, x.array.dtype), np.array(high, x.array.dtype)
    out = kernels.minimum(kernels.maximum(x.array, bounds[0]), bounds[1])

    def vjp(g: Tensor) -> tuple[Tensor]:
        return (where(logical_and(ge(x, low), le(x, high)), g, zero_like(g)),)

    return record("clamp", out, (x,), vjp, saved=(x,), attrs={"min": min, "max": max})


def where(condition: TensorLike, x: TensorLike, y: TensorLike) -> Tensor:
    """X where condition holds, y elsewhere; all three broadcast."""
    condition = as_tensor(condition)
    if condition.array.dtype != np.bool_:
        raise DtypeError(f"where: condition is {condition.array.dtype}, expected bool")
    x, y = pair(x, y)
    mask = condition.array
    if not is_real(x):
        kernels.broadcast("where", mask.shape, x.array.shape, y.array.shape)
        return new_tensor(np.where(mask, host(x, "where"), host(y, "where")))

    xs, ys, needs_x, needs_y = x.array.shape, y.array.shape, x.needs_grad, y.needs_grad

    def vjp(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        none = zero_like(g)
        gx = sum_to(where(condition, g, none), xs) if needs_x else None
        gy = sum_to(where(condition, none, g), ys) if needs_y else None
        return gx, gy

    out = kernels.where(mask, x.array, y.array)
    return record("where", out, (x, y), vjp, saved=(condition,))


def where_method(x: Tensor, condition: TensorLike, other: TensorLike) -> Tensor:
    """`where` with x first."""
    return where(condition, x, other)


def masked_fill(x: TensorLike, mask: TensorLike, value: TensorLike) -> Tensor:
    """Value where mask holds, x elsewhere."""
    return where(mask, value, x)


# ---- functions of one operand ----


def neg(x: TensorLike) -> Tensor:
    """-x."""
    x = as_tensor(x)
    if not is_real(x):
        return _on_integers("neg", np.negative, x)
    return record("neg", kernels.neg(x.array), (x,), lambda g: (neg(g),))


def abs(x: TensorLike) -> Tensor:
    """|x|; the gradient at 0 is 0."""
    x = as_tensor(x)
    if not is_real(x):
        return _on_integers("abs", np.abs, x)
    return record("abs", kernels.absolute(x.array), (x,), lambda g: (mul(g, sign(x)),), saved=(x,))


def sign(x: TensorLike) -> Tensor:
    """-1, 0 or 1; the gradient is 0."""
    x = as_tensor(x)
    if not is_real(x):
        return _on_integers("sign", np.sign, x)
    return record("sign", kernels.sign(x.array), (x,), lambda g: (mul(g, 0.0),))


def exp(x: TensorLike) -> Tensor:
    """E to the power x."""
    x = as_real(x)
    return record("exp", kernels.exp(x.array), (x,), lambda g, y: (mul(g, y),), keeps_output=True)


def log(x: TensorLike) -> Tensor:
    """Natural logarithm; -inf at 0, NaN below."""
    x = as_real(x)
    return record("log", kernels.log(x.array), (x,), lambda g: (div(g, x),), saved=(x,))


def sqrt(x: TensorLike) -> Tensor:
    """Square root."""
    x = as_real(x)
    out = kernels.sqrt(x.array)
    return record("sqrt", out, (x,), lambda g, y: (div(g, mul(y, 2.0)),), keeps_output=True)


def rsqrt(x: TensorLike) -> Tensor:
    """1 / sqrt(x)."""
    return reciprocal(sqrt(x))


def reciprocal(x: TensorLike) -> Tensor:
    """1 / x."""
    return div(1.0, as_real(x))


def square(x: TensorLike) -> Tensor:
    """X * x."""
    x = as_tensor(x)
    return mul(x, x)


def sin(x: TensorLike) -> Tensor:
    """Sine of x in radians."""
    x = as_real(x)
    return record("sin", kernels.sin(x.array), (x,), lambda g: (mul(g, cos(x)),), saved=(x,))


def cos(x: TensorLike) -> Tensor:
    """Cosine of x in radians."""
    x = as_real(x)
    return record("cos", kernels.cos(x.array), (x,), lambda g: (neg(mul(g, sin(x))),), saved=(x,))


def erf(x: TensorLike) -> Tensor:
    """Error function; slope 2 / sqrt(pi) * exp(-x^2)."""
    x = as_real(x)

    def vjp(g: Tensor) -> tuple[Tensor]:
        return (mul(g, mul(exp(neg(mul(x, x))), 2 / np.sqrt(np.pi))),)

    return record("erf", kernels.erf(x.array), (x,), vjp, saved=(x,))


def relu(x: TensorLike, inplace: bool = False) -> Tensor:
    """The larger of x and 0.  (...) -> (...).  inplace changes nothing: use what is returned."""
    x = as_tensor(x)
    if not is_real(x):
        return _on_integers("relu", lambda a: np.maximum(a, 0), x)
    return record("relu", kernels.relu(x.array), (x,), lambda g: (relu_backward(g, x),), saved=(x,))


def tanh(x: TensorLike) -> Tensor:
    """Hyperbolic tangent."""
    x = as_real(x)
    out = kernels.tanh(x.array)
    return record("tanh", out, (x,), lambda g, y: (tanh_backward(g, y),), keeps_output=True)


def sigmoid(x: TensorLike) -> Tensor:
    """Logistic function: the inverse of 1 + exp(-x), without overflow."""
    x = as_real(x)
    out = kernels.sigmoid(x.array)
    return record("sigmoid", out, (x,), lambda g, y: (sigmoid_backward(g, y),), keeps_output=True)


def silu(x: TensorLike, inplace: bool = False) -> Tensor:
    """X * sigmoid(x), element-wise.  (...) -> (...).  inplace as in `relu`.

    Source: arXiv:1702.03118.
    """
    x = as_real(x)
    return record("silu", kernels.silu(x.array), (x,), lambda g: (silu_backward(g, x),), saved=(x,))


def gelu(x: TensorLike, approximate: str = "none") -> Tensor:
    """X times the normal distribution function at x; approximate="tanh" for the tanh form.

    Raises: ValueError for another `approximate`.  Source: arXiv:1606.08415.
    """
    x = as_real(x)
    if approximate == "tanh":
        out = kernels.gelu_tanh(x.array)
        return record("gelu_tanh", out, (x,), lambda g: (gelu_tanh_backward(g, x),), saved=(x,))
    if approximate != "none":
        raise ValueError(f"gelu: approximate must be 'none' or 'tanh', got {approximate!r}")
    return record("gelu", kernels.gelu(x.array), (x,), lambda g: (gelu_backward(g, x),), saved=(x,))


def _fused_backward(
    name: str, kernel: Callable[[Array, Array], Array]
) -> Callable[[Tensor, Tensor], Tensor]:
    def run(g: Tensor, saved: Tensor) -> Tensor:
        return record(name, kernel(g.array, saved.array), (g, saved), None)

    return run


relu_backward = _fused_backward("relu_backward", kernels.relu_backward)
tanh_backward = _fused_backward("tanh_backward", kernels.tanh_backward)
sigmoid_backward = _fused_backward("sigmoid_backward", kernels.sigmoid_backward)
silu_backward = _fused_backward("silu_backward", kernels.silu_backward)
gelu_backward = _fused_backward("gelu_backward", kernels.gelu_backward)
gelu_tanh_backward = _fused_backward("gelu_tanh_backward", kernels.gelu_tanh_backward)

# what a product or a convolution may end with: the function, and its gradient from what it was of
ACTIVATIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "relu": (relu, relu_backward),
    "gelu": (gelu, gelu_backward),
    "gelu_tanh": (lambda x: gelu(x, "tanh"), gelu_tanh_backward),
    "silu": (silu, silu_backward),
}


def check_activation(name: str, activation: str | None) -> None:
    """Raises: ValueError for one that is neither None nor in ACTIVATIONS."""
    if activation is not None and activation not in [*ACTIVATIONS]:
        raise ValueError(f"{name}: activation {activation!r} is not one of {[*ACTIVATIONS]}")


# ---- comparisons and logic: bool, not differentiable ----


def _comparison(
    name: str, function: Callable[..., Any]
) -> Callable[[TensorLike, TensorLike], Tensor]:
    def run(x: TensorLike, y: TensorLike) -> Tensor:
        x, y = pair(x, y)
        kernels.broadcast(name, x.array.shape, y.array.shape)
        return new_tensor(np.asarray(function(host(x, name), host(y, name))))

    run.__name__ = name
    run.__doc__ = f"Element-wise {name}, bool."
    return run


eq, ne = _comparison("eq", np.equal), _comparison("ne", np.not_equal)
lt, le = _comparison("lt", np.less), _comparison("le", np.less_equal)
gt, ge = _comparison("gt", np.greater), _comparison("ge", np.greater_equal)
logical_and = _comparison("logical_and", np.logical_and)
logical_or = _comparison("logical_or", np.logical_or)


def _bitwise(name: str, function: Callable[..., Any]) -> Callable[..., Tensor]:
    def run(x: TensorLike, *others: TensorLike) -> Tensor:
        operands: tuple[Tensor, ...] = pair(x, *others) if others else (as_tensor(x),)
        return _on_integers(name, function, *operands)

    run.__name__ = name
    run.__doc__ = f"Element-wise {name} of integers, or of booleans."
    return run


bitwise_and = _bitwise("bitwise_and", np.bitwise_and)
bitwise_or = _bitwise("bitwise_or", np.bitwise_or)
bitwise_xor = _bitwise("bitwise_xor", np.bitwise_xor)
bitwise_not = _bitwise("bitwise_not", np.invert)


def _predicate(name: str, function: Callable[..., Any]) -> Callable[[TensorLike], Tensor]:
    def run(x: TensorLike) -> Tensor:
        return new_tensor(np.asarray(function(host(as_tensor(x), name))))

    run.__name__ = name
    run.__doc__ = f"Element-wise {name}, bool."
    return run


logical_not, isnan = _predicate("logical_not", np.logical_not), _predicate("isnan", np.isnan)
isinf, isfinite = _predicate("isinf", np.isinf), _predicate("isfinite", np.isfinite)
