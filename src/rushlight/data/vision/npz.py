"""Images and labels out of npz files."""

from __future__ import annotations

import os
import zipfile
from typing import Any

import numpy as np

from rushlight.errors import FormatError
from rushlight.io.files import PathLike
from rushlight.kernels import Array

_SPLIT = [("x_{}", "y_{}"), ("X_{}", "Y_{}"), ("X_{}", "y_{}"), ("{}_images", "{}_labels")]
_WHOLE = [
    *(("images", "labels"), ("x", "y"), ("X", "Y"), ("X", "y")),
    *(("data", "targets"), ("data", "labels"), ("arr_0", "arr_1")),
]


def read_npz(path: PathLike, train: bool) -> tuple[Array, Array]:
    """Images (N, H, W) or (N, H, W, C), and labels (N,) int64; see `NpzImages`."""
    path = os.fspath(path)
    with open(path, "rb") as file:
        if not zipfile.is_zipfile(file):
            raise FormatError(f"{path}: not an npz file (a zip archive of arrays)")
        file.seek(0)
        try:
            with np.load(file, allow_pickle=False) as archive:
                first, second = _names(path, archive.files, train)
                x, y = archive[first], archive[second]
        except FormatError:
            raise
        except Exception as error:  # NumPy's and zipfile's are of a dozen kinds
            raise FormatError(f"{path}: damaged npz file: {error!s:.200}") from error
    x, y = _images(f"{path}: {first}", x), _labels(f"{path}: {second}", y)
    if len(x) != len(y):
        raise FormatError(f"{path}: {len(x)} images in {first}, {len(y)} labels in {second}")
    return x, y


def has_test_part(path: PathLike) -> bool:
    """Whether a readable npz file holds images to test on, under names of `NpzImages`."""
    with np.load(path, allow_pickle=False) as archive:
        held = set(archive.files)
    return any({a.format("test"), b.format("test")} <= held for a, b in _SPLIT)


def _names(path: str, held: list[str], train: bool) -> tuple[str, str]:
    split = "train" if train else "test"
    pairs = [(a.format(split), b.format(split)) for a, b in _SPLIT] + (_WHOLE if train else [])
    for pair in pairs:
        if all(name in held for name in pair):
            return pair
    wanted = ", ".join(" and ".join(pair) for pair in pairs)
    raise FormatError(f"{path}: holds {', '.join(held) or 'nothing'}; expected one of: {wanted}")


def _images(where: str, x: Any) -> Array:
    if not isinstance(x, np.ndarray):  # an entry that is not an array
        raise FormatError(f"{where} is no array")
    if 0 in x.shape[1:]:
        raise FormatError(f"{where} has shape {x.shape}: no pixels")
    if x.ndim == 4 and x.shape[3] not in (1, 2, 3, 4) and x.shape[1] in (1, 2, 3, 4):
        x = x.transpose(0, 2, 3, 1)
    elif x.ndim != 3 and not (x.ndim == 4 and x.shape[3] in (1, 2, 3, 4)):
        wanted = "(N, H, W), (N, H, W, C) or (N, C, H, W) with 1 to 4 channels"
        raise FormatError(f"{where} has shape {x.shape}; expected {wanted}")
    if x.dtype.kind == "f":
        return np.ascontiguousarray(x, np.float32)
    if x.dtype.kind not in "iu":
        raise FormatError(f"{where} is of dtype {x.dtype}; expected uint8 or floats")
    if x.dtype != np.uint8 and x.size and (x.min() < 0 or x.max() > 255):
        raise FormatError(f"{where} has {x.dtype} from {x.min()} to {x.max()}; expected 0 to 255")
    return np.ascontiguousarray(x, np.uint8)


def _labels(where: str, y: Any) -> Array:
    if not isinstance(y, np.ndarray) or y.dtype.kind not in "iu":
        raise FormatError(f"{where} is of {getattr(y, 'dtype', type(y))}; expected integers")
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim != 1:
        raise FormatError(f"{where} has shape {y.shape}; expected labels (N,) or (N, 1)")
    if y.dtype == np.uint64 and y.size and y.max() >= 1 << 63:
        raise FormatError(f"{where} has labels up to {y.max()}; expected numbers of classes")
    return np.asarray(y, np.int64)
