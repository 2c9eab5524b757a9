"""`save` and `load`: round trips, damage, foreign files, and writing whole or not at all."""

import contextlib
import json
import math
import os
import pickle
import re
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_st

import rushlight as rl
from rushlight.io import load, replacing, save, write_atomic

REALS = ["float64", "float32", "float16"]
TENSOR_DTYPES = [*REALS, "int64", "int32", "int16", "int8", "uint8", "bool"]
ARRAY_DTYPES = [*TENSOR_DTYPES, "uint16", "uint32", "uint64", "complex64"]


def same(a, b):
    """Equal in type, structure and every bit of a number (any NaN is a NaN)."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        keys = zip(a, b, strict=False)
        return len(a) == len(b) and all(same(k, q) and same(a[k], b[q]) for k, q in keys)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, rl.Tensor):
        a, b = a.numpy(), b.numpy()
    if isinstance(a, np.ndarray | np.generic):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, float) and math.isnan(a):
        return math.isnan(b)
    return a == b and (not isinstance(a, float) or math.copysign(1, a) == math.copysign(1, b))


SHAPES = numpy_st.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3)
ARRAYS = st.sampled_from(ARRAY_DTYPES).flatmap(lambda dtype: numpy_st.arrays(dtype, SHAPES))
TENSORS = st.sampled_from(TENSOR_DTYPES).flatmap(
    lambda dtype: numpy_st.arrays(dtype, SHAPES).map(rl.from_numpy)
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
STATES = st.recursive(
    PLAIN | TENSORS | ARRAYS | ARRAYS.filter(lambda a: a.ndim == 0).map(lambda a: a[()]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(PLAIN.filter(lambda key: key == key), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.fixture
def quick(monkeypatch):
    """Without waiting for the disk."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)


