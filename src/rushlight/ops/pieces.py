"""Cutting tensors into views of their parts, and joining tensors into one.

The gradients of the parts meet again without a copy where they can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rushlight import kernels
from rushlight.autograd import Partial, record, record_view
from rushlight.errors import ShapeError
from rushlight.kernels import Array, Shape
from rushlight.ops.convert import TensorLike, as_tensor, promoted, to_dtype
from rushlight.ops.shape import axis, cut_axis, squeeze

if TYPE_CHECKING:
    from rushlight.tensor import Tensor


# ---- cutting ----


Layout: TypeAlias = tuple[Shape, np.dtype[Any], tuple[int, ...]]  # shape, dtype, strides


class Pieces(Partial):
    """Gradients of pieces of one tensor, cut by one `split`."""

    __slots__ = ("cuts", "pieces", "strides")

    def __init__(self, layout: Layout, cuts: list[tuple[slice, ...]], i: int, g: Tensor) -> None:
        shape, dtype, self.strides = layout
        super().__init__("split", shape, dtype, g)
        self.cuts, self.pieces = cuts, {i: g}

    def add_to(self, buffer: Array) -> None:
        """Buffer += every piece at its place."""
        for i, g in self.pieces.items():
            kernels.accumulate(buffer[self.cuts[i]], g.array)

    def merge(self, other: Partial) -> Partial:
        """Pieces of one split stay pieces."""
        if (
            isinstance(other, Pieces)
            and other.cuts is self.cuts
            and not self.pieces.keys() & other.pieces.keys()
        ):
            self.pieces.update(other.pieces)
            self.sources += other.sources
            return self
        return super().merge(other)

    def materialise(self) -> Tensor:
        """The buffer that the pieces already tile, or a new one."""
        if len(self.pieces) < len(self.cuts):
            return super().materialise()
        whole = self._common_base()
        if whole is None:
            whole = kernels.empty(self.shape, self.dtype)
            for i, cut in enumerate(self.cuts):
                kernels.copy_into(whole[cut], self.pieces[i].array)
        return record("split_backward", whole, self.sources, None)

    def _common_base(self) -> Array | None:
        """The buffer in which the pieces lie as the parts lie in the whole, if there is one."""
        if len(self.cuts) == 1:  # the gradient itself, which may be pending elsewhere too
            return None
        base = self.pieces[0].array.base
        if not isinstance(base, np.ndarray) or base.dtype != self.dtype:
            return None
        if base.size != math.prod(self.shape) or not base.flags.c_contiguous:
            return None
        if min(self.strides) <= 0:
            return None
        try:
            whole: Array = np.ndarray(self.shape, self.dtype, base, 0, self.strides)
        except (TypeError, ValueError):  # what was split is spread wider than the buffer
            return None
        for i, cut in enumerate(self.cuts):
            piece, place = self.pieces[i].array, whole[cut]
            if piece.base is not base or piece.strides != place.strides:
                return None
            if piece.__array_interface__["data"] != place.__array_interface__["data"]:
                return None
        return whole


def _cut(name: str, x: Tensor, cuts: list[tuple[slice, ...]]) -> list[Tensor]:
    layout = x.array.shape, x.array.dtype, x.array.strides

    def piece(i: int) -> Tensor:
        return record_view(name, x.array[cuts[i]], x, lambda g: (Pieces(layout, cuts, i, g),))

    return [piece(i) for i in range(len(cuts))]


def split(x: TensorLike, split_size: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Views of consecutive parts of an axis: of one size (the last may be smaller), or of many."""
    x = as_tensor(x)
    dim = cut_axis("split", x, dim)
    length = x.array.shape[dim]
    if isinstance(split_size, int):
        if split_size <= 0:
            raise ValueError(f"split: the size must be positive, got {split_size}")
        starts = list(range(0, max(length, 1), split_size))
        ends = [min(start + split_size, length) for start in starts]
    else:
        ends = np.cumsum(split_size).tolist()
        starts = [0, *ends[:-1]]
        if not ends or ends[-1] != length or min(split_size) < 0:
            raise ShapeError(f"split: sizes {list(split_size)} do not add up to {length}")
    before = (slice(None),) * dim
    return tuple(
        _cut("split", x, [(*before, slice(a, b)) for a, b in zip(starts, ends, strict=True)])
    )


