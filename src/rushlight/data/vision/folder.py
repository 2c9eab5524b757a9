"""A folder of images for each class."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from rushlight.data.vision.base import Change, LabelledImages
from rushlight.data.vision.decode import default_loader
from rushlight.errors import ConfigError, FormatError
from rushlight.io.files import PathLike

EXTENSIONS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp")


def has_image_extension(path: str) -> bool:
    """Whether a file's name ends as images' names do, in capitals or not."""
    return path.lower().endswith(EXTENSIONS)


class ImageFolder(LabelledImages):
    """Images in `root/<class>/**`, classes and files in the order of their names.

    Sample i: (image, class), `loader(path)` passed through `transform`, and the class's number
    through `target_transform`. `classes`: their names. `class_to_idx`: from name to number.
    `samples`: (path, number) of each. `targets`: the numbers. Folders that begin with a dot are no
    classes. is_valid_file: tells by its path whether a file is an image; otherwise its extension
    does.

    Files are only listed here. One that turns out to be unreadable, when it is asked for, raises a
    FormatError with on_error="raise". With "skip" the next readable one in the order of `samples`
    takes its place, so lengths and indices stay; a warning names it once, and `skipped`, from path
    to reason, counts it (in the process that met it). `verify` reads every file beforehand, and
    leaves the unreadable out for good. What the system reports, such as a file that has gone,
    always raises.
    Raises: FormatError without classes, or for classes without images, which it names; OSError.
    """

    def __init__(
        self,
        root: PathLike,
        transform: Change | None = None,
        target_transform: Change | None = None,
        loader: Callable[[str], Any] = default_loader,
        is_valid_file: Callable[[str], bool] | None = None,
        on_error: str = "skip",
    ) -> None:
        if on_error not in ("skip", "raise"):
            raise ConfigError(f'ImageFolder: on_error is "skip" or "raise", not {on_error!r}')
        super().__init__(transform, target_transform)
        self.root = os.fspath(root)
        self.loader = loader
        self.on_error = on_error
        self.skipped: dict[str, str] = {}
        self.classes = _class_names(self.root)
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        valid = is_valid_file or has_image_extension
        self.samples = [
            (path, number)
            for name, number in self.class_to_idx.items()
            for path in _files(os.path.join(self.root, name))
            if valid(path)
        ]
        self._check_classes("without images")

    @property
    def targets(self) -> list[int]:
        """The class of each sample."""
        return [number for _, number in self.samples]

    def __len__(self) -> int:
        return len(self.samples)

    def verify(self, num_threads: int = 4) -> dict[str, str]:
        """Read every file; what was unreadable, from path to reason.

        With on_error="skip" those files are no samples any more: do this before a sampler or a
        loader takes the length. With "raise" they are an error that names them.
        Raises: FormatError, also when a class has no image left.
        """

        def reason(path: str) -> str:
            try:
                self.loader(path)
            except Exception as error:
                return unreadable(error)
            return ""

        paths = [path for path, _ in self.samples]
        with ThreadPoolExecutor(num_threads) as pool:
            found = zip(paths, pool.map(reason, paths), strict=True)
            bad = {path: why for path, why in found if why}
        if bad and self.on_error == "raise":
            self._fail(bad)
        self.skipped.update(bad)
        self.samples = [sample for sample in self.samples if sample[0] not in bad]
        self._check_classes("without readable images")
        return bad

    def _labelled(self, index: int) -> tuple[Any, int]:
        count = len(self.samples)
        if not -count <= index < count:
            raise IndexError(f"ImageFolder: index {index} of {count} samples")
        for step in range(count):
            path, target = self.samples[(index + step) % count]
            if path in self.skipped:
                continue
            try:
                return self.loader(path), target
            except Exception as error:  # `unreadable` raises what is not the file's fault
                why = unreadable(error)
                if self.on_error == "raise":
                    raise FormatError(located(path, why)) from error
                self.skipped[path] = why
                warnings.warn(f"skipped an unreadable image: {path}: {why}", stacklevel=3)
        return self._fail(self.skipped)

    def _fail(self, bad: dict[str, str]) -> NoReturn:
        shown = "".join(f"\n  {located(path, why)}" for path, why in bad.items())
        raise FormatError(f"{self.root}: {len(bad)} of {len(self)} images cannot be read:{shown}")

    def _check_classes(self, what: str) -> None:
        filled = set(self.targets)
        empty = [name for name, number in self.class_to_idx.items() if number not in filled]
        if empty:
            raise FormatError(f"{self.root}: classes {what}: {', '.join(empty)}")


def unreadable(error: Exception) -> str:
    """Why a file is unreadable.  Raises the error again when the file is not to blame."""
    of_system = isinstance(error, OSError) and error.errno is not None
    if of_system or not isinstance(error, ValueError | SyntaxError | EOFError | OSError):
        raise error
    return str(error) or type(error).__name__


def located(path: str, why: str) -> str:
    """The reason with the path, once."""
    return why if path in why else f"{path}: {why}"


def _class_names(root: str) -> list[str]:
    with os.scandir(root) as entries:
        names = [e.name for e in entries if e.is_dir() and not e.name.startswith(".")]
    if not names:
        raise FormatError(f"{root}: no classes; expected a folder of images for each class")
    return sorted(names)


def _files(folder: str) -> list[str]:
    found, seen = [], set()
    for place, inner, names in os.walk(folder, followlinks=True):
        if os.path.realpath(place) in seen:  # a link back to where we were
            inner.clear()
            continue
        seen.add(os.path.realpath(place))
        found += [os.path.join(place, name) for name in names]
    return sorted(found)
