"""What may stand in a pickle of PyTorch's, and what it means: a tensor becomes a description.

A tensor is written as a call, (storage, offset, sizes, strides, ...), and its storage as a
persistent id. `WORDS` has every name that a file may use, and for those that it may call what comes
of it; no call reads a tensor's numbers or makes room for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rushlight.io.pickled import Maker, Object, Word, make, plain_key
from rushlight.kernels import Array

_MAX_AXES = 64
Spend = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Storage:
    """Numbers in the file: `total` of them, of which those from `start` to `end` may be used."""

    key: str
    dtype: str
    total: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Described:
    """A tensor whose numbers were not read yet; offset and strides count elements."""

    storage: Storage
    dtype: str
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    negative: bool = False  # what is stored is its opposite

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.size)


def _bfloat16(words: Array) -> Array:
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _float8_e5m2(raw: Array) -> Array:
    return (raw.astype(np.uint16) << np.uint16(8)).view(np.float16).astype(np.float32)


def _float8_e4m3fn(raw: Array) -> Array:
    """Sign, four bits of exponent with bias 7, three of fraction; only all ones is not a number."""
    code = np.arange(128)
    exponent, fraction = code >> 3, (code & 7) / 8
    values = np.where(exponent, (1 + fraction) * 2.0 ** (exponent - 7), fraction * 2.0**-6)
    values[127] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)[raw]


# By PyTorch's name: how numbers are stored, and how they are made into what Rushlight has
DTYPES: dict[str, tuple[str, Callable[[Array], Array] | None, str]] = {
    **{f"float{8 * n}": (f"f{n}", None, "") for n in (2, 4, 8)},
    **{f"int{8 * n}": (f"i{n}", None, "") for n in (1, 2, 4, 8)},
    "uint8": ("u1", None, ""),
    "bool": ("u1", lambda array: array != 0, ""),
    "bfloat16": ("u2", _bfloat16, "float32"),
    "float8_e5m2": ("u1", _float8_e5m2, "float32"),
    "float8_e4m3fn": ("u1", _float8_e4m3fn, "float32"),
    "uint16": ("u2", lambda array: array.astype(np.int32), "int32"),
    "uint32": ("u4", lambda array: array.astype(np.int64), "int64"),
}
_NAMED_ONLY = ("complex32", "complex64", "complex128", "uint64", "qint8", "quint8", "qint32")
_STORAGES = {
    **{"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16"},
    **{"Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8"},
    **{"Bool": "bool", "ComplexFloat": "complex64", "ComplexDouble": "complex128"},
    **{"QInt8": "qint8", "QUInt8": "quint8", "QInt32": "qint32"},
}
_BYTES = {"bytes": 1, "complex64": 8, "complex128": 16, "qint8": 1, "quint8": 1, "qint32": 4}
_STORAGE_DTYPE = {
    **{f"torch.{name}Storage": dtype for name, dtype in _STORAGES.items()},
    **{f"torch.cuda.{name}Storage": dtype for name, dtype in _STORAGES.items()},
    **dict.fromkeys(("torch.UntypedStorage", "torch.storage.UntypedStorage"), "bytes"),
    "torch.storage._UntypedStorage": "bytes",
}


def itemsize(dtype: str) -> int:
    """Bytes of a stored element."""
    return np.dtype(DTYPES[dtype][0]).itemsize if dtype in DTYPES else _BYTES[dtype]


def storage_of(persistent: Any) -> Storage:
    """From a persistent id: ("storage", type, key, where it was, numel[, view])."""
    what = persistent[:5] if isinstance(persistent, tuple) else ()
    if what[:1] == ("module",):
        raise ValueError("it holds a whole model with its source; only its state_dict can be read")
    match what:
        case ("storage", Word(name), str(key), _, int(total)) if name in _STORAGE_DTYPE:
            dtype = _STORAGE_DTYPE[name]
        case _:
            raise ValueError("its pickle is damaged: a storage that is described wrongly")
    match persistent[5:]:
        case () | (None,):
            start, end = 0, total
        case ((_, int(start), int(length)),):  # before 1.6, a storage could be part of another
            end = start + length
        case _:
            raise ValueError("its pickle is damaged: a view of a storage that is described wrongly")
    if not 0 <= start <= end <= total < 1 << 62:
        raise ValueError(f"storage {key!r:.40} is described wrongly: {start} to {end} of {total}")
    return Storage(key, dtype, total, start, end)


def _tensor(arguments: tuple[Any, ...], spend: Spend) -> Described:
    """(storage, offset, sizes, strides[, needs gradient, hooks][, dtype][, marks])."""
    match arguments:
        case (Storage() as storage, int(offset), tuple(size), tuple(stride), *rest):
            counts = (offset, *size, *stride)
        case _:
            raise ValueError("its pickle is damaged: a tensor that is described wrongly")
    named = [value.name.removeprefix("torch.") for value in rest if isinstance(value, Word)]
    negative = any(isinstance(value, dict) and value.get("neg") is True for value in rest[2:])
    if len(size) != len(stride) or len(size) > _MAX_AXES:
        raise ValueError(f"a tensor has {len(size)} sizes and {len(stride)} strides")
    if any(type(n) is not int or not 0 <= n < 1 << 62 for n in counts):
        raise ValueError("a tensor has an offset, size or stride that is no count")
    dtype = named[0] if named else storage.dtype
    return Described(storage, dtype, offset + storage.start, size, stride, negative)


def _first(arguments: tuple[Any, ...], spend: Spend) -> Any:
    """(tensor, needs gradient, hooks[, attributes]) of a parameter, (sizes) of a size."""
    return arguments[0]


def _typed(arguments: tuple[Any, ...], spend: Spend) -> Any:
    """(how it is made, type, arguments, attributes): a tensor that was given attributes."""
    match arguments:
        case (Word(name) as word, Word("torch.Tensor" | "torch.nn.parameter.Buffer"), inner, _):
            if name.startswith("torch._utils._rebuild_tensor"):
                return make(word, inner, WORDS, spend)
    raise ValueError("its pickle has a tensor of a class of its own, which is unknown here")


def _filled_dict(arguments: tuple[Any, ...], spend: Spend) -> dict[Any, Any]:
    """(pairs), as Python 2 wrote ordered dicts, or nothing."""
    found: dict[Any, Any] = {}
    for pair in arguments[0] if arguments and isinstance(arguments[0], list) else ():
        spend(1)
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise ValueError("its pickle is damaged: an ordered dict that is not made of pairs")
        found[pair[0]] = pair[1]
    return found


class Namespace(dict[Any, Any], Object):
    """argparse's; its fields."""

    def build(self, state: Any, spend: Spend) -> None:
        """Take the fields."""
        if not isinstance(state, dict):
            raise ValueError("its pickle is damaged: a namespace without fields")
        spend(len(state))
        self.update(state)


