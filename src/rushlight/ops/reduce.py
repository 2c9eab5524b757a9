"""Reductions over one, several or all axes.

dim: an axis, several, or None for all; keepdim leaves reduced axes as 1. Integers go through NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from rushlight import kernels
from rushlight.autograd import new_tensor, record
from rushlight.dtypes import dtype as Dtype
from rushlight.kernels import INT64, Array, Shape
from rushlight.ops.convert import TensorLike, as_real, as_tensor, host, is_real, to_dtype
from rushlight.ops.elementwise import (
    div,
    eq,
    expand_to,
    maximum,
    minimum,
    mul,
    sqrt,
    square,
    sub,
    where,
    zero_like,
)
from rushlight.ops.index import gather
from rushlight.ops.shape import axis, reshape

if TYPE_CHECKING:
    from rushlight.tensor import Tensor

Dim: TypeAlias = "int | Sequence[int] | None"


def axes_of(name: str, dim: Dim, ndim: int) -> tuple[int, ...]:
    """The axes that dim means, each in [0, ndim).  Raises IndexError, ShapeError when repeated."""
    if dim is None or (isinstance(dim, Sequence) and len(dim) == 0):
        return tuple(range(ndim))
    listed = (dim,) if isinstance(dim, int | np.integer) else tuple(dim)
    axes = tuple(axis(name, d, ndim) for d in listed)
    if len(set(axes)) != len(axes):
        raise ValueError(f"{name}: an axis appears twice in dim={dim}")
    return axes if ndim else ()


def _dropped(shape: Shape, axes: Sequence[int]) -> Shape:
    return tuple(n for d, n in enumerate(shape) if d not in axes)


def _scaled_sum(name: str, x: Tensor, axes: tuple[int, ...], keepdim: bool, scale: float) -> Tensor:
    shape = x.array.shape
    out = kernels.sum_axes(x.array, axes, scale)
    kept = out.shape
    if not keepdim:
        out = out.reshape(_dropped(shape, axes))

    def vjp(g: Tensor) -> tuple[Tensor]:
        if scale != 1.0:
            g = mul(g, scale)
        if g.array.ndim and not keepdim:
            g = reshape(g, kept)
        return (expand_to(g, shape),)

    return record(name, out, (x,), vjp, attrs={"dim": axes, "keepdim": keepdim})


def sum(
    x: TensorLike, dim: Dim = None, keepdim: bool = False, *, dtype: Dtype | None = None
) -> Tensor:
    """Sum over axes; integers and booleans add up in int64."""
    x = as_tensor(x)
    if dtype is not None:
        x = to_dtype(x, dtype.numpy)
    axes = axes_of("sum", dim, x.array.ndim)
    if not is_real(x):
        wide = None if x.array.dtype.kind == "f" else INT64
        return new_tensor(np.asarray(host(x, "sum").sum(axes, keepdims=keepdim, dtype=wide)))
    return _scaled_sum("sum", x, axes, keepdim, 1.0)


def mean(x: TensorLike, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Arithmetic mean over axes; NaN over none elements."""
    x = as_real(x)
    axes = axes_of("mean", dim, x.array.ndim)
    count = math.prod([x.array.shape[d] for d in axes])
    return _scaled_sum("mean", x, axes, keepdim, 1.0 / count if count else float("nan"))


def var(x: TensorLike, dim: Dim = None, correction: int = 1, keepdim: bool = False) -> Tensor:
    """Mean squared deviation from the mean, with `correction` taken off the count."""
    x = as_real(x)
    axes = axes_of("var", dim, x.array.ndim)
    count = math.prod([x.array.shape[d] for d in axes])
    deviation = sub(x, mean(x, axes, keepdim=True))
    freedom = float(np.maximum(count - correction, 0))
    return div(sum(square(deviation), axes, keepdim), freedom)


def std(x: TensorLike, dim: Dim = None, correction: int = 1, keepdim: bool = False) -> Tensor:
    """Square root of `var`."""
    return sqrt(var(x, dim, correction, keepdim))