@given(STATES)
@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_round_trip(tmp_path, quick, state):
    save(state, tmp_path / "a")
    assert same(load(tmp_path / "a"), state)
    save(load(tmp_path / "a"), tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


def test_names_and_bytes_are_those_of_the_library(tmp_path, rng):
    state = {
        f'h.{9 - i}.é"\\\n{dtype}': np.asarray(rng.integers(0, 2, (i % 3, 2)), dtype)
        for i, dtype in enumerate(ARRAY_DTYPES)
    }
    words = np.array([0x3F80, 0xC000, 0x7F80], np.uint16)
    save({**state, "bfloat16": rl.Tensor(words)}, tmp_path / "a")
    with safetensors.safe_open(tmp_path / "a", "np") as file:
        metadata = file.metadata()
    specs = {
        name: safetensors.TensorSpec(
            dtype="bfloat16" if name == "bfloat16" else array.dtype.name,
            shape=array.shape,
            data_ptr=array.ctypes.data,
            data_len=array.nbytes,
        )
        for name, array in {**state, "bfloat16": words}.items()
    }
    assert (tmp_path / "a").read_bytes() == bytes(safetensors.serialize(specs, metadata))
    assert same(load(tmp_path / "a")["bfloat16"], rl.tensor([1.0, -2.0, math.inf]))


def test_nested_names_and_collisions(tmp_path):
    one = {name: rl.full((1,), float(i)) for i, name in enumerate("tuv")}
    state = {
        "a.b": one["t"],
        "a": {"b": one["u"], 3: [one["v"], 1]},
        "__metadata__": one["t"],
        "\ud800": one["u"],
    }
    save(state, tmp_path / "a")
    assert same(load(tmp_path / "a"), state)
    names = set(safetensors.numpy.load_file(tmp_path / "a"))
    assert names == {"a.b", "a.b~2", "a.3.0", "__metadata__~2", "?"}


@pytest.mark.peer
def test_a_dict_of_tensors_is_a_plain_file(tmp_path, torch):
    state = rl.nn.Linear(3, 2).state_dict()
    save(state, tmp_path / "a")
    from safetensors.torch import load_file

    theirs = load_file(tmp_path / "a")
    assert {k: v.tolist() for k, v in theirs.items()} == {k: v.tolist() for k, v in state.items()}
    safetensors.numpy.save_file(
        {"x": np.ones(2), "a": np.zeros((), bool)}, tmp_path / "b", {"format": "pt"}
    )
    assert same(load(tmp_path / "b"), {"x": rl.ones(2).double(), "a": rl.tensor(False)})


def test_by_value_and_without_gradient(tmp_path):
    w = rl.nn.Parameter(rl.randn(4, 3))
    big_endian = np.arange(3, dtype=">f4")
    save({"w": w, "t": w.T, "e": big_endian, "s": w.shape}, tmp_path / "a")
    state = load(tmp_path / "a")
    assert type(state["w"]) is rl.Tensor
    assert not state["w"].requires_grad
    assert (state["t"] == w.T).all()
    assert (state["e"] == big_endian).all()
    assert state["s"] == (4, 3)


class Odd:
    pass


DEEP = [1]
for _ in range(99):
    DEEP = [DEEP]
AROUND = {}
AROUND["self"] = AROUND


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        ({"optimizer": {"hook": lambda: 0}}, TypeError, "^optimizer.hook: a function cannot be saved; dicts"),
        ([1, (Odd(),)], TypeError, "^1.0: an Odd cannot"),
        ({"a": {(1, 2): 3}}, TypeError, r"^a: the key \(1, 2\), a tuple"),
        ({"a": np.array("text")}, TypeError, "^a: a NumPy array of <U4"),
        ({"a": np.array([None])}, TypeError, "^a: a NumPy array of object"),
        (1j, TypeError, "^the state: a complex"),
        (DEEP, ValueError, "nested deeper than 64"),
        (AROUND, ValueError, "inside itself"),
    ],
)  # fmt: skip
def test_refuses_to_save(state, error, message, tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(error, match=message):
        save(state, tmp_path / "a")
    assert [(f.name, f.read_text()) for f in tmp_path.iterdir()] == [("a", "old")]


# ---- damage ----


def refused(path, *words):
    with pytest.raises(rl.FormatError) as info:
        load(path)
    message = str(info.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_cut_and_flipped_anywhere(tmp_path):
    save({"x": rl.ones(3), "m": rl.tensor([True]), "n": [1, {"y": np.zeros(2)}]}, tmp_path / "a")
    whole = (tmp_path / "a").read_bytes()
    for end in range(len(whole)):
        (tmp_path / "b").write_bytes(whole[:end])
        refused(tmp_path / "b")
    (tmp_path / "b").write_bytes(whole + b"\0")
    refused(tmp_path / "b")
    header = 8 + int.from_bytes(whole[:8], "little")
    for i in range(header):
        flipped = bytes([whole[i] ^ 1 << i % 8])
        (tmp_path / "b").write_bytes(whole[:i] + flipped + whole[i + 1 :])
        with contextlib.suppress(rl.FormatError):  # a digit or a letter of a name may be as good
            load(tmp_path / "b")


def raw(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="F32", shape=(1,), start=0, end=4):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        struct.pack("<q", -1) + b"{}",
        struct.pack("<Q", 2**40) + b"{}",
        raw(b"[]"),
        raw(b'{"a":' * 5000),
        raw({"a": entry(start=4, end=0)}, bytes(4)),
        raw({"a": entry(), "b": entry(start=2, end=6)}, bytes(6)),
        raw({"a": entry()}, bytes(3)),
        raw({"a": entry(end=8)}, bytes(8)),
        raw({"a": entry(shape=(2**62, 2**62))}, bytes(4)),
        raw({"a": entry(shape=(2**40,), end=2**42)}, bytes(4)),
        raw({"a": entry(shape=(0, 2**62), end=0)}),
        raw({"a": entry(shape=(1,) * 100)}, bytes(4)),
        raw({"a": entry("Q17")}, bytes(4)),
        raw({"a": entry("F8_E5M2", (4,))}, bytes(4)),
        raw({"a": entry("U32")}, bytes(4)),
        raw({"a": entry("BOOL", (4,))}, b"\0\1\2\1"),
        raw({"a": entry()}, bytes(5)),
        raw(b'{"a":%s,"a":%s}' % ((json.dumps(entry()).encode(),) * 2), bytes(4)),
        raw(b'{"__metadata__":{"a":"1","a":"2"}}'),
    ],
    ids=len,
)
def test_bad_headers(data, tmp_path):
    (tmp_path / "a").write_bytes(data)
    refused(tmp_path / "a")


TENSOR = '{"tensor":"x"}'
ONE = '{"version":1,"state":%s}'


