"""PyTorch's files (torch.save) read without PyTorch, and without running what they contain.

A file is a pickle that describes tensors, and the bytes of their storages. Since PyTorch 1.6 it is
a zip archive: `<name>/data.pkl`, `<name>/data/<key>` uncompressed, `<name>/byteorder`. Before, it
was five pickles (a magic number, a version, facts of the machine, the state, the keys of the
storages) and for each key a count of elements and the elements, little-endian on every machine.

Bytes are read last: of the part that was asked for, and after offset, sizes and strides were found
to lie inside the storage.
"""

from __future__ import annotations

import mmap
import os
import struct
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np

from rushlight.errors import ConfigError, FormatError
from rushlight.io.files import PathLike, one_line, open_ordinary
from rushlight.io.pickled import Machine, Word
from rushlight.io.torch_pickle import (
    DTYPES,
    WORDS,
    Described,
    NumpyArray,
    Storage,
    itemsize,
    storage_of,
)
from rushlight.kernels import Array
from rushlight.ops.convert import as_tensor
from rushlight.tensor import Tensor

_MAGIC = 0x1950A86A20F9469CFC6C  # of files from before 1.6
_MAX_DEPTH = 64
_T = TypeVar("_T")
_ADVICE = "name one as key, --key in the command"


@dataclass
class Weights:
    """The tensors of a file by name, and what was done to get them."""

    tensors: dict[str, Tensor]
    place: str  # of the part they are from; "" for all of the file
    left_out: list[str]  # names of what is no tensor
    converted: dict[tuple[str, str], int]  # how many tensors of one dtype became another


def load_torch(path: PathLike, *, key: str | None = None) -> Any:
    """Read a file of torch.save: nested state with tensors, as `rushlight.load` gives it.

    key: where the wanted part stands, names joined by dots ("state_dict", "optimizer.state.0");
    nothing else is read then. Tensors come without gradient, in row-major order, each with memory
    of its own also where some shared it; bfloat16 and float8 as float32, uint16 as int32, uint32
    as int64 (no value changes). Devices and dtypes come as text, namespaces and ordered dicts as
    dicts. No code is ever run, and memory stays in proportion to the file.
    Raises: FormatError in one line for anything damaged, refused or not of this format;
    ConfigError when there is no such key; FileNotFoundError, IsADirectoryError.
    """
    return _guarded(path, lambda file: file.resolved(*_part(file, key or ".")))


def load_weights(path: PathLike, *, key: str | None = None) -> Weights:
    """Read the tensors of a file of torch.save as one dict, nested names joined by dots.

    key: where they stand, "." for all of the file; without it, the only dict with tensors, wherever
    it is. Otherwise as `load_torch`.  Raises: also ConfigError that lists the places when there are
    several, FormatError when two tensors would have the same name or there are none.
    """
    return _guarded(path, lambda file: _weights(file, key))


def _guarded(path: PathLike, read: Callable[[_File], _T]) -> _T:
    with open_ordinary(path) as file:
        try:
            with warnings.catch_warnings():  # of Python about odd text in a pickle
                warnings.simplefilter("ignore", DeprecationWarning)
                opened = _opened(file)
            return read(opened)
        except ValueError as error:
            kind = ConfigError if isinstance(error, ConfigError) else FormatError
            raise kind(f"{path}: {one_line(error)}") from None


# ---- the two containers ----