def norm(x: TensorLike, p: float = 2, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Euclidean norm over axes; its gradient at 0 is 0.  Raises ValueError for p other than 2."""
    if p not in (2, 2.0, "fro"):
        raise ValueError(f"norm: p={p} is not supported, only 2; write it with abs, pow and sum")
    x = as_real(x)
    axes = axes_of("norm", dim, x.array.ndim)
    out = kernels.sqrt(kernels.sum_axes(kernels.mul(x.array, x.array), axes))

    def vjp(g: Tensor, y: Tensor) -> tuple[Tensor]:  # x / |x|, and 0 at 0
        return (mul(x, div(g, maximum(y, 1e-30))),)

    result = record("norm", out, (x,), vjp, saved=(x,), keeps_output=True)
    return result if keepdim else reshape(result, _dropped(x.array.shape, axes))


# ---- largest and smallest ----


class ValuesIndices(NamedTuple):
    """The result of `max` and `min` over an axis."""

    values: Tensor
    indices: Tensor


def amax(x: TensorLike, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Largest over axes; equal elements share the gradient."""
    return _extreme("amax", kernels.amax, np.amax, x, dim, keepdim)


def amin(x: TensorLike, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Smallest over axes; equal elements share the gradient."""
    return _extreme("amin", kernels.amin, np.amin, x, dim, keepdim)


def _extreme(
    name: str,
    kernel: Callable[[Array, Sequence[int]], Array],
    on_integers: Callable[..., Any],
    x: TensorLike,
    dim: Dim,
    keepdim: bool,
) -> Tensor:
    x = as_tensor(x)
    axes = axes_of(name, dim, x.array.ndim)
    if not is_real(x):
        return new_tensor(np.asarray(on_integers(host(x, name), axis=axes, keepdims=keepdim)))

    def vjp(g: Tensor, y: Tensor) -> tuple[Tensor]:
        chosen = eq(x, y)
        count = sum(to_dtype(chosen, x.array.dtype), axes, keepdim=True)
        return (where(chosen, div(g, count), zero_like(g)),)

    out, attrs = kernel(x.array, axes), {"dim": axes}
    result = record(name, out, (x,), vjp, saved=(x,), keeps_output=True, attrs=attrs)
    return result if keepdim else reshape(result, _dropped(x.array.shape, axes))


def _extreme_along(
    name: str, index_of: Callable[..., Any], x: Tensor, dim: int, keepdim: bool
) -> ValuesIndices:
    dim = axis(name, dim, x.array.ndim)
    if x.array.ndim and x.array.shape[dim] == 0:
        raise IndexError(f"{name}: axis {dim} of shape {x.array.shape} is empty")
    if x.array.ndim == 0:
        return ValuesIndices(x, new_tensor(np.zeros((), np.int64)))
    indices = new_tensor(np.asarray(index_of(host(x, name), axis=dim, keepdims=True)))
    values = gather(x, dim, indices)
    if not keepdim:
        shape = _dropped(x.array.shape, (dim,))
        return ValuesIndices(reshape(values, shape), reshape(indices, shape))
    return ValuesIndices(values, indices)


def max(x: TensorLike, dim: Any = None, keepdim: bool = False) -> Any:
    """Largest of all elements, `(values, indices)` over one axis, or `maximum` of two tensors."""
    if dim is None:
        return amax(x)
    if not isinstance(dim, int | np.integer):
        return maximum(x, dim)
    return _extreme_along("max", np.argmax, as_tensor(x), int(dim), keepdim)


def min(x: TensorLike, dim: Any = None, keepdim: bool = False) -> Any:
    """Smallest of all elements, `(values, indices)` over one axis, or `minimum` of two tensors."""
    if dim is None:
        return amin(x)
    if not isinstance(dim, int | np.integer):
        return minimum(x, dim)
    return _extreme_along("min", np.argmin, as_tensor(x), int(dim), keepdim)


def argmax(x: TensorLike, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Index of the largest element, the first of equals; not differentiable."""
    return _index_of("argmax", np.argmax, as_tensor(x), dim, keepdim)


def argmin(x: TensorLike, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """Index of the smallest element, the first of equals; not differentiable."""
    return _index_of("argmin", np.argmin, as_tensor(x), dim, keepdim)


def _index_of(
    name: str, function: Callable[..., Any], x: Tensor, dim: int | None, keepdim: bool
) -> Tensor:
    if dim is not None:
        dim = axis(name, dim, x.array.ndim)
    if (x.array.size if dim is None or x.array.ndim == 0 else x.array.shape[dim]) == 0:
        raise IndexError(f"{name}: shape {x.array.shape} has no elements along dim {dim}")
    if x.array.ndim == 0:
        return new_tensor(np.zeros((), np.int64))
    return new_tensor(np.asarray(function(host(x, name), axis=dim, keepdims=keepdim)))


def any(x: TensorLike, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Whether any element is non-zero."""
    x = as_tensor(x)
    axes = axes_of("any", dim, x.array.ndim)
    return new_tensor(np.asarray(np.any(host(x, "any"), axis=axes, keepdims=keepdim)))


def all(x: TensorLike, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """Whether all elements are non-zero."""
    x = as_tensor(x)
    axes = axes_of("all", dim, x.array.ndim)
    return new_tensor(np.asarray(np.all(host(x, "all"), axis=axes, keepdims=keepdim)))
