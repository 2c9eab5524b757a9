"""Sets of samples: by index, by iteration, and made of others."""

from __future__ import annotations

import math
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from typing import Any, Generic, TypeVar

import numpy as np

from rushlight.autograd import new_tensor, total_versions
from rushlight.creation import randperm
from rushlight.data.collate import default_collate
from rushlight.errors import ShapeError
from rushlight.kernels import Array, begin_rows, rows
from rushlight.random import Generator
from rushlight.tensor import Tensor

T_co = TypeVar("T_co", covariant=True)


class Dataset(Generic[T_co]):
    """A map from an index to a sample: subclasses define `__getitem__`, and mostly `__len__`.

    They may define `take(indices)` too, the batch of several samples at once, equal to
    `default_collate([self[i] for i in indices])`; a loader without a collate_fn prefers it, and in
    an order of its own making takes several small batches at once. It must not draw random numbers.
    """

    def __getitem__(self, index: Any) -> T_co:
        raise NotImplementedError(f"{type(self).__name__} does not define __getitem__")

    def __add__(self, other: Dataset[Any]) -> Dataset[Any]:
        return ConcatDataset([self, other])


class IterableDataset(Dataset[T_co]):
    """Samples in the order in which `__iter__` gives them.

    With workers, each iterates a copy of its own: divide the samples by `get_worker_info()`, or
    every sample comes once per worker.
    """

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} does not define __iter__")

    def __add__(self, other: Dataset[Any]) -> ChainDataset:
        return ChainDataset([self, other])


class TensorDataset(Dataset[tuple[Tensor, ...]]):
    """Sample i is row i of every tensor.  Tensors: (N, ...) each; a sample: a tuple of (...).

    Raises: ShapeError when their first sizes differ.
    """

    def __init__(self, *tensors: Tensor) -> None:
        if not tensors or any(x.ndim == 0 for x in tensors):
            raise ShapeError("TensorDataset: expected one or more tensors with at least one axis")
        if any(len(x) != len(tensors[0]) for x in tensors):
            shapes = ", ".join(str(tuple(x.shape)) for x in tensors)
            raise ShapeError(f"TensorDataset: the first sizes must be equal, got {shapes}")
        self.tensors = tensors

    def __getitem__(self, index: Any) -> tuple[Tensor, ...]:
        return tuple(x[index] for x in self.tensors)

    def take(self, indices: Sequence[Any]) -> Any:
        """The batch of these samples."""
        index = whole_numbers(indices)
        if index is None:  # slices, lists, what is no index
            return default_collate([self[i] for i in indices])
        return [
            x[index] if x.needs_grad else new_tensor(rows(x.array, index)) for x in self.tensors
        ]

    def __len__(self) -> int:
        return len(self.tensors[0])


class Subset(Dataset[T_co]):
    """The samples of a dataset at some indices."""

    def __init__(self, dataset: Dataset[T_co], indices: Sequence[int]) -> None:
        self.dataset = dataset
        self.indices = indices

    def __getitem__(self, index: int) -> T_co:
        return self.dataset[self.indices[index]]

    def take(self, indices: Sequence[int]) -> Any:
        """The batch of these samples."""
        return take(self.dataset, [self.indices[i] for i in indices])

    def __len__(self) -> int:
        return len(self.indices)


class ConcatDataset(Dataset[T_co]):
    """Datasets one after another.  Raises: ValueError for none, TypeError for an iterable one."""

    def __init__(self, datasets: Iterable[Dataset[T_co]]) -> None:
        self.datasets = list(datasets)
        if not self.datasets:
            raise ValueError("ConcatDataset: expected at least one dataset")
        if any(isinstance(x, IterableDataset) for x in self.datasets):
            raise TypeError("ConcatDataset: an IterableDataset has no indices; use ChainDataset")
        self.cumulative_sizes = list(accumulate(map(_length, self.datasets)))

    def __getitem__(self, index: int) -> T_co:
        if not -len(self) <= index < len(self):
            raise IndexError(f"ConcatDataset: index {index} of {len(self)} samples")
        index %= len(self)
        which = bisect_right(self.cumulative_sizes, index)
        return self.datasets[which][index - (self.cumulative_sizes[which - 1] if which else 0)]

    def __len__(self) -> int:
        return self.cumulative_sizes[-1]


class ChainDataset(IterableDataset[Any]):
    """Iterable datasets one after another.  Raises: TypeError on meeting one of another kind."""

    def __init__(self, datasets: Iterable[Dataset[Any]]) -> None:
        self.datasets = datasets

    def __iter__(self) -> Iterator[Any]:
        for dataset in self.datasets:
            if not isinstance(dataset, IterableDataset):
                raise TypeError(f"ChainDataset: {type(dataset).__name__} is no IterableDataset")
            yield from dataset

    def __len__(self) -> int:
        return sum(map(_length, self.datasets))


def _length(dataset: Any) -> int:
    return len(dataset)  # datasets have a length by convention, not by type


def has_take(dataset: Any) -> bool:
    """Whether a dataset makes batches itself.

    A subclass that overrides `__getitem__` alone does not: the `take` that it inherits would pass
    its samples by.
    """
    for kind in type(dataset).__mro__ if isinstance(dataset, Dataset) else ():
        if kind is Subset:
            return has_take(dataset.dataset)
        if "take" in kind.__dict__:
            return True
        if not _SAMPLES.isdisjoint(kind.__dict__):
            return False
    return False


_SAMPLES = {"__getitem__", "__getitems__"}


