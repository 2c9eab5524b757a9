"""`save` and `load`: nested state as one safetensors file.

Tensors lie in the file under the keys that lead to them, joined by dots. Everything else, and how
it nests, is one metadata entry, "rushlight": JSON, where a dict is {"dict": [[key, value], ...]}, a
tuple {"tuple": [...]}, inf and nan {"float": "inf"}, and what lies in the file {"tensor": name},
{"array": name} or {"scalar": name}. The same state gives the same bytes.

The library checks what is read. The writing is done here: its own writer copies the state or leaves
behind, when killed, a temporary file that nobody can tell from others.
"""

from __future__ import annotations

import json
import math
import os
from collections import OrderedDict
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open

from rushlight.errors import FormatError
from rushlight.io.files import PathLike, one_line, open_ordinary, replacing
from rushlight.kernels import Array
from rushlight.ops.convert import as_tensor, host
from rushlight.tensor import Size, Tensor

_ENTRY = "rushlight"  # the metadata entry
_VERSION = 1  # of the skeleton
_MAX_DEPTH = 64
_MAX_HEADER = 100_000_000  # bytes; what the library reads
# What stores each safetensors dtype, in the order in which the library lays them in a file
_CODES = {
    code: np.dtype(kind)
    for code, kind in (
        *(("U64", "<u8"), ("I64", "<i8"), ("F64", "<f8"), ("C64", "<c8"), ("F32", "<f4")),
        *(("U32", "<u4"), ("I32", "<i4"), ("BF16", "<u2"), ("F16", "<f2"), ("U16", "<u2")),
        *(("I16", "<i2"), ("I8", "i1"), ("U8", "u1"), ("BOOL", "?")),
    )
}
_CODE_OF = {dtype: code for code, dtype in _CODES.items()}  # U16 for <u2
_RANK = {code: rank for rank, code in enumerate(_CODES)}


# ---- saving ----


def save(obj: Any, path: PathLike) -> None:
    """Write nested state to a safetensors file, whole or not at all.

    obj: dicts (keys str, int, float, bool, None), lists, tuples, tensors, NumPy arrays and
    scalars, int, float, str, bool, None. A dict of tensors gives a file with exactly its names that
    every reader of safetensors takes. Tensors are saved by value, one that stands in two places
    twice.  Raises: TypeError naming the place of anything else, ValueError for nesting too deep or
    too much that is not a tensor, OSError with the path when it cannot be written; the file that
    was there is unchanged then.
    """
    packer = _Packer()
    skeleton = {"version": _VERSION, "state": packer.pack(obj, "", 0)}
    names = sorted(packer.entries, key=lambda n: (_RANK[packer.entries[n][0]], n.encode()))
    text = json.dumps(skeleton, separators=(",", ":"), allow_nan=False)
    header: dict[str, Any] = {"__metadata__": {_ENTRY: text}}
    end = 0
    for name in names:
        code, array = packer.entries[name]
        start, end = end, end + array.nbytes
        header[name] = {"dtype": code, "shape": array.shape, "data_offsets": [start, end]}
    raw = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)
    if len(raw) > _MAX_HEADER:
        raise ValueError(f"{path}: {len(raw)} bytes of names, numbers and text; use arrays")
    with replacing(path) as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for name in names:
            array = packer.entries[name][1]
            row_major = np.asarray(array, array.dtype.newbyteorder("<"), order="C")
            file.write(_bytes(row_major))


