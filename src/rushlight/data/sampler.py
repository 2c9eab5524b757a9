"""The order in which samples are read.

A sampler without a generator of its own draws one seed from the current generator when an
iteration begins, and everything else from that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from itertools import islice
from typing import Any, Generic, TypeVar

import numpy as np

from rushlight.creation import multinomial, randint, randperm
from rushlight.kernels import Array
from rushlight.ops.convert import as_tensor
from rushlight.random import Generator, draw_seed
from rushlight.tensor import Tensor

T_co = TypeVar("T_co", covariant=True)
_CHUNK = 1024  # indices drawn at once


class Sampler(Generic[T_co]):
    """Indices of samples, or lists of them, in some order: subclasses define `__iter__`."""

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError(f"{type(self).__name__} does not define __iter__")


class SequentialSampler(Sampler[int]):
    """0, 1, 2, ... up to the length of the data."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self.data_source)))

    def arrays(self) -> Iterator[Array]:
        """The same in arrays (N,) of int64."""
        count = len(self.data_source)
        for start in range(0, count, _CHUNK):
            yield np.arange(start, min(start + _CHUNK, count))

    def __len__(self) -> int:
        return len(self.data_source)


class RandomSampler(Sampler[int]):
    """Indices in random order, or drawn with replacement.

    Without replacement, every index comes once before any comes again; this holds 16 bytes per
    sample of the data. With replacement nothing of the data's length is held.
    Raises: TypeError, ValueError for a replacement or num_samples that makes no sense.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: Generator | None = None,
    ) -> None:
        self.data_source = data_source
        self.replacement = replacement
        self._num_samples = num_samples
        self.generator = generator
        if not isinstance(replacement, bool):
            raise TypeError(f"RandomSampler: replacement must be a bool, got {replacement!r}")
        _check_positive("RandomSampler: num_samples", self.num_samples)

    @property
    def num_samples(self) -> int:
        """Number of indices in one iteration."""
        return len(self.data_source) if self._num_samples is None else self._num_samples

    def __iter__(self) -> Iterator[int]:
        for array in self.arrays():
            yield from array.tolist()

    def arrays(self) -> Iterator[Array]:
        """The same in arrays (N,) of int64."""
        count = len(self.data_source)
        _check_positive("RandomSampler: length of the data", count)
        generator = _own(self.generator)
        left = self.num_samples
        while left > 0:
            if self.replacement:
                size = min(left, _CHUNK)
                chosen = randint(count, (size,), generator=generator).numpy()
            else:
                chosen = randperm(count, generator=generator).numpy()[:left]
            left -= len(chosen)
            for start in range(0, len(chosen), _CHUNK):  # as lists they are 8 times as large
                yield chosen[start : start + _CHUNK]

    def __len__(self) -> int:
        return self.num_samples


class SubsetRandomSampler(Sampler[int]):
    """The given indices in random order."""

    def __init__(self, indices: Sequence[int], generator: Generator | None = None) -> None:
        self.indices = indices
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        for i in randperm(len(self.indices), generator=_own(self.generator)).tolist():
            yield self.indices[i]

    def __len__(self) -> int:
        return len(self.indices)


class WeightedRandomSampler(Sampler[int]):
    """Indices drawn with probability proportional to weights, (N,).

    Raises: ValueError for a num_samples, replacement or weights that make no sense.
    """

    def __init__(
        self,
        weights: Any,
        num_samples: int,
        replacement: bool = True,
        generator: Generator | None = None,
    ) -> None:
        _check_positive("WeightedRandomSampler: num_samples", num_samples)
        if not isinstance(replacement, bool):
            raise ValueError(f"WeightedRandomSampler: replacement must be a bool: {replacement!r}")
        array = weights.numpy() if isinstance(weights, Tensor) else np.asarray(weights)
        if array.ndim != 1:
            raise ValueError(f"WeightedRandomSampler: weights must be (N,), got {array.shape}")
        self.weights = as_tensor(array.astype(np.float64))
        self.num_samples = num_samples
        self.replacement = replacement
        self.generator = generator

    def __iter__(self) -> Iterator[int]:
        yield from multinomial(
            self.weights, self.num_samples, self.replacement, generator=_own(self.generator)
        ).tolist()

    def __len__(self) -> int:
        return self.num_samples


class BatchSampler(Sampler[list[int]]):
    """Lists of batch_size indices of another sampler; the last may be shorter, or is dropped.

    Raises: ValueError for a batch_size or drop_last that makes no sense.
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        _check_positive("BatchSampler: batch_size", batch_size)
        if not isinstance(drop_last, bool):
            raise ValueError(f"BatchSampler: drop_last must be a bool, got {drop_last!r}")
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last

    def __iter__(self) -> Iterator[list[int]]:
        indices = iter(self.sampler)
        while batch := list(islice(indices, self.batch_size)):
            if self.drop_last and len(batch) < self.batch_size:
                return
            yield batch

    def __len__(self) -> int:
        return batches(len(self.sampler), self.batch_size, self.drop_last)  # type: ignore[arg-type]


def index_arrays(sampler: Any) -> Iterator[Array] | None:
    """What a BatchSampler gives, in arrays: no Python object per index; None for other samplers."""
    if type(sampler) is BatchSampler and type(sampler.sampler) in (
        RandomSampler,
        SequentialSampler,
    ):
        whole = sampler.sampler.arrays()  # type: ignore[attr-defined]
        return _parts(whole, sampler.batch_size, sampler.drop_last)
    return None


def _parts(arrays: Iterator[Array], size: int, drop_last: bool) -> Iterator[Array]:
    rest = np.zeros(0, np.int64)
    for array in arrays:
        rest = np.concatenate((rest, array)) if rest.size else array
        whole = len(rest) - len(rest) % size
        for start in range(0, whole, size):
            yield rest[start : start + size]
        rest = rest[whole:]
    if rest.size and not drop_last:
        yield rest


def batches(count: int, batch_size: int, drop_last: bool) -> int:
    """How many batches some samples make."""
    return count // batch_size if drop_last else -(-count // batch_size)


def _own(generator: Generator | None) -> Generator:
    return generator or Generator().manual_seed(draw_seed())


def _check_positive(what: str, number: Any) -> None:
    if not isinstance(number, int) or isinstance(number, bool) or number <= 0:
        raise ValueError(f"{what} must be a positive integer, got {number!r}")