def samples(dataset: Any, indices: Sequence[Any]) -> list[Any]:
    """The samples at these indices, through PyTorch's `__getitems__` where there is one."""
    if hasattr(dataset, "__getitems__"):
        found: list[Any] = dataset.__getitems__(indices)
        return found
    if isinstance(dataset, Subset) and _inherits(dataset, Subset):
        return samples(dataset.dataset, [dataset.indices[i] for i in indices])
    return [dataset[i] for i in indices]


def take(dataset: Any, indices: Sequence[Any]) -> Any:
    """The batch of these samples: the dataset's own, or its samples collated."""
    if has_take(dataset):
        return dataset.take(indices)
    return default_collate(samples(dataset, indices))


def whole_numbers(indices: Any) -> Array | None:
    """Indices as an array (N,) of int64; None when they are none, or anything else."""
    try:
        array = np.array(indices if isinstance(indices, Sequence | np.ndarray) else list(indices))
    except (TypeError, ValueError):
        return None
    fits = array.ndim == 1 and array.dtype.kind in "iu" and array.dtype != np.uint64
    return array.astype(np.int64) if fits else None


def take_several(dataset: Any, batches: Sequence[Sequence[Any]]) -> list[list[Tensor]]:
    """Several batches of tensors made by one `take`, cut apart."""
    whole, count = dataset.take([i for indices in batches for i in indices]), sum(map(len, batches))
    if any(x.array.shape[:1] != (count,) for x in whole):
        shapes = [x.array.shape for x in whole]
        raise ShapeError(f"take: {shapes} for {count} indices; expected one row for each")
    cuts = accumulate(map(len, batches), initial=0)
    return [
        [new_tensor(x.array[start:stop]) for x in whole]  # disjoint: each has its own version
        for start, stop in pairwise(cuts)
    ]


# ---- rows of tensors, begun before they are asked for ----


def tensors_behind(dataset: Any) -> TensorDataset | None:
    """The TensorDataset whose rows a dataset's samples are, through Subsets; None for others."""
    while isinstance(dataset, Subset) and _inherits(dataset, Subset):
        dataset = dataset.dataset
    known = isinstance(dataset, TensorDataset) and _inherits(dataset, TensorDataset)
    return dataset if known else None


def _inherits(dataset: Any, kind: type) -> bool:
    """Whether samples and batches are made as by this class."""
    own = type(dataset).__mro__
    made = {*_SAMPLES, "take"}
    return all(made.isdisjoint(c.__dict__) for c in own[: own.index(kind)])


def begin_rows_of(dataset: Any, batches: Sequence[Array]) -> Callable[[], Iterator[Any]]:
    """What gives batches of `tensors_behind`; until then idle threads copy their rows as one.

    A batch is cut out when it is asked for; where a tensor has been changed since, it is read
    again.
    """
    base, index = tensors_behind(dataset), _rows_behind(dataset, np.concatenate(batches))
    assert base is not None
    tensors, before, begun = base.tensors, _state(base), []
    if index is not None and not any(x.needs_grad for x in tensors):
        with suppress(IndexError):  # which the batch that has it will raise
            begun = [begin_rows(x.array, index) for x in tensors]

    def finished() -> Iterator[Any]:
        for _, finish in begun:
            finish()
        cuts = accumulate(map(len, batches), initial=0)
        for batch, (start, stop) in zip(batches, pairwise(cuts), strict=True):
            if begun and base.tensors is tensors and _state(base) == before:
                yield [new_tensor(whole[start:stop]) for whole, _ in begun]
            else:
                yield take(dataset, batch.tolist())

    return finished


def _rows_behind(dataset: Any, index: Array) -> Array | None:
    """The numbers of samples in `tensors_behind`; None when a Subset has something else."""
    if not isinstance(dataset, Subset):
        return index
    inner = whole_numbers([dataset.indices[i] for i in index.tolist()])
    return None if inner is None else _rows_behind(dataset.dataset, inner)


def _state(dataset: TensorDataset) -> tuple[Any, ...]:
    """Another one when a row read now may not be one that was read before."""
    return total_versions(dataset.tensors), *[x.needs_grad for x in dataset.tensors]


def random_split(
    dataset: Dataset[T_co], lengths: Sequence[float], generator: Generator | None = None
) -> list[Subset[T_co]]:
    """Divide a dataset at random into parts of these lengths, or of these fractions of it.

    Fractions are rounded down, and what is left over goes one by one to the first parts.
    Raises: ValueError when lengths do not add up to the dataset's, or a fraction is out of [0, 1].
    Source: PyTorch's `random_split`.
    """
    count = _length(dataset)
    sizes = list(lengths)
    if math.isclose(sum(sizes), 1) and sum(sizes) <= 1:
        for number, fraction in enumerate(sizes):
            if not 0 <= fraction <= 1:
                raise ValueError(f"random_split: fraction {number} is {fraction}, not in [0, 1]")
        sizes = [math.floor(count * fraction) for fraction in sizes]
        for i in range(count - int(sum(sizes))):
            sizes[i % len(sizes)] += 1
        for number, size in enumerate(sizes):
            if size == 0:
                warnings.warn(f"random_split: part {number} is empty", stacklevel=2)
    if sum(sizes) != count or any(size < 0 or size != int(size) for size in sizes):
        raise ValueError(f"random_split: lengths {sizes} do not add up to the {count} samples")
    indices = randperm(count, generator=generator).tolist()
    ends = accumulate(map(int, sizes))
    return [
        Subset(dataset, indices[end - int(size) : end])
        for end, size in zip(ends, sizes, strict=True)
    ]
