"""What all transforms share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Transform:
    """A change of one sample.  Subclasses define `_changed`; attributes are the arguments."""

    def __call__(self, sample: Any) -> Any:
        """The sample, changed; the one given stays as it was."""
        return self._changed(sample)

    def _changed(self, sample: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} does not define _changed")

    def __repr__(self) -> str:
        given = ", ".join(
            f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_")
        )
        return f"{type(self).__name__}({given})"


def check_range(
    what: str, name: str, bounds: Sequence[float], above: float | None = None
) -> tuple[float, float]:
    """(low, high) as floats.  Raises: ValueError for no such pair, or low not above `above`."""
    values = tuple(float(x) for x in bounds)
    if len(values) != 2 or not values[0] <= values[1] or (above is not None and values[0] <= above):
        more = "" if above is None else f", above {above:g}"
        raise ValueError(f"{what}: {name} must be two numbers (low, high){more}, got {bounds!r}")
    return values[0], values[1]


def check_probability(what: str, p: float) -> float:
    """The probability itself.  Raises: ValueError outside of 0 to 1."""
    if not 0 <= p <= 1:
        raise ValueError(f"{what}: p must lie in 0 to 1, got {p!r}")
    return p
