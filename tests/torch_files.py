"""A writer of PyTorch's files: pickles operation by operation, and the two containers."""

import pickle
import struct
import subprocess
import sys
import zipfile
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Name:
    full: str


@dataclass(frozen=True)
class Call:
    name: str
    arguments: tuple
    state: object = None  # what BUILD gives


@dataclass(frozen=True)
class Stored:
    identity: tuple


@dataclass(frozen=True)
class Raw:
    operations: bytes


def code(value):
    """The operations, of protocol 2, that make a value."""
    if isinstance(value, Raw):
        return value.operations
    if isinstance(value, Name):
        module, _, name = value.full.rpartition(".")
        return f"c{module}\n{name}\n".encode()
    if isinstance(value, Call):
        built = b"" if value.state is None else code(value.state) + b"b"
        return code(Name(value.name)) + code(value.arguments) + b"R" + built
    if isinstance(value, Stored):
        return code(value.identity) + b"Q"
    if isinstance(value, dict):
        pairs = b"".join(code(k) + code(v) for k, v in value.items())
        return b"}(" + pairs + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(code, value)) + b"e"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(code, value)) + b"t"
    return pickle.dumps(value, 2)[2:-1]  # without PROTO and STOP


def pickled_bytes(value):
    return b"\x80\x02" + code(value) + b"."


KINDS = {"f4": "Float", "f8": "Double", "f2": "Half", "i8": "Long", "i4": "Int", "i2": "Short"}
KINDS |= {"i1": "Char", "u1": "Byte", "b1": "Bool"}


def stored(key, kind, numel, *view):
    return Stored(("storage", Name(f"torch.{kind}Storage"), key, "cuda:0", numel, *view))


def tensor(key, kind, numel, size, stride, offset=0):
    hooks = Call("collections.OrderedDict", ())
    arguments = (stored(key, kind, numel), offset, size, stride, False, hooks)
    return Call("torch._utils._rebuild_tensor_v2", arguments)


def whole(key, array):
    """A row-major tensor that is all of a storage."""
    strides = tuple(step // array.itemsize for step in array.strides)
    kind = KINDS[array.dtype.str[1:]]
    return tensor(key, kind, array.size, array.shape, strides)


def write_zip(path, state, storages, order=b"little", root="archive", **more):
    """state: a value, or the bytes of data.pkl.  storages: bytes or arrays by key."""
    data = state if isinstance(state, bytes) else pickled_bytes(state)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{root}/data.pkl", data)
        if order is not None:
            archive.writestr(f"{root}/byteorder", order)
        for key, content in storages.items():
            raw = content.tobytes() if isinstance(content, np.ndarray) else content
            archive.writestr(f"{root}/data/{key}", raw)
        archive.writestr(f"{root}/version", b"3\n")
        for name, content in more.items():
            archive.writestr(f"{root}/{name.replace('_pkl', '.pkl')}", content)


MAGIC = 0x1950A86A20F9469CFC6C


def write_legacy(path, state, storages, keys=None, little=True):
    """storages: arrays by key."""
    facts = {"protocol_version": 1001, "little_endian": little, "type_sizes": {"int": 4}}
    with open(path, "wb") as file:
        for value in (MAGIC, 1001, facts, state, list(storages) if keys is None else keys):
            file.write(pickled_bytes(value))
        for array in storages.values():
            file.write(struct.pack("<q", array.size) + array.tobytes())


def write(kind, path, state, storages):
    (write_zip if kind == "zip" else write_legacy)(path, state, storages)


def error_of(*arguments, code=1):
    """The one line that the command prints."""
    done = subprocess.run(
        [sys.executable, "-m", "rushlight", "convert", *arguments],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, ""), done
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("rushlight convert: ")
    return done.stderr
