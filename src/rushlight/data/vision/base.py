"""What all transforms and all sets of images share."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from typing import Any, TypeAlias

from rushlight.data.dataset import Dataset
from rushlight.data.vision.image import check_image
from rushlight.errors import ShapeError

Change: TypeAlias = Callable[[Any], Any]


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


class ImageTransform(Transform):
    """A transform of an array (H, W) or (H, W, C), which it is checked to be."""

    def __call__(self, image: Any) -> Any:
        """The image, changed."""
        return self._changed(check_image(type(self).__name__, image))


class LabelledImages(Dataset[tuple[Any, Any]]):
    """Images with classes, both changed on their way out.  Subclasses define `_labelled`."""

    def __init__(self, transform: Change | None, target_transform: Change | None) -> None:
        self.transform = transform
        self.target_transform = target_transform

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        image, target = self._labelled(index)
        return (
            image if self.transform is None else self.transform(image),
            target if self.target_transform is None else self.target_transform(target),
        )

    def _labelled(self, index: int) -> tuple[Any, int]:
        raise NotImplementedError(f"{type(self).__name__} does not define _labelled")


def check_range(
    what: str, name: str, bounds: Sequence[float], above: float | None = None
) -> tuple[float, float]:
    """(low, high) as floats.  Raises: ValueError for no such pair, or low not above `above`."""
    values = tuple(float(x) for x in bounds)
    if len(values) != 2 or not values[0] <= values[1] or (above is not None and values[0] <= above):
        more = "" if above is None else f", above {above:g}"
        raise ValueError(f"{what}: {name} must be two numbers (low, high){more}, got {bounds!r}")
    return values[0], values[1]


def check_name(what: str, name: str, known: Sequence[str]) -> str:
    """The name itself.  Raises: ValueError for an unknown one."""
    if name not in known:
        raise ValueError(f"{what}: {name!r} is not one of {known}")
    return name


def check_probability(what: str, p: float) -> float:
    """The probability itself.  Raises: ValueError outside of 0 to 1."""
    if not 0 <= p <= 1:
        raise ValueError(f"{what}: p must lie in 0 to 1, got {p!r}")
    return p


def check_channels(what: str, mean: Sized, std: Sized, channels: int) -> None:
    """Raise ShapeError unless means and deviations are one, or one for each channel."""
    if not {len(mean), len(std)} <= {1, channels}:
        raise ShapeError(f"{what}: {len(mean)} means and {len(std)} stds for {channels} channels")
