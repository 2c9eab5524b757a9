"""Exponential moving average of a module's parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from rushlight import kernels
from rushlight.autograd import changed_in_place
from rushlight.kernels import FLOAT32, FLOAT64, K
from rushlight.nn.module import Module, copy_state
from rushlight.ops.convert import is_real


class EMA:
    """Running average of a module's floating-point parameters.

    `update()`, after each optimizer step: average += (1 - decay) (parameter - average), in the
    parameter's dtype. Buffers are not averaged: the module keeps its own, also under `applied()`.
    warmup: decay is min(decay, (1 + t) / (10 + t)) at update t = 0, 1, ..., so the start is
    forgotten fast.  Raises: ValueError for a decay outside [0, 1).
    Source: Polyak & Juditsky 1992; warm-up as in TensorFlow's ExponentialMovingAverage.
    """

    def __init__(self, model: Module, decay: float, *, warmup: bool = False) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must lie in [0, 1), got {decay}")
        self.decay, self.warmup, self.updates = decay, warmup, 0
        self.parameters = {name: p for name, p in model.named_parameters() if is_real(p)}
        self.averages = {name: p.detach().clone() for name, p in self.parameters.items()}

    def update(self) -> None:
        """Move the averages towards the parameters of now."""
        t, decay = self.updates, self.decay
        rate = 1 - (min(decay, (1 + t) / (10 + t)) if self.warmup else decay)
        rates = {kind: np.full((), rate, kind) for kind in (FLOAT32, FLOAT64)}
        for name, p in self.parameters.items():
            average = self.averages[name].array
            change = kernels.sub(p.array, average)  # in a block of the pool
            kernels.call(K.mul, change, change, rates[change.dtype])
            kernels.call(K.accumulate, average, change)
            changed_in_place(self.averages[name])
        self.updates += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The module computes with the averages in this block, with its own weights after it.

        Values move, the parameters stay the same objects; what is written to them meanwhile is
        lost. Costs the memory of the parameters once more.
        """
        kept = {name: kernels.copy(p.array) for name, p in self.parameters.items()}
        try:
            self._write({name: average.array for name, average in self.averages.items()})
            yield
        finally:
            self._write(kept)

    def _write(self, arrays: Mapping[str, kernels.Array]) -> None:
        for name, p in self.parameters.items():
            kernels.copy_into(p.array, arrays[name])
            changed_in_place(p)

    def state_dict(self) -> dict[str, Any]:
        """The averages by parameter name, sharing memory, and the number of updates."""
        averages = {name: average.detach() for name, average in self.averages.items()}
        return {"averages": averages, "updates": self.updates}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a saved state.

        Raises: RuntimeError, unchanged, that lists every missing and unexpected name and every
        shape that differs.
        """
        extra = sorted(set(state_dict) ^ {"averages", "updates"})
        if extra:
            raise RuntimeError(f"EMA: missing or unexpected in the state: {', '.join(extra)}")
        copy_state("EMA", self.averages, state_dict["averages"])
        self.updates = int(state_dict["updates"])
