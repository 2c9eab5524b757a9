"""The streams of random numbers that training may draw from: Rushlight's, Python's, NumPy's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from rushlight.creation import tensor
from rushlight.random import Generator, get_rng_state, set_rng_state, stream


def random_states() -> dict[str, Any]:
    """Where the streams are, for `set_random_states` and a checkpoint."""
    version, words, gauss = random.getstate()
    return {
        "rushlight": get_rng_state().tolist(),
        "python": [version, np.array(words, np.int64), gauss],
        "numpy": list(np.random.get_state(legacy=True)),
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Go on from a result of `random_states`."""
    set_rng_state(tensor(states["rushlight"]))
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    np.random.set_state(tuple(states["numpy"]))


@contextmanager
def fixed_random() -> Iterator[None]:
    """Random numbers that are the same every time, and leave all streams as they were."""
    before = random_states()
    random.seed(0)
    np.random.seed(0)
    try:
        with stream(Generator()):
            yield
    finally:
        set_random_states(before)
