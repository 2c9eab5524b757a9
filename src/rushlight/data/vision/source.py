"""Images wherever they lie: IDX files, an npz file, or folders of images per class."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rushlight.data.vision.arrays import ArrayImages, IDXDataset, NpzImages
from rushlight.data.vision.folder import ImageFolder, unreadable
from rushlight.data.vision.idx import find_pair
from rushlight.data.vision.npz import has_test_part
from rushlight.errors import ConfigError, FormatError
from rushlight.kernels import Array

_HELD_OUT = ("val", "valid", "validation", "test")
_MOST_CLASSES = 10_000
_DECODERS = 4  # threads


@dataclass
class Source:
    """Labelled images, and those held out from learning where the source says which."""

    learned: ArrayImages | ImageFolder
    held_out: ArrayImages | ImageFolder | None
    classes: list[str]
    skipped: dict[str, str] = field(default_factory=dict)  # unreadable files, and why

    @property
    def side(self) -> int | None:
        """The longer side of the images, in pixels; None where each has its own size."""
        if isinstance(self.learned, ImageFolder):
            return None
        return int(max(self.learned.data.shape[1:3]))

    @property
    def channels(self) -> int:
        """3 for image files, which are read as RGB."""
        if isinstance(self.learned, ImageFolder) or self.learned.data.ndim == 3:
            return 3 if isinstance(self.learned, ImageFolder) else 1
        return int(self.learned.data.shape[3])

    def read(
        self,
        images: ArrayImages | ImageFolder,
        indices: Sequence[int],
        change: Callable[[Array], Array],
        on_error: str = "skip",
    ) -> Iterator[tuple[Array, int]]:
        """(image passed through `change`, class) for each index, decoded by a few threads.

        on_error: an unreadable file is left out and noted in `skipped` ("skip"), or "raise".
        Raises: FormatError.
        """

        def one(index: int) -> tuple[Array | None, str]:
            if isinstance(images, ArrayImages):
                return change(_rounded(images.data[index])), ""
            path = images.samples[index][0]
            if not os.path.exists(path):  # a link to nowhere
                return None, f"{path}: there is no such file"
            try:
                image = images.loader(path)
            except Exception as error:  # `unreadable` raises what is not the file's fault
                return None, unreadable(error)
            return change(image), ""

        targets = images.targets
        with ThreadPoolExecutor(_DECODERS) as pool:
            for start in range(0, len(indices), 256):  # so that few are in memory
                part = indices[start : start + 256]
                for index, (image, why) in zip(part, pool.map(one, part), strict=True):
                    if image is not None:
                        yield image, int(targets[index])
                        continue
                    assert isinstance(images, ImageFolder)
                    path = images.samples[index][0]
                    if on_error == "raise":
                        raise FormatError(why if path in why else f"{path}: {why}")
                    self.skipped[path] = why


def _rounded(image: Array) -> Array:
    """Floats on the scale of bytes as bytes."""
    if image.dtype == np.uint8:
        return image
    return np.rint(image).astype(np.uint8)


def find_images(path: str | os.PathLike[str], run: Path | None = None) -> Source:
    """The images of a place.

    An npz file (see `NpzImages`); a folder with MNIST's IDX files or one npz file; a folder of
    images per class; or folders `train` and `val` (or `valid`, `validation`, `test`) of such.
    run: a folder that is written to, and so must not lie among the classes.
    Raises: ConfigError for no such place, FormatError for what is wrong with the files, OSError.
    """
    place = Path(path)
    if not place.exists():
        raise ConfigError(f"{place}: no such file or folder")
    if place.is_file():
        if place.suffix != ".npz":
            raise ConfigError(f"{place}: expected an .npz file, or a folder of images")
        return _of_npz(place)
    names = sorted(os.listdir(place))
    for folder in (place, place / "MNIST" / "raw", place / "FashionMNIST" / "raw"):
        if folder.is_dir() and any("-ubyte" in name for name in os.listdir(folder)):
            return _of_idx(folder)
    archives = [name for name in names if name.endswith(".npz")]
    if len(archives) == 1:
        return _of_npz(place / archives[0])
    if len(archives) > 1:
        raise FormatError(f"{place}: {len(archives)} .npz files: give one of them")
    if run is not None and run.resolve().is_relative_to(place.resolve()):
        raise ConfigError(
            f"{place}: no IDX or .npz files, and {run} would lie among its classes: choose another "
            "--out"
        )
    if not any((place / name).is_dir() for name in names):
        raise FormatError(
            f"{place}: found no images: neither IDX files (train-images-idx3-ubyte), nor one .npz "
            "file, nor a folder for each class"
        )
    return _of_folders(place)


def _of_npz(path: Path) -> Source:
    learned = NpzImages(path)
    test = NpzImages(path, train=False) if has_test_part(path) else None
    return _of_arrays(str(path), learned, test)


def _of_idx(folder: Path) -> Source:
    parts = [_idx_part(folder, train=True)]
    if any(name.startswith("t10k") for name in os.listdir(folder)):
        parts.append(_idx_part(folder, train=False))
    return _of_arrays(str(folder), *parts)


def _idx_part(folder: Path, train: bool) -> IDXDataset:
    try:
        return IDXDataset(*find_pair(folder, folder.name, train))
    except FileNotFoundError:
        names = [
            f"{'train' if train else 't10k'}-{kind}-ubyte"
            for kind in ("images-idx3", "labels-idx1")
        ]
        raise FormatError(f"{folder}: {' or '.join(names)} is missing (.gz or not)") from None


def _of_arrays(where: str, learned: ArrayImages, held_out: ArrayImages | None = None) -> Source:
    parts = [learned] if held_out is None else [learned, held_out]
    if any(0 in part.data.shape for part in parts):
        raise FormatError(f"{where}: no images, or images without pixels")
    if len({part.data.shape[1:] for part in parts}) > 1:
        shapes = " and ".join(str(part.data.shape[1:]) for part in parts)
        raise FormatError(f"{where}: images to learn and held out differ in shape: {shapes}")
    low, high = (f([f(part.targets) for part in parts]) for f in (np.min, np.max))
    if low < 0 or high >= _MOST_CLASSES:
        raise FormatError(
            f"{where}: labels from {low} to {high}; expected 0 to {_MOST_CLASSES - 1} at most"
        )
    if learned.data.dtype != np.uint8 or parts[-1].data.dtype != np.uint8:
        _scale(where, parts)
    classes = [str(number) for number in range(int(high) + 1)]
    return _of_classes(where, Source(learned, held_out, classes))


def _scale(where: str, parts: list[ArrayImages]) -> None:
    """Bring floats from 0 to 1 to the scale of bytes."""
    low, high = (f([f(part.data) for part in parts]) for f in (np.min, np.max))
    if not (low >= 0 and high <= 255):  # nor for NaN
        raise FormatError(f"{where}: pixels from {low} to {high}; expected 0 to 1, or 0 to 255")
    for part in parts:
        part.data = part.data * np.float32(255 if high <= 1 else 1)


def _of_folders(place: Path) -> Source:
    inner = {entry.name for entry in place.iterdir() if entry.is_dir()}
    test = [name for name in _HELD_OUT if name in inner]
    others = sorted(inner - {"train"})
    if (
        "train" in inner
        and others
        and not test
        and any(x.is_dir() for x in (place / "train").iterdir())
    ):
        raise FormatError(
            f"{place}: train has classes, but beside it is {', '.join(others[:3])}; the folder of "
            f"what is held out is called {', '.join(_HELD_OUT[:-1])} or {_HELD_OUT[-1]}"
        )
    if "train" not in inner or (not test and len(inner) > 1):
        learned = ImageFolder(place)
        return _of_classes(place, Source(learned, None, learned.classes))
    if not test:
        learned = ImageFolder(place / "train")
        return _of_classes(place, Source(learned, None, learned.classes))
    learned, held_out = ImageFolder(place / "train"), ImageFolder(place / test[0])
    if learned.classes != held_out.classes:
        odd = ", ".join(sorted(set(learned.classes) ^ set(held_out.classes)))
        raise FormatError(f"{place}: train and {test[0]} differ in their classes: {odd}")
    return _of_classes(place, Source(learned, held_out, learned.classes))


def _of_classes(place: Path | str, source: Source) -> Source:
    if len(source.classes) < 2:
        names = ", ".join(source.classes)
        raise FormatError(f"{place}: only one class, {names}; there is nothing to tell apart")
    return source
