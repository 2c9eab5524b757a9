"""Shapes and dtypes: views, copies, joining and cutting.

Views share memory with their input; `reshape`, `flatten`, `contiguous` copy only where they must.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rushlight import dtypes, kernels
from rushlight.autograd import TensorBase, new_tensor, record, record_view
from rushlight.compat import device
from rushlight.dtypes import dtype
from rushlight.errors import ShapeError
from rushlight.kernels import Array, Shape
from rushlight.ops.convert import TensorLike, as_tensor, host, is_real, to_dtype
from rushlight.ops.elementwise import sum_to, where, zero_like

if TYPE_CHECKING:
    from rushlight.tensor import Tensor


def axis(name: str, dim: int, ndim: int) -> int:
    """Dim as an axis in [0, ndim); a tensor without axes has one for this purpose."""
    size = ndim or 1
    if not -size <= dim < size:
        raise IndexError(f"{name}: dim {dim} is out of range for {ndim} axes")
    return dim % size


def cut_axis(name: str, x: Tensor, dim: int) -> int:
    """Dim as an axis of x that can be cut up or joined.  Raises ShapeError where x has none."""
    if x.array.ndim == 0:
        raise ShapeError(f"{name}: expected a tensor with axes, shape is ()")
    return axis(name, dim, x.array.ndim)


def sizes(size: tuple[Any, ...]) -> Shape:
    """A shape given as one sequence or as separate numbers."""
    if len(size) == 1 and not isinstance(size[0], int):
        size = tuple(size[0]) if isinstance(size[0], tuple | list | Sequence) else size
    return tuple(map(operator.index, size))


def _resolve(name: str, array: Array, shape: Shape) -> Shape:
    """Replace -1.  Raises ShapeError when the number of elements differs."""
    size, product, least = array.size, math.prod(shape), min(shape, default=0)
    if least >= 0 and product == size:
        return shape
    if least == -1 and product < 0 and shape.count(-1) == 1 and size % product == 0:
        return tuple([size // -product if n == -1 else n for n in shape])
    raise ShapeError(f"{name}: shape {array.shape} cannot become {shape}")


# ---- views ----


def view(x: TensorLike, *size: Any) -> Tensor:
    """X with another shape, sharing its memory.  Raises ShapeError where that needs a copy."""
    x = as_tensor(x)
    if len(size) == 1 and isinstance(size[0], dtype):
        raise ShapeError("view: changing the dtype is not supported; use .to(dtype)")
    shape = _resolve("view", x.array, sizes(size))
    out = _reshaped_view(x.array, shape)
    if out is None:
        raise ShapeError(
            f"view: shape {x.array.shape} with strides {x.array.strides} cannot become {shape} "
            "without a copy; use .reshape"
        )
    return _view("view", out, x)


def _reshaped_view(array: Array, shape: Shape) -> Array | None:
    if array.flags.c_contiguous:
        return array.reshape(shape)
    try:
        return array.reshape(shape, copy=False)
    except ValueError:
        return None


def _view(name: str, out: Array, x: Tensor) -> Tensor:
    own = x.array.shape
    return record_view(name, out, x, lambda g: (reshape(g, own),))


def reshape(x: TensorLike, shape: Any) -> Tensor:
    """X with another shape: a view where possible, else a copy."""
    x = as_tensor(x)
    shape = _resolve("reshape", x.array, sizes((shape,)))
    out = _reshaped_view(x.array, shape)
    if out is None:
        x = contiguous(x)
        out = x.array.reshape(shape)
    return _view("reshape", out, x)


def reshape_method(x: Tensor, *size: Any) -> Tensor:
    """`reshape` with the sizes as arguments."""
    return reshape(x, sizes(size))


def view_as(x: Tensor, other: Tensor) -> Tensor:
    """`view` with another tensor's shape."""
    return view(x, other.array.shape)


