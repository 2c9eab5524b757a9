"""Padding: zeros or another constant, the border repeated or mirrored, the other end.

Two linear operations and their transposes: copying into a larger array, and taking the elements of
an axis in another order, some of them several times.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rushlight import kernels
from rushlight.autograd import record
from rushlight.errors import ShapeError
from rushlight.kernels import Array, Shape
from rushlight.ops.convert import TensorLike, as_tensor, is_real

if TYPE_CHECKING:
    from rushlight.tensor import Tensor


def pad(
    input: TensorLike, pad: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    """More elements around, or fewer.  (..., H, W) -> (..., left + H + right, ...).

    input: any dtype.  pad: (left, right) of the last axis, then of the one before it, and so on;
    a negative number takes elements away.
    mode: "constant" puts `value` (0), "replicate" the border, "reflect" what lies mirrored at the
    border element, "circular" what lies at the other end.
    Raises: ShapeError for more numbers than axes, for what a mode cannot fill or where nothing is
    left; ValueError for an odd count of numbers, another mode, or a value with another mode.
    """
    x = as_tensor(input)
    amounts = _amounts(x.array.shape, pad)
    if mode == "constant":
        return _constant(x, amounts, value or 0.0)
    if mode not in _INDEX:
        raise ValueError(f"pad: mode {mode!r} is not 'constant', {', '.join(map(repr, _INDEX))}")
    if value:
        raise ValueError(f"pad: a value of {value} has no meaning in mode {mode!r}")
    for axis, (before, after) in enumerate(amounts):
        if before or after:
            x = take(x, axis, _border(mode, x.array.shape[axis], before, after))
    return x


def _amounts(shape: Shape, pad: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Before and after, for every axis."""
    try:
        numbers = [operator.index(n) for n in pad]
    except TypeError:
        raise ValueError(f"pad: expected a sequence of integers, got {pad!r}") from None
    axes = len(numbers) // 2
    if len(numbers) % 2:
        raise ValueError(f"pad: expected two numbers an axis, got {len(numbers)}: {tuple(pad)}")
    if axes > len(shape):
        raise ShapeError(f"pad: {len(numbers)} numbers for input {shape}")
    amounts = [(0, 0)] * (len(shape) - axes)
    amounts += [(numbers[2 * i], numbers[2 * i + 1]) for i in reversed(range(axes))]
    for n, (before, after) in zip(shape, amounts, strict=True):
        if n + before + after < 0:
            raise ShapeError(f"pad: {tuple(pad)} takes more than input {shape} has")
    return tuple(amounts)


def _constant(x: Tensor, amounts: tuple[tuple[int, int], ...], value: float) -> Tensor:
    shape = x.array.shape
    sizes = tuple(n + a + b for n, (a, b) in zip(shape, amounts, strict=True))
    lies = list(zip(shape, sizes, amounts, strict=True))
    source = tuple(slice(max(-a, 0), max(n - max(-b, 0), 0)) for n, _, (a, b) in lies)
    target = tuple(slice(max(a, 0), max(m - max(b, 0), 0)) for _, m, (a, b) in lies)
    full = kernels.full if is_real(x) else np.full
    out = full(sizes, value, x.array.dtype)
    _copy_part(out[target], x.array[source])
    back = tuple((-a, -b) for a, b in amounts)
    return record("pad", out, (x,), lambda g: (_constant(g, back, 0.0),), attrs={"pad": amounts})


def _copy_part(y: Array, x: Array) -> None:
    if y.size and x.size:
        kernels.copy_into(y, x)


# ---- elements of an axis in another order ----


def _reflected(n: int, before: int, after: int) -> Array:
    if max(before, after) >= n:
        raise ShapeError(f"pad: reflect adds fewer than it has, got {n} for {before}, {after}")
    index = np.abs(np.arange(-before, n + after))
    return np.asarray(np.minimum(index, 2 * (n - 1) - index))


def _replicated(n: int, before: int, after: int) -> Array:
    if n == 0:
        raise ShapeError("pad: replicate has no element to repeat")
    return np.asarray(np.arange(-before, n + after).clip(0, n - 1))


def _circular(n: int, before: int, after: int) -> Array:
    start, end = max(-before, 0), n + min(after, 0)  # what is taken away does not come around
    before, after, n = max(before, 0), max(after, 0), end - start
    if max(before, after) > n:
        raise ShapeError(f"pad: circular goes around at most once, has {n} for {before}, {after}")
    return start + np.arange(-before, n + after) % max(n, 1)


_INDEX: dict[str, Callable[[int, int, int], Array]] = {
    "reflect": _reflected,
    "replicate": _replicated,
    "circular": _circular,
}


@functools.lru_cache(512)
def _border(mode: str, n: int, before: int, after: int) -> Order:
    return Order.of(n, _INDEX[mode](n, before, after))


class Order(NamedTuple):
    """Which elements of an axis of size n make up a new one, as runs of equal steps."""

    n: int
    size: int
    runs: tuple[tuple[slice, slice], ...]  # from, to

    @classmethod
    def of(cls, n: int, index: Array) -> Order:
        """From one element number for every new place."""
        runs, start = [], 0
        steps = np.diff(index)
        while start < len(index):
            step, end = 1, start + 1
            if end < len(index) and steps[start] > 0:
                step = int(steps[start])
                while end < len(index) and steps[end - 1] == step:
                    end += 1
            first = int(index[start])
            source = slice(first, first + step * (end - start - 1) + 1, step)
            runs.append((source, slice(start, end)))
            start = end
        return cls(n, len(index), tuple(runs))


def take(x: Tensor, axis: int, order: Order) -> Tensor:
    """The elements of an axis in another order: (..., n, ...) -> (..., order.size, ...)."""
    empty = kernels.empty if is_real(x) else np.empty
    out = empty(_sized(x.array.shape, axis, order.size), x.array.dtype)
    before = (slice(None),) * axis
    for source, target in order.runs:
        _copy_part(out[(*before, target)], x.array[(*before, source)])
    return record("take", out, (x,), lambda g: (_put(g, axis, order),))


def _put(g: Tensor, axis: int, order: Order) -> Tensor:
    """The transpose of `take`: every element goes back to where it came from, and adds up."""
    out = kernels.full(_sized(g.array.shape, axis, order.n), 0.0, g.array.dtype)
    before = (slice(None),) * axis
    for source, target in order.runs:
        if g.array.size:
            kernels.accumulate(out[(*before, source)], g.array[(*before, target)])
    return record("take_backward", out, (g,), lambda h: (take(h, axis, order),))


def _sized(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])