class _Packer:
    """Turns state into its skeleton and collects the arrays: dtype code and array by name."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[str, Array]] = {}

    def pack(self, value: Any, place: str, depth: int) -> Any:
        """The skeleton of a value that stands at a place."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"{place}: nested deeper than {_MAX_DEPTH}, or inside itself")
        if value is None or type(value) in (bool, int, float, str):
            return _pack_plain(value)
        if isinstance(value, Tensor):
            return {"tensor": self.add(host(value, "save"), place, is_tensor=True)}
        if isinstance(value, np.ndarray | np.generic):
            kind = "array" if isinstance(value, np.ndarray) else "scalar"
            return {kind: self.add(np.asarray(value), place)}
        if type(value) in (dict, OrderedDict):
            pairs = []
            for key, item in value.items():
                if key is not None and type(key) not in (bool, int, float, str):
                    raise TypeError(
                        f"{place or 'the state'}: the key {key!r}, a {type(key).__name__}, "
                        "cannot be saved; str, int, float, bool and None can"
                    )
                pairs.append([_pack_plain(key), self.pack(item, _join(place, key), depth + 1)])
            return {"dict": pairs}
        if type(value) in (list, tuple, Size):
            items = [self.pack(item, _join(place, i), depth + 1) for i, item in enumerate(value)]
            return items if type(value) is list else {"tuple": items}
        hint = "; save its state_dict()" if hasattr(value, "state_dict") else ""
        raise _cannot(place, type(value).__name__, hint)

    def add(self, array: Array, place: str, is_tensor: bool = False) -> str:
        """Keep an array under its place, or a name like it where that is taken."""
        code = _CODE_OF.get(array.dtype.newbyteorder("<"))
        if code is None:
            raise _cannot(place, f"NumPy array of {array.dtype}")
        if is_tensor and code == "U16":
            code = "BF16"  # the only tensors stored in such words
        wanted = place.encode("utf-8", "replace").decode() or "value"
        name, count = wanted, 1
        while name in self.entries or name == "__metadata__":
            count += 1
            name = f"{wanted}~{count}"
        self.entries[name] = (code, array)
        return name


def _pack_plain(value: Any) -> Any:
    if type(value) is float and not math.isfinite(value):
        return {"float": str(value)}
    return value


def _join(place: str, key: Any) -> str:
    return f"{place}.{key}" if place else str(key)


def _cannot(place: str, what: str, hint: str = "") -> TypeError:
    article = "an" if what[0] in "aeiouAEIOU" else "a"
    return TypeError(
        f"{place or 'the state'}: {article} {what} cannot be saved; dicts, lists, tuples, tensors, "
        f"arrays of numbers, int, float, str, bool and None can{hint}"
    )


def _bytes(array: Array) -> Any:
    """The memory of a row-major array."""
    return array.reshape(-1).view(np.uint8).data


# ---- loading ----


def load(path: PathLike) -> Any:
    """Read what `save` wrote, or a safetensors file of other origin as a dict of tensors.

    Tensors come without gradient, bfloat16 as float32 (no value changes), arrays as arrays. No
    code is ever run.  Raises: FormatError in one line for anything damaged or not of this format,
    pickles included; FileNotFoundError, IsADirectoryError.
    """
    with open_ordinary(path) as file:
        try:
            with safe_open(path, "np"):  # checks sizes, offsets, dtypes; allocates no tensor
                pass
        except (SafetensorError, OSError) as error:
            raise FormatError(f"{path}: {_diagnosis(file, path, error)}") from None
        if not os.path.samestat(os.stat(path), os.fstat(file.fileno())):
            return load(path)  # replaced just now: what was checked is not what is open
        try:
            return _read(file)
        except (ValueError, RecursionError) as error:
            raise FormatError(f"{path}: damaged: {one_line(error)}") from None