def flatten(x: TensorLike, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """Join the axes from start_dim to end_dim."""
    x = as_tensor(x)
    first = axis("flatten", start_dim, x.array.ndim)
    last = axis("flatten", end_dim, x.array.ndim)
    if first > last:
        raise ShapeError(f"flatten: start_dim {start_dim} lies behind end_dim {end_dim}")
    shape = x.array.shape
    joined = math.prod(shape[first : last + 1])
    return reshape(x, (*shape[:first], joined, *shape[last + 1 :]))


def unflatten(x: TensorLike, dim: int, sizes: Sequence[int]) -> Tensor:
    """Cut one axis into several."""
    x = as_tensor(x)
    dim = axis("unflatten", dim, x.array.ndim)
    shape = x.array.shape
    return reshape(x, (*shape[:dim], *_resolve_part(shape[dim], tuple(sizes)), *shape[dim + 1 :]))


def _resolve_part(size: int, parts: Shape) -> Shape:
    return _resolve("unflatten", np.empty((size,), np.bool_), parts)


def transpose(x: TensorLike, dim0: int, dim1: int) -> Tensor:
    """X with two axes exchanged, a view."""
    x = as_tensor(x)
    dim0, dim1 = axis("transpose", dim0, x.array.ndim), axis("transpose", dim1, x.array.ndim)
    out = x.array.swapaxes(dim0, dim1) if x.array.ndim else x.array
    return record_view("transpose", out, x, lambda g: (transpose(g, dim0, dim1),))


def permute(x: TensorLike, dims: Sequence[int]) -> Tensor:
    """X with its axes in another order, a view."""
    x = as_tensor(x)
    ndim = x.array.ndim
    order = [axis("permute", d, ndim) for d in dims]
    if sorted(order) != list(range(ndim)):
        raise ShapeError(f"permute: {tuple(dims)} does not name each of {ndim} axes once")
    back = np.argsort(order).tolist()
    return record_view("permute", x.array.transpose(order), x, lambda g: (permute(g, back),))


def permute_method(x: Tensor, *dims: Any) -> Tensor:
    """`permute` with the axes as arguments."""
    return permute(x, sizes(dims))


def unsqueeze(x: TensorLike, dim: int) -> Tensor:
    """X with a new axis of size 1."""
    x = as_tensor(x)
    dim = axis("unsqueeze", dim, x.array.ndim + 1)
    shape = x.array.shape
    return _view("unsqueeze", x.array.reshape((*shape[:dim], 1, *shape[dim:])), x)


def squeeze(x: TensorLike, dim: int | Sequence[int] | None = None) -> Tensor:
    """X without its axes of size 1, or without those of them that dim names."""
    x = as_tensor(x)
    ndim = x.array.ndim
    named = range(ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    drop = {axis("squeeze", d, ndim) for d in named}
    shape = tuple(n for d, n in enumerate(x.array.shape) if n != 1 or d not in drop)
    out = _reshaped_view(x.array, shape)
    assert out is not None  # dropping axes of size 1 never needs a copy
    return _view("squeeze", out, x)


def expand(x: TensorLike, *size: Any) -> Tensor:
    """X repeated along axes of size 1 and new leading axes, as a view; -1 keeps a size."""
    x = as_tensor(x)
    wanted = sizes(size)
    shape, added = x.array.shape, len(wanted) - x.array.ndim
    target = tuple(shape[d - added] if n == -1 and d >= added else n for d, n in enumerate(wanted))
    try:
        out = np.broadcast_to(x.array, target)
    except ValueError:
        raise ShapeError(f"expand: shape {shape} cannot be expanded to {wanted}") from None
    return record_view("expand", out, x, lambda g: (sum_to(g, shape),))


def expand_as(x: Tensor, other: Tensor) -> Tensor:
    """`expand` to another tensor's shape."""
    return expand(x, other.array.shape)


# ---- copies and dtypes ----


def repeat(x: TensorLike, *size: Any) -> Tensor:
    """X laid out several times along each axis, a copy."""
    x = as_tensor(x)
    times = sizes(size)
    if len(times) < x.array.ndim:
        raise ShapeError(f"repeat: {len(times)} numbers for {x.array.ndim} axes")
    if min(times, default=0) < 0:
        raise ShapeError(f"repeat: the numbers must not be negative, got {times}")
    shape = (1,) * (len(times) - x.array.ndim) + x.array.shape
    out = reshape(x, shape)
    for d, (count, n) in enumerate(zip(times, shape, strict=True)):
        if count != 1:
            before, after = out.array.shape[:d], out.array.shape[d + 1 :]
            out = reshape(
                expand(unsqueeze(out, d), (*before, count, n, *after)), (*before, count * n, *after)
            )
    return clone(out) if np.may_share_memory(out.array, x.array) else out


def contiguous(x: TensorLike) -> Tensor:
    """X itself when it is row-major without gaps, a copy otherwise."""
    x = as_tensor(x)
    return x if x.array.flags.c_contiguous else clone(x)


def clone(x: TensorLike) -> Tensor:
    """A contiguous copy; the gradient passes through."""
    x = as_tensor(x)
    return record("clone", kernels.copy(x.array), (x,), lambda g: (g,))


def tril(x: TensorLike, diagonal: int = 0) -> Tensor:
    """X with zeros above a diagonal of its last two axes."""
    return _triangle("tril", np.tri, x, diagonal)


def triu(x: TensorLike, diagonal: int = 0) -> Tensor:
    """X with zeros below a diagonal of its last two axes."""
    return _triangle(
        "triu", lambda n, m, k, dtype: np.logical_not(np.tri(n, m, k - 1)), x, diagonal
    )


def _triangle(name: str, triangle: Callable[..., Array], x: TensorLike, diagonal: int) -> Tensor:
    x = as_tensor(x)
    if x.array.ndim < 2:
        raise ShapeError(f"{name}: expected at least two axes, shape is {x.array.shape}")
    mask = new_tensor(triangle(*x.array.shape[-2:], diagonal, dtype=np.bool_))
    if not is_real(x):
        return new_tensor(np.where(mask.array, host(x, name), np.zeros((), x.array.dtype)))
    return where(mask, x, zero_like(x))


def to(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """X in another dtype; devices other than the CPU are refused."""
    wanted = conversion("to", args, kwargs)
    result = x if wanted is None else to_dtype(x, wanted)
    return clone(result) if result is x and kwargs.get("copy") else result


def conversion(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> np.dtype[Any] | None:
    """The dtype among the arguments of `to`, if there is one.

    Raises DeviceError for a device other than the CPU, TypeError for what is neither.
    """
    unknown = set(kwargs) - {"dtype", "device", "other", "copy", "non_blocking"}
    if unknown:
        raise TypeError(f"{name}: unknown arguments {sorted(unknown)}")
    found: np.dtype[Any] | None = None
    for wanted in (*args, *kwargs.values()):
        if isinstance(wanted, dtype):
            found = dtypes.as_dtype(wanted).numpy
        elif isinstance(wanted, TensorBase):
            found = wanted.array.dtype
        elif isinstance(wanted, str):
            device(wanted)
        elif not (wanted is None or isinstance(wanted, bool)):
            raise TypeError(f"{name}: expected a dtype or a device, got {wanted!r}")
    return found


def type_as(x: Tensor, other: Tensor) -> Tensor:
    """X in the dtype of another tensor."""
    return to_dtype(x, other.array.dtype)


def _converter(target: dtype) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        return to_dtype(x, target.numpy)

    run.__doc__ = f"X in {target.name}."
    return run


to_float, to_double = _converter(dtypes.float32), _converter(dtypes.float64)
to_long, to_int, to_bool = (
    _converter(dtypes.int64),
    _converter(dtypes.int32),
    _converter(dtypes.bool_),
)


def to_cpu(x: Tensor) -> Tensor:
    """X itself: everything is on the CPU."""
    return x