@pytest.mark.parametrize(
    ("skeleton", "word"),
    [
        ("", "damaged"),
        ("[]", "skeleton"),
        ('{"version":1}', "skeleton"),
        (ONE.replace("1", "2") % TENSOR, "version 2"),
        (ONE % "1", "'x' has no place"),
        (ONE % f"[{TENSOR},{TENSOR}]", "names it twice"),
        (ONE % '{"tensor":"y"}', "'y', which is not there"),
        (ONE % '{"tensor":["x"]}', "no known form"),
        (ONE % '{"tensor":"x","array":"x"}', "no known form"),
        (ONE % '{"object":"os.system"}', "no known form"),
        (ONE % '{"float":"1e5"}', "no known form"),
        (ONE % '{"scalar":"x"}', "shape (1,)"),
        (ONE % '{"dict":[["k"]]}', "pairs"),
        (ONE % ('{"dict":[["k",' + TENSOR + '],["k",1]]}'), "'k' twice"),
        (ONE % ('{"dict":[[[1],' + TENSOR + "]]}"), "[1]"),
        (ONE % '{"dict":{"k":1}}', "no known form"),
        (ONE % ("[" * 65 + TENSOR + "]" * 65), "deeper"),
        (ONE % ("[" * 10**5), "damaged"),
        (ONE % ("9" * 5000), "damaged"),
    ],
    ids=lambda text: text[:40],
)
def test_bad_skeletons(skeleton, word, tmp_path):
    (tmp_path / "a").write_bytes(
        raw({"__metadata__": {"rushlight": skeleton}, "x": entry()}, bytes(4))
    )
    refused(tmp_path / "a", word)


def test_missing_and_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such file.*gone"):
        load(tmp_path / "gone")
    for call in (load, lambda path: save(1, path)):
        with pytest.raises(IsADirectoryError, match=re.escape(str(tmp_path))):
            call(tmp_path)
    with pytest.raises(FileNotFoundError, match="gone/a"):
        save(1, tmp_path / "gone/a")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "ordinary")
    with pytest.raises(OSError, match="ordinary"):
        save(1, tmp_path / "pipe")


class Payload:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def test_never_runs_code(tmp_path, monkeypatch):
    """Fault 25."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "model.pt"
    for protocol in (2, 3, 4, 5):
        path.write_bytes(pickle.dumps(Payload(), protocol))
        refused(path, "run whatever code", "rushlight convert", str(path))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps(Payload(), 2))
    refused(path, "run whatever code", "rushlight convert")
    with path.open("wb") as file:
        np.savez(file, a=np.array([Payload()]))
    refused(path, "numpy.load")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(path, "zip")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("readme", "")
    refused(path, "zip")
    path.write_bytes(pickle.dumps(Payload(), 0))
    refused(path, "not a safetensors file")
    assert not (tmp_path / "ran").exists()


# ---- whole or not at all ----


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, OSError(28, "No space left")])
def test_an_error_leaves_the_old_file(error, tmp_path):
    write_atomic(tmp_path / "a", "old")
    kind = error if isinstance(error, type) else OSError
    with pytest.raises(kind) as info, replacing(tmp_path / "a") as file:  # noqa: PT012
        file.write(b"new")
        (part,) = set(os.listdir(tmp_path)) - {"a"}
        assert part.startswith(f"a.{os.getpid()}")
        assert part.endswith(".part")
        raise error
    assert kind is not OSError or (info.value.errno == 28 and str(tmp_path) in str(info.value))
    assert [(f.name, f.read_text()) for f in tmp_path.iterdir()] == [("a", "old")]


def test_a_full_disk_leaves_the_old_file(tmp_path):
    save({"x": rl.ones(2)}, tmp_path / "a")
    before = (tmp_path / "a").read_bytes()
    code = f"""
import resource, signal, rushlight as rl
from rushlight.io import save
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
for count in (2600, 10**6):
    try:
        save({{"x": rl.zeros(count)}}, {str(tmp_path / "a")!r})
    except OSError as error:
        print(error.errno, error)
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.count("27 [Errno 27] File too large; nothing was written") == 2, out
    assert out.stdout.count(str(tmp_path / "a")) == 2
    assert [(f.name, f.read_bytes()) for f in tmp_path.iterdir()] == [("a", before)]


def test_a_link_stays_a_link(tmp_path):
    write_atomic(tmp_path / "a", b"old")
    (tmp_path / "link").symlink_to("a")
    write_atomic(tmp_path / "link", "né")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a").read_text("utf-8") == "né"


def test_the_mode_of_a_file_stays(tmp_path):
    path = tmp_path / "private.safetensors"
    rl.save({"a": rl.ones(1)}, path)
    path.chmod(0o600)
    rl.save({"a": rl.ones(2)}, path)
    assert path.stat().st_mode & 0o777 == 0o600
