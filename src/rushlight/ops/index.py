"""Reading and writing parts of tensors by index; embedding.

Integers, slices, None and Ellipsis make views. Integer arrays and boolean masks copy, through
NumPy; repeated indices add up in the gradient.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from rushlight import kernels
from rushlight.autograd import (
    Partial,
    TensorBase,
    changed_in_place,
    is_grad_enabled,
    record,
)
from rushlight.errors import DtypeError, GraphError, ShapeError
from rushlight.kernels import INT64, Array, Shape
from rushlight.ops.convert import TensorLike, as_tensor, host, to_dtype
from rushlight.ops.pieces import part
from rushlight.ops.shape import axis, cut_axis

if TYPE_CHECKING:
    from rushlight.tensor import Tensor


def _plain(name: str, index: Any) -> tuple[Any, bool]:
    """The index with tensors as arrays, and whether it is basic: no arrays or masks.

    Lists and arrays are copied: nobody would notice if they changed before the gradient is made.
    """
    items = index if isinstance(index, tuple) else (index,)
    plain = [_plain_item(name, item) for item in items]
    basic = not any(isinstance(item, bool | np.ndarray) for item in plain)
    if basic and Ellipsis not in plain:
        plain.append(Ellipsis)  # a view even where no axis is left
    return tuple(plain), basic


def _plain_item(name: str, item: Any) -> Any:
    if isinstance(item, slice):
        item = slice(_bound(item.start), _bound(item.stop), _bound(item.step))
        if item.step is not None and item.step <= 0:
            raise ValueError(f"{name}: the step must be positive, got {item.step}")
    elif isinstance(item, list):
        item = np.array(item) if item else np.zeros(0, np.int64)
    elif isinstance(item, np.ndarray):
        item = item.copy()
    elif isinstance(item, TensorBase):
        item = item.array  # one that changes is noticed
    if isinstance(item, np.ndarray) and item.ndim == 0 and item.dtype.kind in "iu":
        kernels.on_host(f"{name}: an index that is a tensor")
        item = int(item)
    return item


def _bound(n: Any) -> int | None:
    return n if n is None or type(n) is int else operator.index(n)


def getitem(x: Tensor, index: Any) -> Tensor:
    """x[index]."""
    plain, basic = _plain("getitem", index)
    try:
        if basic:
            return part(x, plain)
        first = plain[0]
        if len(plain) == 1 and isinstance(first, np.ndarray) and _are_rows(x.array, first):
            out = kernels.rows(x.array, first)
        else:
            out = _pooled(host(x, "getitem")[plain])
    except IndexError as error:
        raise IndexError(f"getitem: shape {x.array.shape}: {error}") from None
    shape, kind = x.array.shape, x.array.dtype
    items = index if isinstance(index, tuple) else (index,)
    saved = tuple(item for item in items if isinstance(item, TensorBase))

    def vjp(g: Tensor) -> tuple[Partial]:
        return (Partial("getitem", shape, kind, g, lambda buffer: _add_at(buffer, plain, g.array)),)

    return record("getitem", out, (x,), vjp, saved=saved)


def _are_rows(x: Array, index: Array) -> bool:
    return x.ndim > 0 and index.ndim == 1 and index.dtype.kind in "iu"


def _add_at(buffer: Array, index: Any, values: Array) -> None:
    kernels.on_host("getitem")
    np.add.at(buffer, index, values)


def _pooled(array: Array) -> Array:
    return kernels.copy(array) if array.dtype in kernels.KERNEL_DTYPES else array


def _fitted(value: Array, shape: Shape) -> Array:
    """The value without leading axes of size 1 that the part it is assigned to lacks."""
    surplus = max(value.ndim - len(shape), 0)
    if value.shape[:surplus] == (1,) * surplus:
        value = value.reshape(value.shape[surplus:])
    kernels.check_fits("setitem", value.shape, shape)
    return value


def setitem(x: Tensor, index: Any, value: TensorLike) -> None:
    """x[index] = value, in place and outside the graph.

    Raises GraphError when x or value is being recorded; build the result with `where`, `cat` or
    `masked_fill` then.
    """
    value = as_tensor(value, x.array.dtype)
    if is_grad_enabled() and (x.needs_grad or value.needs_grad):
        raise GraphError(
            "setitem: assigning into a part is not differentiable; use where, masked_fill, cat or "
            "stack, or no_grad() when no gradient is wanted"
        )
    plain, basic = _plain("setitem", index)
    try:
        if basic:
            place = x.array[plain]
            kernels.copy_into(place, kernels.apart(_fitted(value.array, place.shape), place))
        else:
            host(x, "setitem")[plain] = value.array
    except IndexError as error:
        raise IndexError(f"setitem: shape {x.array.shape}: {error}") from None
    except ShapeError:
        raise
    except ValueError as error:  # NumPy's, of shapes
        raise ShapeError(f"setitem: {error}") from None
    changed_in_place(x)


def integer_index(name: str, index: TensorLike) -> Tensor:
    """An index as int64.  Raises DtypeError when it is not of integers."""
    index = as_tensor(index)
    if index.array.dtype.kind not in "iu":
        raise DtypeError(f"{name}: the index is {index.array.dtype}, expected int64")
    return to_dtype(index, INT64)


def embedding(index: TensorLike, weight: Tensor, padding_idx: int | None = None) -> Tensor:
    """Rows of a table.  index (...) integers, weight (V, D) -> (..., D).

    padding_idx: a row that gets no gradient.
    Raises: IndexError for an index outside [0, V), ShapeError, DtypeError.
    """
    index, weight = integer_index("embedding", index), as_tensor(weight)
    table = weight.array
    if table.ndim != 2:
        raise ShapeError(f"embedding: weight has shape {table.shape}, expected (V, D)")
    rows = index.array
    skip = -1 if padding_idx is None else axis("embedding", padding_idx, table.shape[0])

    def scatter(g: Tensor) -> Any:
        gradient = kernels.contiguous(g.array)
        return lambda buffer: kernels.embedding_backward(buffer, gradient, rows, skip)

    return record(
        "embedding",
        kernels.embedding(kernels.contiguous(table), rows),
        (weight,),
        lambda g: (Partial("embedding", table.shape, table.dtype, g, scatter(g)),),
        saved=(index,),
    )


def gather(x: TensorLike, dim: int, index: TensorLike) -> Tensor:
    """out[i][j] = x[index[i][j]][j] for dim 0 and so on; index has x's rank."""
    x, index = as_tensor(x), integer_index("gather", index)
    dim = cut_axis("gather", x, dim)
    chosen = index.array
    if chosen.ndim != x.array.ndim:
        raise ShapeError(f"gather: index {chosen.shape} and input {x.array.shape} differ in rank")
    for d, (n, m) in enumerate(zip(chosen.shape, x.array.shape, strict=True)):
        if d != dim and n > m:
            raise ShapeError(
                f"gather: index {chosen.shape} exceeds input {x.array.shape} in axis {d}"
            )
    check_range("gather", chosen, x.array.shape[dim])
    where = tuple(
        chosen
        if d == dim
        else np.arange(n).reshape([-1 if e == d else 1 for e in range(chosen.ndim)])
        for d, n in enumerate(chosen.shape)
    )
    shape, kind = x.array.shape, x.array.dtype

    def vjp(g: Tensor) -> tuple[Partial]:
        return (Partial("gather", shape, kind, g, lambda buffer: _add_at(buffer, where, g.array)),)

    return record("gather", _pooled(host(x, "gather")[where]), (x,), vjp, saved=(index,))


def check_range(name: str, index: Array, size: int) -> None:
    """Raise IndexError naming the first index outside [0, size)."""
    bad = (index < 0) | (index >= size)
    if bad.any():
        first = tuple(int(i[0]) for i in np.nonzero(np.atleast_1d(bad)))
        value = int(np.atleast_1d(index)[first])
        raise IndexError(f"{name}: index {value} at {first} is outside [0, {size})")


def index_select(x: TensorLike, dim: int, index: TensorLike) -> Tensor:
    """Slices of an axis in the order of a 1-D index."""
    x, index = as_tensor(x), integer_index("index_select", index)
    dim = cut_axis("index_select", x, dim)
    if index.array.ndim != 1:
        raise ShapeError(f"index_select: index has shape {index.array.shape}, expected one axis")
    check_range("index_select", index.array, x.array.shape[dim])
    return getitem(x, (*(slice(None),) * dim, index))
