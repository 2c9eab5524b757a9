"""Batches without end, with a place that can be saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rushlight.errors import ConfigError
from rushlight.train.streams import random_states, set_random_states


class Batches:
    """The batches of an iterable, from the start again when they run out.

    What is saved of its place is the state of the pass where that has `state_dict`, as those of a
    DataLoader do. Other iterables are iterated up to the place again. Both from the random numbers
    that were there when the pass began, which samplers may draw an order from.
    """

    def __init__(self, source: Iterable[Any]) -> None:
        self.source = source
        self.count = 0  # batches given so far
        self._place = 0  # of these, in the present pass
        self._pass: Iterator[Any] | None = None
        self._random: dict[str, Any] | None = None  # where the streams were when it began

    def next(self) -> Any:
        """The next batch.  Raises: ConfigError when a pass has none."""
        for _ in range(2):
            if self._pass is None:
                self._random = random_states()
                self._pass = iter(self.source)
            batch = next(self._pass, _END)
            if batch is not _END:
                self.count += 1
                self._place += 1
                return batch
            if self._place == 0:
                break
            self._place, self._pass = 0, None
        raise ConfigError(f"the batches ran out: a pass after {self.count} has none")

    def _keeps_place(self) -> bool:
        return hasattr(self.source, "load_state_dict")

    def close(self) -> None:
        """End the workers of the present pass."""
        close = getattr(self._pass, "close", None)
        if close is not None:
            close()
        self._pass = None

    def state_dict(self) -> dict[str, Any]:
        """Where this is."""
        place: Any = None
        if self._pass is not None and self._keeps_place():
            knows: Any = self._pass if hasattr(self._pass, "state_dict") else self.source
            place = knows.state_dict()
        return {
            "count": self.count,
            "place": self._place,
            "pass": place,
            "random": self._random,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there.  Raises: ValueError when the batches are of another kind."""
        self.close()
        if state["place"] and self._keeps_place() != (state["pass"] is not None):
            raise ValueError(f"the batches were of another kind than {type(self.source).__name__}")
        if state["place"]:
            now = random_states()
            set_random_states(state["random"])
            self._random = state["random"]
            if state["pass"] is not None:
                self.source.load_state_dict(state["pass"])  # type: ignore[attr-defined]
            self._pass = iter(self.source)
            for _ in range(0 if state["pass"] is not None else state["place"]):
                next(self._pass, None)
            set_random_states(now)
        self.count, self._place = state["count"], state["place"]


_END = object()
