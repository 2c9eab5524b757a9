"""What an image shows: the model of a run for images, and the classes it knows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import rushlight as rl
from rushlight.data.vision.image import channel_count
from rushlight.data.vision.image_set import fit, normalizing, read_description
from rushlight.data.vision.transforms import Compose, Grayscale
from rushlight.errors import FormatError, ShapeError
from rushlight.kernels import Array
from rushlight.models import image_model
from rushlight.nn import Module
from rushlight.nn import functional as F
from rushlight.runs import CONFIG, config_value, load_weights, read_config
from rushlight.tensor import Tensor


@dataclass
class Classifier:
    """A model in evaluation mode, its classes, and what it wants to see."""

    model: Module
    classes: list[str]
    size: int
    channels: int
    prepare: Compose  # from an image of this size and channels to a tensor

    def tensor(self, image: Array) -> Tensor:
        """An image (H, W) or (H, W, C), uint8, as the model wants it: (C, size, size)."""
        if channel_count(image) != self.channels:
            if channel_count(image) not in (1, 3) or self.channels not in (1, 3):
                raise ShapeError(f"image {image.shape}: the model wants {self.channels} channels")
            image = Grayscale(self.channels)(image)
        return self.prepare(fit(self.size)(image))  # type: ignore[no-any-return]

    @rl.no_grad()
    def probabilities(self, images: Sequence[Array]) -> Array:
        """Of each image, what it may show: (images, classes) float32, rows that add up to 1."""
        batch = rl.stack([self.tensor(image) for image in images])
        return F.softmax(self.model(batch), 1).numpy()

    def top(self, image: Array, count: int = 5) -> list[tuple[str, float]]:
        """The likeliest classes of an image and their probabilities, the likeliest first."""
        shares = self.probabilities([image])[0]
        order = (-shares).argsort(kind="stable")[:count]
        return [(self.classes[number], float(shares[number])) for number in order]


def load_classifier(folder: str | Path, weights: str = "best") -> Classifier:
    """The classifier that `rushlight train --task vision` made.

    weights: "best" (on held-out images; the last where there are none yet) or "last".
    Raises: ConfigError when the folder is no such run or has no weights yet, FormatError for
    damaged files, OSError for unreadable ones.
    """
    folder = Path(folder)
    config = read_config(folder, "vision")
    name = config_value(folder / CONFIG, config, "model", str)
    known = read_description(folder)
    try:
        model = image_model(name, len(known["classes"]), known["channels"], size=known["size"])
    except ValueError as error:
        raise FormatError(f"{folder / CONFIG}: {error}") from None
    load_weights(model, folder, weights)
    prepare = normalizing(known["mean"], known["std"])
    return Classifier(model, known["classes"], known["size"], known["channels"], prepare)