def chunk(x: TensorLike, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    """At most `chunks` views of equal parts of an axis."""
    x = as_tensor(x)
    if chunks <= 0:
        raise ValueError(f"chunk: the number of chunks must be positive, got {chunks}")
    length = x.array.shape[cut_axis("chunk", x, dim)]
    return split(x, max(-(-length // chunks), 1), dim)


def unbind(x: TensorLike, dim: int = 0) -> tuple[Tensor, ...]:
    """A view per index of an axis, without that axis."""
    x = as_tensor(x)
    dim = cut_axis("unbind", x, dim)
    if x.array.shape[dim] == 0:
        return ()
    return tuple(squeeze(piece, dim) for piece in split(x, 1, dim))


def narrow(x: TensorLike, dim: int, start: int, length: int) -> Tensor:
    """A view of `length` indices of an axis from `start` on."""
    x = as_tensor(x)
    dim = cut_axis("narrow", x, dim)
    if start < 0 or length < 0 or start + length > x.array.shape[dim]:
        raise IndexError(
            f"narrow: [{start}, {start + length}) lies outside axis {dim} of {x.array.shape}"
        )
    cut = (*(slice(None),) * dim, slice(start, start + length))
    return part(x, cut, "narrow")


def part(x: Tensor, index: Any, name: str = "getitem") -> Tensor:
    """The view x[index] of a basic index; its gradient is added at its place."""
    shape, kind = x.array.shape, x.array.dtype

    def vjp(g: Tensor) -> tuple[Partial]:
        def add(buffer: Array) -> None:
            kernels.accumulate(buffer[index], g.array)

        return (Partial(name, shape, kind, g, add),)

    return record_view(name, x.array[index], x, vjp)


# ---- joining ----


def cat(tensors: Sequence[TensorLike], dim: int = 0) -> Tensor:
    """Tensors one behind the other along an axis; all other sizes must agree."""
    parts = _one_dtype("cat", tensors)
    dim = cut_axis("cat", parts[0], dim)
    shape = list(parts[0].array.shape)
    for x in parts[1:]:
        other = x.array.shape
        if len(other) != len(shape) or any(
            n != m for d, (n, m) in enumerate(zip(shape, other, strict=True)) if d != dim
        ):
            listed = ", ".join(str(x.array.shape) for x in parts)
            raise ShapeError(f"cat: sizes may differ in axis {dim} only, got {listed}")
    lengths = [x.array.shape[dim] for x in parts]
    shape[dim] = int(np.sum(lengths))
    out = _empty(tuple(shape), parts[0].array.dtype)
    before, start = (slice(None),) * dim, 0
    for x, length in zip(parts, lengths, strict=True):
        kernels.copy_into(out[(*before, slice(start, start + length))], x.array)
        start += length
    return record("cat", out, tuple(parts), lambda g: split(g, lengths, dim), attrs={"dim": dim})


def stack(tensors: Sequence[TensorLike], dim: int = 0) -> Tensor:
    """Tensors of one shape along a new axis."""
    parts = _one_dtype("stack", tensors)
    shape = parts[0].array.shape
    if any(x.array.shape != shape for x in parts):
        listed = ", ".join(str(x.array.shape) for x in parts)
        raise ShapeError(f"stack: shapes must be equal, got {listed}")
    dim = axis("stack", dim, len(shape) + 1)
    out = _empty((*shape[:dim], len(parts), *shape[dim:]), parts[0].array.dtype)
    places: list[Any] = [(*(slice(None),) * dim, i, ...) for i in range(len(parts))]
    for place, x in zip(places, parts, strict=True):
        kernels.copy_into(out[place], x.array)

    def vjp(g: Tensor) -> tuple[Tensor, ...]:
        return tuple([part(g, place, "unstack") for place in places])

    return record("stack", out, tuple(parts), vjp, attrs={"dim": dim})


def _one_dtype(name: str, tensors: Sequence[TensorLike]) -> list[Tensor]:
    parts = [as_tensor(x) for x in tensors]
    if not parts:
        raise ShapeError(f"{name}: expected at least one tensor")
    kind = parts[0].array.dtype
    for x in parts[1:]:
        if x.array.dtype != kind:
            kind = promoted(np.empty(1, kind), x.array)
    return [to_dtype(x, kind) for x in parts]


def _empty(shape: Shape, kind: np.dtype[Any]) -> Array:
    return kernels.empty(shape, kind) if kind in kernels.KERNEL_DTYPES else np.empty(shape, kind)
