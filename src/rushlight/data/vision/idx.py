"""IDX files: MNIST and its relatives."""

from __future__ import annotations

import gzip
import math
import os
import zlib
from typing import BinaryIO

import numpy as np

from rushlight.errors import FormatError
from rushlight.io.files import PathLike
from rushlight.kernels import Array

_DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_PIECE = 1 << 20  # bytes read at once: what a header claims is not allocated before it is there


def read_idx(path: PathLike) -> Array:
    """The array of an IDX file, which may be compressed by gzip, whatever it is called.

    Returns the shape and dtype that the file says, in the machine's byte order: uint8 (N, 28, 28)
    and uint8 (N,) for MNIST. Raises: FormatError that names the file and what is wrong: another
    magic number, too few or too many bytes, damaged gzip; OSError.
    Source: the format's description beside the MNIST files.
    """
    path = os.fspath(path)
    with open(path, "rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        if not packed:
            return _read(path, file)
        try:
            with gzip.GzipFile(fileobj=file) as unpacked:
                return _read(path, unpacked)  # type: ignore[arg-type]
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise FormatError(f"{path}: damaged gzip file: {error}") from error


def _read(path: str, file: BinaryIO) -> Array:
    magic = file.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _DTYPES or magic[3] == 0:
        page = " (a web page?)" if magic[:1] == b"<" else ""
        raise FormatError(
            f"{path}: not an IDX file: it begins with 0x{magic.hex()}{page}, expected a magic "
            "number such as 0x00000803 (images) or 0x00000801 (labels)"
        )
    axes = file.read(4 * magic[3])
    if len(axes) < 4 * magic[3]:
        raise FormatError(f"{path}: truncated inside the sizes of its {magic[3]} axes")
    shape = tuple(int(n) for n in np.frombuffer(axes, ">u4"))
    if len(shape) > 32:  # which every NumPy can hold
        raise FormatError(f"{path}: claims to have {len(shape)} axes")
    dtype = np.dtype(_DTYPES[magic[2]])
    size = math.prod(shape) * dtype.itemsize
    data = _at_most(file, size)
    needs = f"shape {shape} needs {size} bytes of data"
    if len(data) < size:
        raise FormatError(f"{path}: truncated: {needs}, the file has {len(data)}")
    if file.read(1):
        raise FormatError(f"{path}: too long: {needs}, more follow")
    return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)


def _at_most(file: BinaryIO, size: int) -> bytearray:
    data = bytearray()
    while len(data) < size and (piece := file.read(min(_PIECE, size - len(data)))):
        data += piece
    return data


def read_labelled(images: PathLike, labels: PathLike) -> tuple[Array, Array]:
    """Images (N, H, W) uint8 and labels (N,) int64 of two IDX files that belong together.

    Raises: FormatError, also for files of other kinds, which may be the two swapped, and for
    counts that differ.
    """
    x = _of_kind(images, 3, "images")
    y = _of_kind(labels, 1, "labels")
    if len(x) != len(y):
        raise FormatError(f"{images} has {len(x)} images, {labels} has {len(y)} labels")
    return x, y.astype(np.int64)


def _of_kind(path: PathLike, axes: int, what: str) -> Array:
    array = read_idx(path)
    if array.ndim != axes or array.dtype != np.uint8:
        raise FormatError(
            f"{path}: {array.dtype} of shape {array.shape}; {what} are uint8 with "
            f"{axes} axes (magic number 0x0000080{axes}). Are images and labels swapped?"
        )
    return array


def find_pair(root: PathLike, name: str, train: bool) -> tuple[str, str]:
    """The files of images and of labels in a folder, or in its `<name>/raw`.

    They are called `train-images-idx3-ubyte` and so on (`t10k` of the test set), with "-" or "."
    before "idx", with ".gz" or without. Raises: FileNotFoundError that says what was looked for.
    """
    split = "train" if train else "t10k"
    folders = [os.fspath(root), os.path.join(root, name, "raw")]
    for folder in folders:
        found = [_find(folder, f"{split}-{kind}") for kind in ("images.idx3", "labels.idx1")]
        if found[0] and found[1]:
            return found[0], found[1]
    names = f"{split}-images-idx3-ubyte and {split}-labels-idx1-ubyte, with .gz or without"
    places = " or ".join(folders)
    raise FileNotFoundError(f"{name}: found no {names}, in {places}; download=True fetches them")


def _find(folder: str, stem: str) -> str | None:
    for name in (stem.replace(".", "-"), stem):
        for end in ("-ubyte", "-ubyte.gz"):
            path = os.path.join(folder, name + end)
            if os.path.isfile(path):
                return path
    return None