_NUMPY = ("b1", "f2", "f4", "f8", *(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)))


class _Dtype(Object):
    """NumPy's, of plain numbers."""

    def __init__(self, arguments: tuple[Any, ...], spend: Spend) -> None:
        code = arguments[0] if arguments else None
        if not isinstance(code, str) or code not in _NUMPY:
            raise ValueError(f"its pickle has a NumPy dtype that is not of numbers: {code!r:.40}")
        self.dtype = np.dtype(code)

    def build(self, state: Any, spend: Spend) -> None:
        """Take (version, byte order, ...)."""
        if isinstance(state, tuple) and state[1:2] == (">",):
            self.dtype = self.dtype.newbyteorder(">")

    def read(self, data: Any, shape: Any, order: Any = "C") -> Array:
        """An array over bytes that have exactly its size."""
        sizes = shape if isinstance(shape, tuple) and len(shape) <= _MAX_AXES else (-1,)
        if any(type(n) is not int or not 0 <= n < 1 << 62 for n in sizes):
            raise ValueError("its pickle is damaged: a NumPy array without a shape")
        if not isinstance(data, bytes) or len(data) != math.prod(sizes) * self.dtype.itemsize:
            raise ValueError(f"its pickle is damaged: a NumPy array of {sizes} without its bytes")
        native = np.frombuffer(data, self.dtype).astype(self.dtype.newbyteorder("="))
        return native.reshape(sizes, order=order)


class NumpyArray(Object):
    """NumPy's, of plain numbers."""

    def __init__(self) -> None:
        self.value: Array = np.zeros(0)

    def build(self, state: Any, spend: Spend) -> None:
        """Take (version, shape, dtype, whether column-major, bytes)."""
        match state:
            case (_, shape, _Dtype() as dtype, bool(by_columns), bytes(data)):
                spend(len(data))
                self.value = dtype.read(data, shape, "F" if by_columns else "C")
            case _:
                raise ValueError("its pickle is damaged: a NumPy array that is described wrongly")


def _numpy_scalar(arguments: tuple[Any, ...], spend: Spend) -> Any:
    """(dtype, bytes)."""
    if len(arguments) != 2 or not isinstance(arguments[0], _Dtype):
        raise ValueError("its pickle is damaged: a NumPy number that is described wrongly")
    return arguments[0].read(arguments[1], ())[()]


def _encoded(arguments: tuple[Any, ...], spend: Spend) -> bytes:
    """(text, "latin1"): how bytes are written in old pickles."""
    match arguments:
        case (str(text), "latin1" | "latin-1"):
            spend(len(text))
            return text.encode("latin-1")
    raise ValueError("its pickle is damaged: bytes that are described wrongly")


def _device(arguments: tuple[Any, ...], spend: Spend) -> str:
    """(kind[, index]); tensors are read to the CPU."""
    if not all(isinstance(part, str | int) for part in arguments):
        raise ValueError("its pickle is damaged: a device that is described wrongly")
    return ":".join(map(str, arguments))


def _set(arguments: tuple[Any, ...], spend: Spend) -> set[Any]:
    """(items)."""
    items = arguments[0] if arguments and isinstance(arguments[0], list) else []
    spend(len(items))
    return set(map(plain_key, items))


WORDS: dict[str, Maker | None] = {
    **dict.fromkeys(_STORAGE_DTYPE),
    **dict.fromkeys(f"torch.{name}" for name in (*DTYPES, *_NAMED_ONLY)),
    **dict.fromkeys(("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer")),
    **{f"torch._utils._rebuild_tensor{version}": _tensor for version in ("", "_v2", "_v3")},
    **{f"torch._utils._rebuild_parameter{state}": _first for state in ("", "_with_state")},
    "torch._tensor._rebuild_from_type_v2": _typed,
    "torch.Size": _first,
    "torch.device": _device,
    "collections.OrderedDict": _filled_dict,
    "argparse.Namespace": lambda arguments, spend: Namespace(),
    **dict.fromkeys(("builtins.set", "__builtin__.set"), _set),
    "_codecs.encode": _encoded,
    "numpy.dtype": _Dtype,
    "numpy.ndarray": None,
    **{f"numpy.{c}.multiarray.scalar": _numpy_scalar for c in ("core", "_core")},
    **{f"numpy.{c}.multiarray._reconstruct": lambda *_: NumpyArray() for c in ("core", "_core")},
}
