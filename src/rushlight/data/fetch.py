"""Making one batch, with random numbers that depend on the epoch's seed and the batch alone."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from rushlight.data.collate import default_collate, default_convert
from rushlight.data.dataset import begin_rows_of, samples, take, take_several
from rushlight.random import Generator, LazyGenerator, mix, stream

# For each batch its number, and its indices or, of an iterable dataset, whether to skip it.
Task: TypeAlias = list[tuple[int, Any]]

# What a seed is mixed with, so that no two of an epoch's streams are the same.
SAMPLER, BATCH, WORKER, COLLATE = range(4)


@dataclass(frozen=True)
class WorkerInfo:
    """The worker that asks: its number of how many, its seed in this epoch, and its dataset."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


class _Local(threading.local):
    info: WorkerInfo | None = None


_local = _Local()


def get_worker_info() -> WorkerInfo | None:
    """The loader's worker that this is called in, thread or process; None outside of one."""
    return _local.info


def set_worker_info(info: WorkerInfo) -> None:
    """Say which worker this thread is."""
    _local.info = info


class Ended:
    """The answer of a worker whose iterable dataset has no more samples."""


@dataclass
class Plan:
    """What a worker has to know."""

    dataset: Any
    iterable: bool
    single: bool  # samples as they are, not batches of them
    batch_size: int | None  # of an iterable dataset; otherwise the indices say it
    drop_last: bool
    collate_fn: Callable[[Any], Any] | None
    worker_init_fn: Callable[[int], Any] | None
    num_workers: int
    seed: int
    begins: bool = False  # whether batches are rows of tensors, copied by the kernels' threads
    seed_globals: bool = False  # whether `random` and `numpy.random` belong to this worker alone

    def worker_seed(self, number: int) -> int:
        """The seed of a worker in this epoch."""
        return mix(self.seed, WORKER, number)

    def own_dataset(self) -> Any:
        """The dataset, or a worker's own copy of one that is iterated."""
        return copy.copy(self.dataset) if self.iterable else self.dataset


class Maker:
    """Makes batches, in the thread or process that made it."""

    def __init__(self, plan: Plan, dataset: Any, number: int) -> None:
        self.plan = plan
        self.dataset = dataset
        self.number = number
        self.generator = Generator().manual_seed(plan.worker_seed(number))
        self.made = 0
        self.ended = False
        with stream(self.generator):
            if plan.worker_init_fn is not None and plan.num_workers > 0:
                plan.worker_init_fn(number)
            self.samples = iter(dataset) if plan.iterable else iter(())

    def begin(self, task: Task) -> Callable[[], Iterable[Any] | Ended]:
        """Begin a task where the dataset can; what gives the result, as of `make`.

        It may cut batches out of what was made when they are asked for.
        """
        if self.plan.begins:
            return begin_rows_of(self.dataset, [indices for _, indices in task])
        if len(task) > 1:
            return lambda: take_several(self.dataset, [indices for _, indices in task])
        return lambda: self._make_one(*task[0])

    def make(self, task: Task) -> list[Any] | Ended:
        """The batches of a task, None for one to be skipped; `Ended` when there are no more."""
        result = self.begin(task)()
        return result if isinstance(result, Ended) else list(result)

    def _make_one(self, number: int, content: Any) -> list[Any] | Ended:
        if self.plan.iterable:
            batch = self._next(skip=content)
            return batch if isinstance(batch, Ended) else [batch]
        with self._stream(BATCH, number):
            return [self._batch(content)]

    def _batch(self, content: Any) -> Any:
        if self.plan.single:
            return self._collated(self.dataset[content])
        if self.plan.collate_fn is None:
            return take(self.dataset, content)
        return self.plan.collate_fn(samples(self.dataset, content))

    def _next(self, skip: bool) -> Any:
        with self._stream(COLLATE, self.number, self.made):
            size = self.plan.batch_size or 1
            with stream(self.generator):
                chosen = [] if self.ended else list(islice(self.samples, size))
            if not chosen or (self.plan.drop_last and len(chosen) < size):
                self.ended = True
                return Ended()
            self.made += 1
            if skip:
                return None
            return self._collated(chosen[0] if self.plan.single else chosen)

    def _collated(self, content: Any) -> Any:
        if self.plan.collate_fn is not None:
            return self.plan.collate_fn(content)
        if self.plan.single:
            return default_convert(content)
        return default_collate(content)

    def _stream(self, *words: int) -> AbstractContextManager[Generator]:
        if self.plan.seed_globals:
            seed = mix(self.plan.seed, *words)
            random.seed(seed)
            np.random.seed(seed % 2**32)
        return stream(LazyGenerator(lambda: mix(self.plan.seed, *words)))
