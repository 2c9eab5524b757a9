"""DataLoader: batches of a dataset, made ahead by workers, in an order that can be resumed."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from rushlight.data.collate import default_collate, default_convert
from rushlight.data.dataset import IterableDataset, has_take, tensors_behind
from rushlight.data.fetch import SAMPLER, Ended, Plan, Task
from rushlight.data.sampler import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    batches,
    index_arrays,
)
from rushlight.data.worker import GRACE, Failure, Inline, ThreadWorker, Worker
from rushlight.random import Generator, draw_seed, mix, stream
from rushlight.tensor import Tensor

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext


SMALL = 4 << 20  # bytes: so much a task of several batches may make
MOST = 32  # batches to a task
MOST_WORKERS = 1024


@dataclass
class _Epoch:
    """Where an iteration stands."""

    seed: int
    samplers: list[list[int]]  # states of the samplers' own generators when it began
    batches: int = 0  # given to the user
    ended: bool = False


class DataLoader:
    """Batches of a dataset.

    Names, defaults and conflicts are PyTorch's. What differs:

    * Workers are threads, which share the dataset, start at once and hand batches over without a
      copy; the kernels and NumPy run beside the training step. For datasets that compute in Python,
      `multiprocessing_context="fork"` (or "spawn", "forkserver") makes them processes.
    * What is random in a dataset or collate_fn (`rl.rand` and the like without a generator) depends
      on the epoch and the batch only, not on the number or kind of workers. `random` and
      `numpy.random` are seeded so in processes only, because threads share them.
    * `state_dict` and `load_state_dict` continue in the middle of an epoch.
    * pin_memory changes nothing: all memory is the CPU's.
    * Rows of tensors (TensorDataset, and Subset of one) in one of the orders that this makes
      itself are copied before they are asked for, by the kernels' threads while these have nothing
      else to do; no worker is started for them. A change in place of the tensors is seen by the
      batches after it, one made through a NumPy array that shares their memory up to 64 batches
      later.
    * persistent_workers=True is refused: workers are started for each epoch.

    With an IterableDataset each worker iterates a copy of its own: see `get_worker_info`.
    Raises: ValueError, TypeError for arguments that conflict or make no sense.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Iterable[Any] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: str | BaseContext | None = None,
        generator: Generator | None = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
    ) -> None:
        _check_workers(num_workers, prefetch_factor, timeout, persistent_workers)
        self.dataset = dataset
        self.iterable = isinstance(dataset, IterableDataset)
        self.num_workers = num_workers
        self.prefetch_factor = prefetch_factor
        self.pin_memory = pin_memory
        self.timeout = timeout
        self.worker_init_fn = worker_init_fn
        self.multiprocessing_context = _context(multiprocessing_context, num_workers)
        self.generator = generator
        self.persistent_workers = persistent_workers
        self._set_order(batch_size, shuffle, sampler, batch_sampler, drop_last)
        self._collate_fn = collate_fn
        default = default_convert if self._single else default_collate
        self.collate_fn = default if collate_fn is None else collate_fn
        self._epoch: _Epoch | None = None  # the latest
        self._loaded: dict[str, Any] | None = None  # a state that the next iteration begins from

    def _set_order(
        self,
        batch_size: int | None,
        shuffle: bool | None,
        sampler: Iterable[Any] | None,
        batch_sampler: Iterable[Any] | None,
        drop_last: bool,
    ) -> None:
        if self.iterable and (shuffle or sampler is not None or batch_sampler is not None):
            raise ValueError(
                "DataLoader: an IterableDataset has an order of its own, which shuffle, sampler "
                "and batch_sampler cannot change"
            )
        if sampler is not None and shuffle:
            raise ValueError("DataLoader: sampler and shuffle exclude each other")
        if batch_sampler is not None:
            if batch_size != 1 or shuffle or sampler is not None or drop_last:
                raise ValueError(
                    "DataLoader: batch_sampler excludes batch_size, shuffle, sampler and drop_last"
                )
            batch_size = None
        elif batch_size is None and drop_last:
            raise ValueError("DataLoader: batch_size=None makes no batches, of which drop_last is")
        if sampler is None and not self.iterable:
            # without a generator of its own it draws from the epoch's seed
            sampler = RandomSampler(self.dataset) if shuffle else SequentialSampler(self.dataset)
        if batch_sampler is None and batch_size is not None:  # checks batch_size and drop_last
            batch_sampler = BatchSampler(() if sampler is None else sampler, batch_size, drop_last)
        self.batch_size, self.drop_last = batch_size, drop_last
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self._single = batch_sampler is None

    def __len__(self) -> int:
        """Number of batches in an epoch.  Raises TypeError where the data has no length."""
        if not self.iterable:
            return len(self.sampler if self.batch_sampler is None else self.batch_sampler)  # type: ignore[arg-type]
        size = len(self.dataset)
        return size if self.batch_size is None else batches(size, self.batch_size, self.drop_last)

    # ---- iterating ----

    def __iter__(self) -> Iterator[Any]:
        """Begin an epoch, or go on in the one that was loaded."""
        state, self._loaded = self._loaded, None
        if state is None or state["seed"] is None:
            seed = draw_seed(self.generator)
            epoch = _Epoch(seed, [_words(g) for g in self._sampler_generators()])
        else:
            epoch = _Epoch(state["seed"], state["samplers"], state["batches"])
        self._epoch = epoch
        plain = self._collate_fn is None and not self._single and not self.iterable
        together = plain and index_arrays(self.batch_sampler) is not None
        plan = self._plan(epoch.seed, together and tensors_behind(self.dataset) is not None)
        rounds = _Rounds(self._tasks(epoch, plan.begins), self.timeout or None)
        rounds.grows = together and has_take(self.dataset)
        return _Iteration(self, epoch, self._run(epoch, plan, rounds))

    def _run(self, epoch: _Epoch, plan: Plan, rounds: _Rounds) -> Iterator[Any]:
        workers: list[Worker] = []
        skip = epoch.batches if self.iterable else 0
        alone = self._needs_no_worker(plan)
        try:
            for number in range(1 if alone else self.num_workers):
                workers.append(Inline(plan) if alone else self._start(plan, number))
            rounds.begin(workers, self._depth(alone))
            while rounds.under_way:
                results = rounds.receive(epoch.batches - skip)
                if not alone or plan.begins:
                    rounds.fill()  # before the batch is used, beside which the next is made
                for result in _noted(results, epoch):
                    if skip > 0:
                        skip -= 1
                    else:
                        epoch.batches += 1
                        yield result
                rounds.fill()
            epoch.ended = True
        finally:
            for worker in workers:
                worker.stop()
            deadline = time.monotonic() + GRACE
            for worker in workers:
                worker.join(deadline)

    def _needs_no_worker(self, plan: Plan) -> bool:
        """Whether the loop makes the batches itself: nobody asked for workers, or they can't help.

        A thread would share the interpreter, and a core with the kernels' threads, to do what these
        do in their pauses.
        """
        threads = self.multiprocessing_context is None and self.worker_init_fn is None
        return self.num_workers == 0 or (plan.begins and threads)

    def _depth(self, alone: bool) -> int:
        if alone:
            return 1
        return 2 if self.prefetch_factor is None else self.prefetch_factor

    def _plan(self, seed: int, begins: bool) -> Plan:
        return Plan(
            dataset=self.dataset,
            iterable=self.iterable,
            single=self._single,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            collate_fn=self._collate_fn,
            worker_init_fn=self.worker_init_fn,
            num_workers=self.num_workers,
            seed=seed,
            begins=begins,
        )

    def _start(self, plan: Plan, number: int) -> Worker:
        if self.multiprocessing_context is None:
            return ThreadWorker(plan, number)
        from rushlight.data.process import ProcessWorker

        return ProcessWorker(plan, number, self.multiprocessing_context)

    def _tasks(self, epoch: _Epoch, begins: bool) -> Callable[[int], Task]:
        """What gives a task of so many batches, of fewer at the end."""
        first = epoch.batches
        if self.iterable:  # what a worker is to skip it reads, but does not collate
            numbers = count()
            return lambda size: [(number, number < first) for number in islice(numbers, size)]
        generator = Generator().manual_seed(mix(epoch.seed, SAMPLER))
        with stream(generator):
            arrays = index_arrays(self.batch_sampler) if begins else None
            sampler: Any = self.sampler if self.batch_sampler is None else self.batch_sampler
            indices = iter(sampler) if arrays is None else arrays
            numbered: Iterator[tuple[int, Any]] = islice(enumerate(indices), first, None)
            if first:  # a sampler that shuffles does it now, from the streams that are there now
                numbered = chain([*islice(numbered, 1)], numbered)

        def task(size: int) -> Task:
            with stream(generator):  # not the user's, whose draws are none of the sampler's
                return list(islice(numbered, size))

        return task

    # ---- resuming ----

    def state_dict(self) -> dict[str, Any]:
        """Where the latest iteration stands: after the last batch that it gave.

        Integers, None and lists of integers. Of an iteration that was left early, too; after one
        that came to its end, the state is that before the next.
        """
        if self._loaded is not None:
            return dict(self._loaded)
        return self._state(self._epoch)

    def _state(self, epoch: _Epoch | None) -> dict[str, Any]:
        epoch = None if epoch is None or epoch.ended else epoch
        now = [_words(g) for g in self._sampler_generators()]
        return {
            **self._identity(),
            "seed": None if epoch is None else epoch.seed,
            "batches": 0 if epoch is None else epoch.batches,
            "generator": None if self.generator is None else _words(self.generator),
            "samplers": now if epoch is None else epoch.samplers,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where a state was taken, of a loader over the same data.

        It gives the batches that would have come next; when there were none left, it ends at once,
        as the loop would have that the state was taken in. The epochs after it are the same as
        well, once the default generator's state is restored (`rl.set_rng_state`).
        Raises: ValueError, by name, for what does not fit this loader.
        """
        missing = self.state_dict().keys() ^ state.keys()
        if missing:
            raise ValueError(f"DataLoader: not a loader's state: {sorted(missing)} do not match")
        for name, mine in self._identity().items():
            if state[name] != mine:
                raise ValueError(
                    f"DataLoader: the state has {name}={state[name]}, this loader {name}={mine}"
                )
        _check_position(state)
        generators = self._sampler_generators()
        if len(generators) != len(state["samplers"]) or (
            (self.generator is None) != (state["generator"] is None)
        ):
            raise ValueError("DataLoader: the state has other generators than this loader")
        if self.generator is not None:
            _set_words(self.generator, state["generator"])
        for generator, words in zip(generators, state["samplers"], strict=True):
            _set_words(generator, words)
        self._loaded = dict(state)

    def _identity(self) -> dict[str, int | None]:
        samples = None
        with suppress(TypeError, NotImplementedError):
            samples = len(self.dataset)
        return {
            "samples": samples,
            "batch_size": self.batch_size,
            "drop_last": int(self.drop_last),
            "shuffle": int(isinstance(self.sampler, RandomSampler)),
            "num_workers": self.num_workers if self.iterable else None,  # it decides the order
        }

    def _sampler_generators(self) -> list[Generator]:
        places = (self.sampler, self.batch_sampler, getattr(self.batch_sampler, "sampler", None))
        found = [getattr(place, "generator", None) for place in places]
        return list(dict.fromkeys(g for g in found if isinstance(g, Generator)))


class _Iteration:
    """One pass over a loader, which knows its own place: others of the loader do not move it."""

    def __init__(self, loader: DataLoader, epoch: _Epoch, batches: Any) -> None:
        self._loader, self._epoch = loader, epoch
        self._batches = batches
        self.close = batches.close

    def __iter__(self) -> _Iteration:
        return self

    def __next__(self) -> Any:
        return next(self._batches)

    def state_dict(self) -> dict[str, Any]:
        """As the loader's, of this pass."""
        return self._loader._state(self._epoch)


class _Rounds:
    """Hands tasks to the workers in turn, and takes results in the same order.

    A task is a batch, or as many small ones as fill a few megabytes: waking a worker, and sharing
    the interpreter with it, takes longer than to copy a small batch together.
    """

    def __init__(self, task: Callable[[int], Task], timeout: float | None) -> None:
        self.task = task
        self.timeout = timeout
        self.turn: deque[Worker] = deque()
        self.under_way: deque[Worker] = deque()
        self.depth = 1  # tasks under way per worker
        self.grows = False  # whether tasks may hold more than a batch once its size is known
        self.size = 1  # batches to a task

    def begin(self, workers: list[Worker], depth: int) -> None:
        """Hand the first tasks to these workers, so many to each."""
        self.turn.extend(workers)
        self.depth = depth
        self.fill()

    def fill(self) -> None:
        """Hand out tasks until every worker has enough or there are no more."""
        while len(self.under_way) < self.depth * len(self.turn):
            task = self.task(self.size)
            if not task:
                return
            self.turn[0].send(task)
            self.under_way.append(self.turn[0])
            self.turn.rotate(-1)

    def receive(self, number: int) -> Iterable[Any]:
        """The batches of the oldest task.

        Raises what a worker raised, with its name and the batch's number.
        """
        worker = self.under_way.popleft()
        where = _place(number)
        try:
            result = worker.receive(self.timeout)
        except Exception as error:
            error.add_note(where)
            raise
        if isinstance(result, Failure):
            raise result.pop(f"{where}, made by {worker.name}")
        if isinstance(result, Ended):
            if worker in self.turn:
                self.turn.remove(worker)
            return []
        if self.grows:
            result = list(result)
            self.size, self.grows = _task_size(result[0]), False
        batches: Iterable[Any] = result
        return batches


def _place(number: int) -> str:
    return f"in batch {number} of the epoch"


def _noted(batches: Iterable[Any], epoch: _Epoch) -> Iterator[Any]:
    """The same; errors of one that is made now say which it was."""
    try:
        yield from batches
    except Exception as error:
        error.add_note(_place(epoch.batches))
        raise


def _task_size(batch: Any) -> int:
    """How many batches like this one are made at once."""
    plain = type(batch) is list and all(type(x) is Tensor for x in batch)
    if not plain or any(x.needs_grad for x in batch):
        return 1
    size = sum(x.array.nbytes for x in batch)
    return min(max(SMALL // size, 1), MOST) if size else 1


def _check_position(state: Mapping[str, Any]) -> None:
    """Refuse what is not where a loader can stand, before anything is changed."""
    good = {
        "seed": state["seed"] is None or _whole(state["seed"]),
        "batches": _whole(state["batches"]),
        "generator": state["generator"] is None or _two_words(state["generator"]),
        "samplers": isinstance(state["samplers"], list) and all(map(_two_words, state["samplers"])),
    }
    for name, fits in good.items():
        if not fits:
            raise ValueError(f"DataLoader: a loader's state cannot have {name}={state[name]!r}")


def _whole(number: Any) -> bool:
    return isinstance(number, int) and 0 <= number < 2**64


def _two_words(words: Any) -> bool:
    return isinstance(words, list) and len(words) == 2 and all(map(_whole, words))


def _words(generator: Generator) -> list[int]:
    return [int(word) for word in generator.state]


def _set_words(generator: Generator, words: list[int]) -> None:
    generator.state[:] = np.array(words, np.uint64)


def _check_workers(
    num_workers: int, prefetch_factor: int | None, timeout: float, persistent_workers: bool
) -> None:
    if not 0 <= num_workers <= MOST_WORKERS:
        raise ValueError(f"DataLoader: num_workers must be 0 to {MOST_WORKERS}, got {num_workers}")
    if timeout < 0:
        raise ValueError(f"DataLoader: timeout must not be negative, got {timeout}")
    if num_workers == 0:
        for name, given in (
            ("prefetch_factor", prefetch_factor is not None),
            ("timeout", timeout > 0),
            ("persistent_workers", persistent_workers),
        ):
            if given:
                raise ValueError(f"DataLoader: {name} is for workers; set num_workers, too")
    if prefetch_factor is not None and prefetch_factor < 1:
        raise ValueError(f"DataLoader: prefetch_factor must be positive, got {prefetch_factor}")
    if persistent_workers:
        raise NotImplementedError(
            "DataLoader: persistent_workers is not supported; workers are started for each epoch, "
            "which takes threads (the default) no time"
        )


def _context(wanted: str | BaseContext | None, num_workers: int) -> BaseContext | None:
    if wanted is None:
        return None
    if num_workers == 0:
        raise ValueError("DataLoader: multiprocessing_context is for workers; set num_workers, too")
    from rushlight.data.process import start_context

    return start_context(wanted)
