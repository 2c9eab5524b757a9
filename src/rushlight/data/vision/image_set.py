"""Labelled images of one size in one file of bytes, to learn from and to be held out."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rushlight.creation import randperm
from rushlight.data.dataset import TensorDataset
from rushlight.data.vision.arrays import ArrayImages
from rushlight.data.vision.source import Source
from rushlight.data.vision.transforms import CenterCrop, Compose, Normalize, Resize, ToTensor
from rushlight.errors import FormatError
from rushlight.io import replacing, write_atomic
from rushlight.kernels import Array
from rushlight.random import Generator

IMAGES, DESCRIPTION = "images.bin", "images.json"
MOST_SIDE = 4096  # pixels
_LOOKED_AT = 4096  # images that mean and deviation are taken from
_IN_MEMORY = 1 << 30  # bytes of normalised images


@dataclass(frozen=True)
class ImageSet:
    """Images on disk, those held out behind the others, and what is known of them."""

    images: Array  # (N, size, size, C) uint8
    labels: Array  # (N,) int64
    learned: int  # images; the others are held out
    classes: list[str]
    mean: list[float]  # of each channel, on a scale from 0 to 1
    std: list[float]
    skipped: dict[str, str]  # files that could not be read, and why

    def to_learn(self, augment: Callable[[Any], Any] | None) -> TensorDataset | ArrayImages:
        """Tensors (C, size, size) and classes, each image passed through `augment`."""
        images = ArrayImages(self.images[: self.learned], self.labels[: self.learned])
        return self._tensors(images, augment)

    def held_out(self) -> TensorDataset | ArrayImages:
        """Tensors (C, size, size) and classes of the images that are not learned."""
        return self._tensors(ArrayImages(self.images[self.learned :], self.labels[self.learned :]))

    def _tensors(
        self, images: ArrayImages, augment: Callable[[Any], Any] | None = None
    ) -> TensorDataset | ArrayImages:
        if augment is None and images.data.size * 4 <= _IN_MEMORY:
            return images.to_tensors(self.mean, self.std)
        last = normalizing(self.mean, self.std)
        images.transform = last if augment is None else Compose([augment, last])
        return images

    def checksum(self) -> int:
        """Of all that a model learns from: images, labels, classes and how they are normalised."""
        known = json.dumps([self.learned, self.classes, self.mean, self.std]).encode()
        return zlib.crc32(self.labels.data, zlib.crc32(self.images.data, zlib.crc32(known)))


def fit(size: int) -> Compose:
    """From any image to the square in its middle, `size` pixels a side."""
    return Compose([Resize(size), CenterCrop(size)])


def normalizing(mean: list[float], std: list[float]) -> Compose:
    """From an image to the tensor (C, H, W) that a model wants; mean and std on a scale to 1."""
    return Compose([ToTensor(), Normalize(mean, std)])


def write_image_set(
    source: Source, folder: Path, size: int, held_out: float, seed: int, on_error: str = "skip"
) -> ImageSet:
    """Write the images of a source, `size` pixels a side, into images.bin and images.json.

    held_out: the share, drawn with `seed`, of a source that does not hold out images itself.
    on_error: what to do with unreadable files, "skip" or "raise".
    Raises: FormatError, also when a class has nothing to learn; OSError.
    """
    parts = _split(source, held_out, seed)
    labels: list[int] = []
    counts: list[int] = []
    with replacing(folder / IMAGES) as out:
        for images, indices in parts:
            before = len(labels)
            for image, label in source.read(images, indices, fit(size), on_error):
                out.write(np.ascontiguousarray(image).tobytes())
                labels.append(label)
            counts.append(len(labels) - before)
    _check_classes(source, labels[: counts[0]])
    description: dict[str, Any] = {"size": size, "channels": source.channels, "learned": counts[0]}
    description |= {"classes": source.classes, "labels": labels, "skipped": source.skipped}
    mean, std = _statistics(_images(folder, description)[: counts[0]])
    description |= {"mean": mean, "std": std}
    write_atomic(folder / DESCRIPTION, json.dumps(description) + "\n")
    return read_image_set(folder)


def _split(source: Source, held_out: float, seed: int) -> list[tuple[Any, list[int]]]:
    count = len(source.learned)
    if source.held_out is not None:
        others = [*range(len(source.held_out))]
        return [(source.learned, [*range(count)]), (source.held_out, others)]
    order = randperm(count, generator=Generator().manual_seed(seed)).numpy()
    classes = np.asarray(source.learned.targets)[order]
    rest: list[int] = []
    for number in range(len(source.classes)):  # the same share of each
        own = order[classes == number]
        rest += own[: min(round(len(own) * held_out), len(own) - 1)].tolist() if len(own) else []
    if held_out and not rest:
        rest = order[:1].tolist()
    return [(source.learned, sorted({*range(count)} - {*rest})), (source.learned, sorted(rest))]


def _check_classes(source: Source, learned: list[int]) -> None:
    seen = set(learned)
    missing = [name for number, name in enumerate(source.classes) if number not in seen]
    # Numbers without images are common, and harmless; a folder's name is a promise.
    if not seen or (missing and source.side is None):
        why = f"; unreadable: {len(source.skipped)}" if source.skipped else ""
        raise FormatError(f"no image to learn from of: {', '.join(missing)}{why}")


def _statistics(images: Array) -> tuple[list[float], list[float]]:
    """Mean and standard deviation of each channel; 1 where that is 0."""
    some = images[:: -(-len(images) // _LOOKED_AT)]
    pixels = (some.reshape(-1, images.shape[3]) / np.float32(255)).astype(np.float64)
    std = pixels.std(0)
    return pixels.mean(0).tolist(), np.where(std > 0, std, 1.0).tolist()


def read_description(folder: Path) -> dict[str, Any]:
    """What images.json says: size, channels, classes, mean, std, …  Raises: FormatError."""
    path = folder / DESCRIPTION
    try:
        found = json.loads(path.read_text("utf-8"))
        wrong = [name for name, fits in _checks(found).items() if not fits]
    except FileNotFoundError:
        raise FormatError(f"{path} is missing") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FormatError(f"{path}: damaged: {error}") from None
    if wrong:
        raise FormatError(f"{path}: damaged: {', '.join(wrong)}")
    return found  # type: ignore[no-any-return]


def _checks(found: dict[str, Any]) -> dict[str, bool]:
    """Whether each part of a description can be meant."""
    channels, labels, classes = found["channels"], found["labels"], found["classes"]
    return {
        "size": _whole(found["size"], 1, MOST_SIDE),
        "channels": _whole(channels, 1, 4),
        "classes": isinstance(classes, list)
        and 0 < len(set(classes)) == len(classes)
        and all(isinstance(name, str) and name for name in classes),
        "labels": all(_whole(label, 0, len(classes) - 1) for label in labels),
        "learned": _whole(found["learned"], 1, len(labels)),
        "skipped": isinstance(found["skipped"], dict),
        "mean": len(found["mean"]) == channels and all(0 <= x <= 1 for x in found["mean"]),
        "std": len(found["std"]) == channels and all(1e-9 < x <= 1 for x in found["std"]),
    }


def _whole(x: Any, least: int, most: int) -> bool:
    return type(x) is int and least <= x <= most


def read_image_set(folder: Path) -> ImageSet:
    """The image set of a folder.  Raises: FormatError when its files are damaged or missing."""
    found = read_description(folder)
    return ImageSet(
        _images(folder, found),
        np.array(found["labels"], np.int64),
        **{name: found[name] for name in ("learned", "classes", "mean", "std", "skipped")},
    )


def _images(folder: Path, description: dict[str, Any]) -> Array:
    path, size = folder / IMAGES, description["size"]
    shape = len(description["labels"]), size, size, description["channels"]
    try:
        if path.stat().st_size != np.prod(shape, dtype=np.int64):
            raise FormatError(f"{path}: {path.stat().st_size} bytes, {DESCRIPTION} says {shape}")
        mapped = np.memmap(path, np.uint8, "r", shape=shape) if shape[0] else np.empty(shape, "u1")
    except FileNotFoundError:
        raise FormatError(f"{path} is missing") from None
    return np.asarray(mapped)
