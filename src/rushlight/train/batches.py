"""Batches without end, with a place that can be saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rushlight.errors import ConfigError


class Batches:
    """The batches of an iterable, from the start again when they run out.

    What is saved of its place is the state of the iterable itself where it has `state_dict` (a
    DataLoader does); others are iterated up to the place again.
    """

    def __init__(self, source: Iterable[Any]) -> None:
        self.source = source
        self.count = 0  # batches given so far
        self._place = 0  # of these, in the present pass
        self._iterator: Iterator[Any] | None = None

    def next(self) -> Any:
        """The next batch.  Raises: ConfigError when a pass has none."""
        if self._iterator is None:
            self._iterator = iter(self.source)
        batch = next(self._iterator, _END)
        if batch is _END:
            if self._place == 0:
                raise ConfigError(f"the batches ran out: a pass after {self.count} has none")
            self._place = 0
            self._iterator = None
            return self.next()
        self.count += 1
        self._place += 1
        return batch

    def close(self) -> None:
        """End the workers of the present pass."""
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()
        self._iterator = None

    def state_dict(self) -> dict[str, Any]:
        """Where this is."""
        state = {"count": self.count, "place": self._place}
        if hasattr(self.source, "state_dict"):
            state["source"] = self.source.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.close()
        if "source" in state:
            self.source.load_state_dict(state["source"])  # type: ignore[attr-defined]
        elif state["place"]:
            self._iterator = iter(self.source)
            for _ in range(state["place"]):
                next(self._iterator, None)
        self.count, self._place = state["count"], state["place"]


_END = object()
