"""Random numbers: a generator is a seed and a counter; threads never change the numbers."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from rushlight import kernels
from rushlight.autograd import new_tensor

if TYPE_CHECKING:
    from rushlight.tensor import Tensor


class Generator:
    """Philox state: `state` is (seed, blocks used), uint64.  Every draw moves the second."""

    def __init__(self, device: str = "cpu") -> None:
        self.state = kernels.empty((2,), kernels.UINT64)
        self.manual_seed(67280421310721)

    def manual_seed(self, seed: int) -> Generator:
        """Start over from a seed, any integer (taken modulo 2^64)."""
        kernels.on_host("manual_seed")
        self.state[0] = int(seed) % 2**64
        self.state[1] = 0
        return self

    def seed(self) -> int:
        """Start over from a seed of the operating system, which is returned."""
        seed = int.from_bytes(os.urandom(8), "little")
        self.manual_seed(seed)
        return seed

    def initial_seed(self) -> int:
        """The seed it started from."""
        return int(self.state[0])

    def get_state(self) -> Tensor:
        """A copy of the state, two int64 words."""
        kernels.on_host("get_state")
        return new_tensor(self.state.view(np.int64).copy())

    def set_state(self, state: Tensor) -> None:
        """Go on from a state of `get_state`.  Raises ValueError for anything else."""
        kernels.on_host("set_state")
        words = state.array
        if words.shape != (2,) or words.dtype != np.int64:
            raise ValueError(
                f"set_state: expected two int64 words from get_state, got {words.dtype} "
                f"of shape {words.shape}"
            )
        self.state[:] = words.view(np.uint64)


class LazyGenerator(Generator):
    """A generator whose seed is computed, and whose state made, when it is first drawn from.

    Most batches draw nothing, and to seed a generator for each takes 15 µs.
    """

    def __init__(self, seed: Callable[[], int]) -> None:
        self._seed = seed

    @functools.cached_property
    def state(self) -> kernels.Array:  # type: ignore[override]
        """As of any generator."""
        return Generator().manual_seed(self._seed()).state


default_generator = Generator()


class _Stream(threading.local):
    generator: Generator | None = None


_stream = _Stream()


def current() -> Generator:
    """The generator that draws of this thread come from when they are given none.

    The default generator, unless `stream` has set another.
    """
    return _stream.generator or default_generator


class stream:
    """`with stream(generator):` draws of this thread come from it.

    Nests; other threads see nothing of it.
    """

    __slots__ = ("before", "generator")

    def __init__(self, generator: Generator) -> None:
        self.generator = generator

    def __enter__(self) -> Generator:
        self.before = _stream.generator
        _stream.generator = self.generator
        return self.generator

    def __exit__(self, *error: object) -> None:
        _stream.generator = self.before


def draw_seed(generator: Generator | None = None) -> int:
    """A seed for other generators, in [0, 2^63 - 1): one integer of a generator, or the current."""
    state = (generator or current()).state
    return int(kernels.random_integers((1,), state, 0, 2**63 - 1)[0])


def mix(*words: int) -> int:
    """One seed in [0, 2^64) from several numbers, so that near ones give unrelated seeds.

    Different last words never give the same seed when the others agree.
    Source: the output function of SplitMix64 (Steele, Lea & Flood 2014), chained over the words.
    """
    seed = 0
    for word in words:
        z = ((seed ^ (word % 2**64)) + 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        seed = z ^ (z >> 31)
    return seed


def manual_seed(seed: int) -> Generator:
    """Seed the default generator."""
    return default_generator.manual_seed(seed)


def initial_seed() -> int:
    """The seed of the default generator."""
    return default_generator.initial_seed()


def get_rng_state() -> Tensor:
    """State of the default generator."""
    return default_generator.get_state()


def set_rng_state(state: Tensor) -> None:
    """Set the state of the default generator."""
    default_generator.set_state(state)
