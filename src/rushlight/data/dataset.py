"""Sets of samples: by index, by iteration, and made of others."""

from __future__ import annotations

import math
import warnings
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Generic, TypeVar

import numpy as np

from rushlight.autograd import new_tensor, total_versions
from rushlight.creation import randperm
from rushlight.data.collate import default_collate
from rushlight.errors import ShapeError
from rushlight.kernels import begin_rows
from rushlight.random import Generator
from rushlight.tensor import Tensor

T_co = TypeVar("T_co", covariant=True)


class Dataset(Generic[T_co]):
    """A map from an index to a sample: subclasses define `__getitem__`, and mostly `__len__`.

    They may define `take(indices)` too, the batch of several samples at once, equal to
    `default_collate([self[i] for i in indices])`; a loader without a collate_fn prefers it, and may
    take several small batches at once. It must not draw random numbers.
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

    def take(self, indices: Sequence[int]) -> list[Tensor]:
        """The batch of these samples."""
        return self.begin_take(indices)()

    def begin_take(self, indices: Sequence[int]) -> Callable[[], list[Tensor]]:
        """What gives the batch of these samples; until it is called idle threads copy them."""
        index = np.array(indices, np.int64)
        if any(x.needs_grad for x in self.tensors):
            return lambda: [x[index] for x in self.tensors]
        before = self.changes()
        begun = [begin_rows(x.array, index) for x in self.tensors]

        def finished() -> list[Tensor]:
            for _, finish in begun:
                finish()
            if self.changes() != before:
                return self.begin_take(indices)()
            return [new_tensor(rows) for rows, _ in begun]

        return finished

    def changes(self) -> int:
        """How often the tensors were changed in place: rows copied before a change are not used."""
        return total_versions(self.tensors)

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
        return self.begin_take(indices)()

    def begin_take(self, indices: Sequence[int]) -> Callable[[], Any]:
        """What gives the batch of these samples."""
        numbers = indices.tolist() if isinstance(indices, np.ndarray) else indices
        return begin(self.dataset, [self.indices[i] for i in numbers])

    def changes(self) -> int:
        """Of the dataset."""
        return _changes(self.dataset)

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
    return _defines(dataset, "take")


def has_begin(dataset: Any) -> bool:
    """Whether a dataset has its batches made by idle threads of the kernels."""
    return _defines(dataset, "begin_take")


def _defines(dataset: Any, name: str) -> bool:
    if type(dataset) is Subset:
        return _defines(dataset.dataset, name)
    for kind in type(dataset).__mro__ if isinstance(dataset, Dataset) else ():
        if name in kind.__dict__:
            return True
        if "__getitem__" in kind.__dict__ or "take" in kind.__dict__:
            return False
    return False


def samples(dataset: Any, indices: Sequence[Any]) -> list[Any]:
    """The samples at these indices, through PyTorch's `__getitems__` where there is one."""
    if hasattr(dataset, "__getitems__"):
        found: list[Any] = dataset.__getitems__(indices)
        return found
    return [dataset[i] for i in indices]


def take(dataset: Any, indices: Sequence[Any]) -> Any:
    """The batch of these samples: the dataset's own, or its samples collated."""
    if has_take(dataset):
        return dataset.take(indices)
    return default_collate(samples(dataset, indices))


def begin(dataset: Any, indices: Sequence[Any]) -> Callable[[], Any]:
    """What gives the batch of these samples, which is begun where the dataset can."""
    if has_begin(dataset):
        begun: Callable[[], Any] = dataset.begin_take(indices)
        return begun
    return lambda: take(dataset, indices)


def begin_several(
    dataset: Any, batches: Sequence[Sequence[Any]]
) -> Callable[[], Iterator[list[Tensor]]]:
    """What gives several batches of tensors, made as one and cut apart."""
    indices: Any
    if isinstance(batches[0], np.ndarray):
        indices = np.concatenate(batches)
    else:
        indices = [i for batch in batches for i in batch]
    before, whole = _changes(dataset), begin(dataset, indices)

    def finished() -> Iterator[list[Tensor]]:
        parts, rows = whole(), sum(map(len, batches))
        if any(x.array.shape[:1] != (rows,) for x in parts):
            shapes = [x.array.shape for x in parts]
            raise ShapeError(f"take: {shapes} for {rows} indices; expected one row for each")
        return _cut(dataset, batches, parts, before)

    return finished


def _cut(
    dataset: Any, batches: Sequence[Sequence[Any]], parts: Sequence[Tensor], before: int
) -> Iterator[list[Tensor]]:
    start = 0
    for indices in batches:
        stop = start + len(indices)
        if _changes(dataset) != before:
            yield take(dataset, indices)
        else:
            yield [new_tensor(x.array[start:stop]) for x in parts]  # each has its own version
        start = stop


def _changes(dataset: Any) -> int:
    return dataset.changes() if has_begin(dataset) else 0


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