def _read(file: BinaryIO) -> Any:
    """The state in a file whose header is sound.  Raises ValueError."""
    size = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(size), object_pairs_hook=_unique)
    text = (header.pop("__metadata__", None) or {}).get(_ENTRY)
    arrays = {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        file.seek(8 + size + entry["data_offsets"][0])
        arrays[name] = _read_array(file, name, entry["dtype"], entry["shape"])
    if text is None:
        return {name: _tensor(name, array) for name, array in arrays.items()}
    skeleton = json.loads(text, object_pairs_hook=_unique)
    if not isinstance(skeleton, dict) or set(skeleton) != {"version", "state"}:
        raise ValueError(f"metadata {_ENTRY!r} is not a skeleton")
    if skeleton["version"] != _VERSION:
        raise ValueError(f"skeleton of version {skeleton['version']!r}, this reads {_VERSION}")
    state = _unpack(skeleton["state"], arrays, 0)
    if arrays:
        raise ValueError(f"tensor {next(iter(arrays))!r} has no place in the skeleton")
    return state


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice in the header")
    return found


def _read_array(file: BinaryIO, name: str, code: str, shape: list[int]) -> Array:
    if code not in _CODES:
        raise ValueError(f"tensor {name!r} is of dtype {code}; known are {', '.join(_CODES)}")
    array = np.empty(shape, _CODES[code])
    if file.readinto(_bytes(array)) != array.nbytes:  # type: ignore[attr-defined]
        raise ValueError(f"ends inside tensor {name!r}")
    if code == "BOOL" and array.size and array.view(np.uint8).max() > 1:
        raise ValueError(f"tensor {name!r} has truth values other than 0 and 1")
    if code == "BF16":
        wide = np.zeros(shape, np.float32)
        wide.reshape(-1).view(np.uint16)[1::2] = array.reshape(-1)  # the upper half of each
        return wide
    return array


def _tensor(name: str, array: Array) -> Tensor:
    try:
        return as_tensor(array)
    except TypeError as error:
        raise ValueError(f"tensor {name!r}: {error}") from None


def _unpack(node: Any, arrays: dict[str, Array], depth: int) -> Any:
    """The value of a skeleton; takes out of `arrays` what it uses.  Raises ValueError."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested deeper than {_MAX_DEPTH}")
    if isinstance(node, list):
        return [_unpack(item, arrays, depth + 1) for item in node]
    if not isinstance(node, dict):
        return node
    kind, content = next(iter(node.items())) if len(node) == 1 else (None, None)
    if kind == "float" and content in ("inf", "-inf", "nan"):
        return float(content)
    if kind == "tuple" and isinstance(content, list):
        return tuple(_unpack(item, arrays, depth + 1) for item in content)
    if kind == "dict" and isinstance(content, list):
        return _unpack_dict(content, arrays, depth)
    if kind in ("tensor", "array", "scalar") and isinstance(content, str):
        return _take(kind, content, arrays)
    raise ValueError(f"the skeleton holds {json.dumps(node)[:60]}, which is of no known form")


def _take(kind: str, name: str, arrays: dict[str, Array]) -> Any:
    if name not in arrays:
        raise ValueError(f"the skeleton names {name!r}, which is not there, or names it twice")
    array = arrays.pop(name)
    if kind == "scalar" and array.ndim:
        raise ValueError(f"scalar {name!r} has shape {array.shape}")
    return _tensor(name, array) if kind == "tensor" else array if kind == "array" else array[()]


def _unpack_dict(pairs: list[Any], arrays: dict[str, Array], depth: int) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for pair in pairs:
        if not isinstance(pair, list) or len(pair) != 2:
            raise ValueError("the skeleton has a dict that is not made of pairs")
        key = _unpack(pair[0], {}, depth + 1)
        if isinstance(key, list | tuple | dict) or key in found:
            raise ValueError(f"the skeleton has the key {key!r} twice, or it can be none")
        found[key] = _unpack(pair[1], arrays, depth + 1)
    return found


# ---- what else it may be ----


def _diagnosis(file: BinaryIO, path: PathLike, error: Exception) -> str:
    """Why a file is not read, and for a pickle the way out."""
    start = file.read(512)
    zipped = start.startswith(b"PK\x03\x04")  # the name of its first file comes soon after
    pickled = start.startswith((b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05"))
    if pickled or (zipped and b"data.pkl" in start):
        return (
            "a pickle (torch.save), whose loading may run whatever code it contains. Its weights "
            f"are read without that by: rushlight convert {os.fspath(path)} weights.safetensors"
        )
    if zipped and b".npy" in start:
        return (
            "a NumPy zip archive, not a safetensors file, and may hold pickles; convert it: "
            f"rushlight.save(dict(numpy.load({str(path)!r})), 'state.safetensors')"
        )
    if zipped:
        return "a zip archive, not a safetensors file"
    return f"not a safetensors file, or cut or damaged ({one_line(error)})"