@dataclass
class _File:
    """What was read of a file: its state with described tensors, and where the storages lie."""

    data: mmap.mmap
    state: Any
    storages: dict[str, tuple[int, int]]  # by key: first byte and number of bytes
    big_endian: bool = False
    values: int = 0  # met so far
    made: int = 0  # bytes of tensors so far

    def items(self, value: Any, place: str, depth: int) -> Iterator[tuple[Any, str, Any]]:
        """Keys, places and items of a container that lies so deep; nothing for other values.

        They are counted, so that no walk goes on for ever.  Raises: ValueError.
        """
        pairs: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, dict) else ()
        if isinstance(value, list | tuple):
            pairs = enumerate(value)
        for key, item in pairs:
            inner = f"{place}.{key}" if place else str(key)
            self.values += 1 + len(inner) // 16
            if depth >= _MAX_DEPTH:
                raise ValueError(f"{inner[:60]!r} is nested deeper than {depth}, or inside itself")
            if self.values > (1 << 20) + 4 * len(self.data):
                raise ValueError("its pickle unfolds to far more than its size")
            yield key, inner, item

    def resolved(self, value: Any, place: str, depth: int = 0) -> Any:
        """The value with tensors in the place of descriptions.  Raises: ValueError."""
        if isinstance(value, Described):
            return self.tensor(value, place)
        if isinstance(value, NumpyArray):
            return value.value
        if isinstance(value, Storage):
            raise ValueError(f"{place!r} is a storage without a tensor")
        if isinstance(value, Word):
            return value.name
        if not isinstance(value, dict | list | tuple):
            return value
        inner = self.items(value, place, depth)
        items = [(k, self.resolved(v, p, depth + 1)) for k, p, v in inner]
        return dict(items) if isinstance(value, dict) else type(value)(v for _, v in items)

    def tensor(self, it: Described, place: str) -> Tensor:
        """Read what is described.  Raises: ValueError naming the place."""
        try:
            return as_tensor(self.array(it))
        except ValueError as error:
            raise ValueError(f"tensor {place!r}: {error}") from None

    def array(self, it: Described) -> Array:
        """The numbers, in row-major order.  Raises: ValueError."""
        if it.dtype not in DTYPES:
            raise ValueError(f"of dtype {it.dtype}, which Rushlight does not have")
        if it.storage.key not in self.storages:
            raise ValueError(f"its storage {it.storage.key!r} is missing")
        start, stored = self.storages[it.storage.key]
        unit, (code, convert, _) = itemsize(it.storage.dtype), DTYPES[it.dtype]
        if it.storage.total * unit > stored:
            raise ValueError(
                f"its storage {it.storage.key!r} should have {it.storage.total} elements of {unit} "
                f"bytes and has {stored} bytes"
            )
        dtype = np.dtype(code).newbyteorder(">" if self.big_endian else "<")
        array = self.stored(it, dtype, start, it.storage.end * unit // dtype.itemsize)
        array = np.array(array, dtype.newbyteorder("="), order="C")  # a copy, off the file
        array = convert(array) if convert else array
        return -array if it.negative and array.dtype.kind == "f" else array

    def stored(self, it: Described, dtype: np.dtype[Any], start: int, there: int) -> Array:
        """The tensor as it lies in the file.  Raises: ValueError.

        start: where its storage begins in the file.  there: elements that the storage has.
        """
        spans = [(n - 1) * step for n, step in zip(it.size, it.stride, strict=True)]
        if it.numel and it.offset + sum(spans) >= there:
            where = f"sizes {it.size}, strides {it.stride} and offset {it.offset}"
            raise ValueError(f"{where} reach outside its storage of {there} elements")
        self.made += it.numel * max(dtype.itemsize, 4)
        if self.made > (64 << 20) + 8 * len(self.data):
            raise ValueError(
                f"up to it, tensors have {self.made} bytes and the file {len(self.data)}: far too "
                "many; were they expanded (stride 0)? Save them after .contiguous()"
            )
        if not it.numel:
            return np.zeros(it.size, dtype)
        steps = [
            step * dtype.itemsize if span else 0
            for step, span in zip(it.stride, spans, strict=True)
        ]
        return np.ndarray(it.size, dtype, self.data, start + it.offset * dtype.itemsize, steps)


def _opened(file: BinaryIO) -> _File:
    """The file with its state; no tensor is read.  Raises: ValueError, OSError."""
    if not os.fstat(file.fileno()).st_size:
        raise ValueError("empty, not a file of torch.save")
    data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    if data[:4] == b"PK\x03\x04":
        return _opened_zip(data)
    if data[:1] == b"\x80":
        return _opened_legacy(data)
    if data[257:262] == b"ustar":
        raise ValueError("a tar archive, as PyTorch wrote before 0.1.10; nothing newer reads those")
    if data[8:9] == b"{":
        raise ValueError("looks like a safetensors file; rushlight.load reads those")
    raise ValueError("not a file of torch.save, which is a zip archive or begins with a pickle")


def _opened_zip(data: mmap.mmap) -> _File:
    try:
        archive = zipfile.ZipFile(cast(Any, data))  # reads the list of names, unpacks nothing
        entries = {info.filename: info for info in archive.infolist()}
    except (zipfile.BadZipFile, struct.error, ValueError, NotImplementedError, OSError) as error:
        raise ValueError(f"a zip archive that is cut or damaged ({one_line(error)})") from None
    found = [name[:-8] for name in entries if name.endswith("/data.pkl") and name.count("/") == 1]
    if any(f"{root}constants.pkl" in entries for root in found):
        raise ValueError(
            "a TorchScript archive (torch.jit.save), which holds a program; save the state_dict() "
            "of the model it was made from, or of torch.jit.load(...)"
        )
    if len(found) != 1:
        raise ValueError("a zip archive, but not of torch.save: it has no data.pkl")
    if len(entries) != len(archive.infolist()):
        raise ValueError("a zip archive that has a name twice")
    root = found[0]
    start, size = _record(data, entries[f"{root}data.pkl"])
    state = Machine(WORDS, storage_of, size).run(data[start : start + size])
    order = b"little"
    if f"{root}byteorder" in entries:
        start, size = _record(data, entries[f"{root}byteorder"])
        order = data[start : start + min(size, 10)]
        if order not in (b"little", b"big"):
            raise ValueError(f"its byte order is {order!r}, neither little nor big")
    place = f"{root}data/"
    storages = {
        name.removeprefix(place): _record(data, info)
        for name, info in entries.items()
        if name.startswith(place)
    }
    return _File(data, state, storages, order == b"big")


def _record(data: mmap.mmap, info: zipfile.ZipInfo) -> tuple[int, int]:
    """First byte and number of bytes of what an archive holds as it is.  Raises: ValueError."""
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise ValueError(f"its record {info.filename!r:.60} is packed; torch.save packs none")
    head = data[info.header_offset : info.header_offset + 30] if info.header_offset >= 0 else b""
    if len(head) < 30 or head[:4] != b"PK\x03\x04":
        raise ValueError(f"its record {info.filename!r:.60} is not where it should be")
    start = info.header_offset + 30 + sum(struct.unpack("<HH", head[26:30]))
    if start + info.file_size > len(data):
        raise ValueError(f"its record {info.filename!r:.60} reaches outside the file")
    return start, info.file_size


def _opened_legacy(data: mmap.mmap) -> _File:
    seen: dict[str, Storage] = {}

    def stored(persistent: Any) -> Storage:
        storage = storage_of(persistent)
        first = seen.setdefault(storage.key, storage)
        if (first.dtype, first.total) != (storage.dtype, storage.total):
            raise ValueError(f"its storage {storage.key!r:.40} is described in two ways")
        return storage

    machine = Machine(WORDS, stored, len(data))
    if machine.run(data) != _MAGIC:
        raise ValueError("a pickle, but not of torch.save")
    machine.run(data), machine.run(data)  # a version and facts of the machine: all are alike
    state, keys = machine.run(data), machine.run(data)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise ValueError("its list of storages is damaged")
    storages: dict[str, tuple[int, int]] = {}
    for key in keys:
        if key not in seen or key in storages:
            raise ValueError(f"its storage {key!r:.40} is listed twice, or nothing uses it")
        start = data.tell() + 8
        count = int.from_bytes(data.read(8), "little")
        size = seen[key].total * itemsize(seen[key].dtype)
        if start + size > len(data):
            raise ValueError(f"cut: it ends inside storage {key!r:.40}")
        if count != seen[key].total:
            wanted = seen[key].total
            raise ValueError(f"its storage {key!r:.40} has {count} elements, expected {wanted}")
        storages[key] = (start, size)
        data.seek(start + size)
    return _File(data, state, storages)


# ---- the part that is wanted ----


def _part(file: _File, key: str) -> tuple[Any, str]:
    """The value at a place, "." for all, and the place.  Raises: ConfigError."""
    found = (file.state, "") if key == "." else _at(file, file.state, "", key, 0)
    if found is None:
        top = ", ".join(
            f"{place[:40]!r}" for _, place, _ in islice(file.items(file.state, "", 0), 9)
        )
        raise ConfigError(f"there is no {key!r} in it; the first names in it are {top or 'none'}")
    return found


def _at(file: _File, value: Any, place: str, key: str, depth: int) -> tuple[Any, str] | None:
    """The value and place that a key leads to; names may have dots themselves."""
    for _, inner, item in file.items(value, place, depth):
        if inner == key:
            return item, inner
        if key.startswith(f"{inner}."):
            found = _at(file, item, inner, key, depth + 1)
            if found is not None:
                return found
    return None


def _choices(file: _File, value: Any, place: str, depth: int) -> Iterator[tuple[Any, str, int]]:
    """The dicts that hold tensors, their places and how many.

    Those of an optimizer's state are numbered or in lists, and not among them.
    """
    if isinstance(value, dict):
        count = sum(isinstance(item, Described) for item in value.values())
        if count:
            yield value, place, count
        for key, inner, item in file.items(value, place, depth):
            if isinstance(key, str) and isinstance(item, dict):
                yield from _choices(file, item, inner, depth + 1)


def _chosen(file: _File) -> tuple[Any, str]:
    """The only dict with tensors; all of the file where none has a name.  Raises: ConfigError."""
    choices = list(_choices(file, file.state, "", 0))
    if len(choices) > 1:
        named = [f"{place or '.'!r:.60} ({count})" for _, place, count in choices[:8]]
        more = f" and {len(choices) - 8} more" if len(choices) > 8 else ""
        raise ConfigError(
            f"tensors lie in {len(choices)} places, {_ADVICE}, or '.' for all: "
            f"{', '.join(named)}{more}"
        )
    return choices[0][:2] if choices else (file.state, "")


def _weights(file: _File, key: str | None) -> Weights:
    part, place = _chosen(file) if key is None else _part(file, key)
    tensors: dict[str, Tensor] = {}
    left_out: list[str] = []
    converted: Counter[tuple[str, str]] = Counter()
    start = (place.rpartition(".")[2] or "value") if isinstance(part, Described) else ""
    for name, item in _leaves(file, part, start, 0):
        if not isinstance(item, Described):
            left_out.append(name)
            continue
        if name in tensors:
            raise ValueError(f"two of its tensors would have the name {name!r}")
        if name in ("", "__metadata__") or any("\ud800" <= c <= "\udfff" for c in name):
            raise ValueError(f"a safetensors file cannot hold a tensor named {name!r}")
        tensors[name] = file.tensor(item, name)
        if DTYPES[item.dtype][2]:
            converted[item.dtype, DTYPES[item.dtype][2]] += 1
    if not tensors:
        raise ValueError(f"{repr(place) if place else 'it'} holds no tensors")
    return Weights(tensors, place, left_out, converted)


def _leaves(file: _File, value: Any, place: str, depth: int) -> Iterator[tuple[str, Any]]:
    """What is no container, by name, in the order of the file."""
    if not isinstance(value, dict | list | tuple):
        yield place, value
    for _, inner, item in file.items(value, place, depth):
        yield from _leaves(file, item, inner, depth + 1)
