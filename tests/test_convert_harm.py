"""PyTorch's files that are damaged or mean harm: refused in a line, and nothing is run."""

import contextlib
import os
import pickle
import struct
import subprocess
import sys
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

import rushlight as rl
from rushlight.io import load_torch, pickled
from rushlight.io.torch_file import load_weights
from torch_files import (
    MAGIC,
    Call,
    Raw,
    Stored,
    code,
    error_of,
    pickled_bytes,
    stored,
    tensor,
    whole,
    write,
    write_legacy,
    write_zip,
)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


both = pytest.mark.parametrize("kind", ["zip", "legacy"])


# ---- files that are damaged ----


@both
def test_cut_anywhere(here, kind):
    numbers = np.arange(6, dtype=np.float32)
    write(kind, "a.pth", {"w": whole("0", numbers), "s": [1, "two"]}, {"0": numbers})
    good = Path("a.pth").read_bytes()
    load_torch("a.pth")
    for size in range(len(good)):
        Path("a.pth").write_bytes(good[:size])
        with pytest.raises(rl.FormatError) as caught:
            load_torch("a.pth")
        assert "\n" not in str(caught.value)


@both
def test_damaged_anywhere(here, kind, rng):
    """Any byte: either read, or refused as such."""
    numbers = np.arange(6, dtype=np.float32)
    float64 = Call("numpy.dtype", ("f8", False, True), (3, "<", None, None, None, -1, -1, 0))
    eight = Call("_codecs.encode", ("\0" * 8, "latin1"))
    state = {
        "w": whole("0", numbers),
        "s": [1, "two", (2.5, None), Call("torch.device", ("cuda", 1))],
        "n": Call("numpy._core.multiarray.scalar", (float64, eight)),
        "a": Raw(b"cargparse\nNamespace\n)\x81" + code({"lr": 0.1}) + b"b"),
    }
    write(kind, "a.pth", state, {"0": numbers})
    good = Path("a.pth").read_bytes()
    for place in range(len(good)):
        for value in (good[place] ^ 1, rng.integers(256), rng.choice(list(b"Rb.tsu\xff"))):
            Path("a.pth").write_bytes(good[:place] + bytes([value]) + good[place + 1 :])
            with contextlib.suppress(rl.FormatError):
                load_torch("a.pth")
                load_weights("a.pth", key=".")


def test_storages_and_tensors_that_do_not_fit(here):
    numbers = np.arange(6, dtype=np.float32)
    t = tensor
    for state, message in [
        (t("1", "Float", 6, (6,), (1,)), "its storage '1' is missing"),
        (t("0", "Float", 7, (6,), (1,)), "should have 7 elements of 4 bytes and has 24 bytes"),
        (t("0", "Double", 6, (1,), (1,)), "should have 6 elements of 8 bytes and has 24 bytes"),
        (t("0", "Float", 6, (7,), (1,)), "reach outside its storage of 6 elements"),
        (t("0", "Float", 6, (2, 3), (4, 1)), "reach outside"),
        (t("0", "Float", 6, (1,), (1,), 6), "reach outside"),
        (t("0", "Float", 6, (2,), (1 << 61,)), "reach outside"),
        (t("0", "Float", 6, (1 << 40, 1 << 40), (0, 0)), "far too many; were they expanded"),
        (t("0", "Float", 6, (1 << 30,), (0,)), "far too many; were they expanded"),
        (t("0", "Float", 6, (0, *[1 << 61] * 5), (1,) * 6), "tensor ''"),
        (t("0", "Float", 6, (1,), (1,), -1), "no count"),
        (t("0", "Float", 6, (-1,), (1,)), "no count"),
        (t("0", "Float", 6, (2,), (-1,)), "no count"),
        (t("0", "Float", 6, (True,), (1,)), "no count"),
        (t("0", "Float", 6, (1 << 80,), (1,)), "no count"),
        (t("0", "Float", 6, (1,), (1, 1)), "1 sizes and 2 strides"),
        (t("0", "Float", 6, (1,) * 65, (1,) * 65), "65 sizes"),
        (t("0", "Float", -6, (1,), (1,)), "described wrongly"),
        (
            t("0", "ComplexFloat", 3, (3,), (1,)),
            "of dtype complex64, which Rushlight does not have",
        ),
        (stored("0", "Float", 6), "is a storage without a tensor"),
        (Stored(("module", 1, 2)), "a whole model"),
        (Stored(5), "described wrongly"),
    ]:
        write_zip("a.pth", state, {"0": numbers})
        with pytest.raises(rl.FormatError) as caught:
            load_torch("a.pth")
        assert message in str(caught.value)
    many = {f"w{i}": t("0", "Float", 6, (1 << 22,), (0,)) for i in range(9)}
    write_zip("a.pth", many, {"0": numbers})  # each is small enough, not all of them
    with pytest.raises(rl.FormatError, match=r"tensor 'w4'.*far too many"):
        load_torch("a.pth")


def test_legacy_storages_that_do_not_fit(here):
    numbers = np.arange(6, dtype=np.float32)
    one = {"w": whole("0", numbers)}
    two = {**one, "v": tensor("0", "Double", 3, (3,), (1,))}
    for state, storages, keys, message in [
        (one, {"0": numbers[:5]}, None, "cut: it ends inside storage '0'"),
        (one, {"0": np.arange(7, dtype=np.float32)}, None, "has 7 elements, expected 6"),
        (one, {}, None, "its storage '0' is missing"),
        (one, {"0": numbers}, ["0", "0"], "listed twice"),
        (one, {"0": numbers}, ["1"], "nothing uses it"),
        (one, {"0": numbers}, [3], "list of storages is damaged"),
        (two, {"0": numbers}, None, "described in two ways"),
    ]:
        write_legacy("a.pth", state, storages, keys)
        with pytest.raises(rl.FormatError) as caught:
            load_torch("a.pth")
        assert message in str(caught.value)


# ---- files that mean harm ----


class Harm:
    """Makes a folder when a pickle with it is loaded by Python."""

    def __reduce__(self):
        return os.mkdir, ("harm",)


WANTS = [
    (b"cos\nsystem\n(S'touch harm'\ntR.", "os.system"),
    (b"(S'touch harm'\nios\nsystem\n.", "os.system"),
    (b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0atouch harm\x85R.", "os.system"),
    (b"\x80\x02cbuiltins\neval\nX\x01\0\0\01\x85R.", "builtins.eval"),
    (b"\x80\x02ctorch\nload\nX\x01\0\0\0x\x85R.", "torch.load"),
    (b"\x80\x02ctorch.nn.modules.linear\nLinear\n)\x81}b.", "torch.nn.modules.linear.Linear"),
    (b"\x80\x02c__main__\nNet\n)\x81.", "__main__.Net"),
    (
        b"\x80\x04\x8c\x0bcollections\x8c\x16OrderedDict.fromkeys.x\x93)R.",
        "collections.OrderedDict.fromkeys.x",
    ),
    (b"\x80\x02ctorch\nFloatStorage\n(K\x64tR.", "torch.FloatStorage"),
    (b"\x80\x02X\x01\0\0\0x)R.", "a str"),
    (b"\x80\x04\x8c\x01\x1b\x8c\x01x\x93)R.", "'\\x1b.x'"),
    (b"\x80\x04\x8c\x02os" + b"\x8c\xff" + b"x" * 255 + b"\x93)R.", "os." + "x" * 74 + "..."),
]


@pytest.mark.parametrize(("operations", "name"), WANTS)
def test_calls_are_refused_by_name(here, operations, name):
    write_zip("a.pth", operations, {})
    with pytest.raises(rl.FormatError) as caught:
        load_torch("a.pth")
    assert f"a.pth: its pickle wants to call {name}; refused, and nothing was run" in str(
        caught.value
    )
    assert not Path("harm").exists()


def test_harm_that_python_would_do(here):
    harm = pickle.dumps({"w": 1, "x": Harm()}, 2)
    pickle.loads(harm)
    assert Path("harm").exists()
    os.rmdir("harm")
    write_zip("zip.pth", harm, {})
    Path("first.pth").write_bytes(harm)
    Path("later.pth").write_bytes(pickled_bytes(MAGIC) + pickled_bytes(1001) + harm)
    for name in ("zip.pth", "first.pth", "later.pth"):
        assert f"{os.mkdir.__module__}.mkdir; refused" in error_of(name, "out")
    assert sorted(os.listdir()) == ["first.pth", "later.pth", "zip.pth"]


def test_nothing_is_imported(here):
    """Neither what is refused nor what is read, pickle and PyTorch included."""
    write_zip("good.pth", {"w": whole("0", np.ones(6, np.float32))}, {"0": np.ones(6, np.float32)})
    write_zip("bad.pth", b"\x80\x02cantigravity\ngeohash\n)R.", {})
    program = """
import sys
from rushlight_cli import main
assert main(["convert", "good.pth", "out"]) == 0
assert main(["convert", "bad.pth", "out2"]) == 1
assert not {"torch", "antigravity"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def nested_reductions():
    """Many copies of one long list, which few bytes ask for."""
    pairs = code([[f"k{i}", i] for i in range(10_000)])
    again = b"ccollections\nOrderedDict\nh\x00\x85Ra" * 10_000
    return b"\x80\x02" + pairs + b"q\x000]" + again + b"."


def doubled(open_, close):
    """A container that holds the one before it twice, 200 times over."""
    start = b"\x80\x02]q\x00"
    step = b"".join(open_ + b"h" + bytes([i]) + b"h" + bytes([i]) + close + b"q" + bytes([i + 1]) for i in range(200))  # fmt: skip
    return start + step + b"."


BOMBS = {
    "a memo number of text": b"Np" + b"9" * 40 + b"\n.",
    "a long text": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x.",
    "long bytes": b"\x80\x05\x8e" + struct.pack("<Q", 1 << 40) + b"x.",
    "a long byte array": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x.",
    "a long number": b"\x80\x02\x8b\xff\xff\xff\x7f\x01.",
    "many digits": b"I" + b"9" * 100_000 + b"\n.",
    "lists, doubled": doubled(b"](", b"e"),
    "tuples, doubled": doubled(b"(", b"t"),
    "a tuple, doubled, as a key": doubled(b"(", b"t")[:-1] + b"}h\x64K\x01s.",
    "a list in itself": b"\x80\x02]q\x00h\x00a.",
    "a dict in itself": b"\x80\x02}q\x00K\x00h\x00s.",
    "a deep list": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "a deep tuple as a key": b"\x80\x02})" + b"\x85" * 100_000 + b"K\x01s.",
    "many ordered dicts": nested_reductions(),
    "keys of one hash": b"\x80\x02}" + b"".join(code(i * (2**61 - 1)) + b"Ns" for i in range(3000)) + b".",
    "a long name": pickled_bytes({"x" * 1_000_000: {str(i): i for i in range(100_000)}}),
    "bytes, again and again": b"\x80\x02X" + struct.pack("<I", 100_000) + b"x" * 100_000 + b"q\x000X\x06\0\0\0latin1q\x010](" + b"c_codecs\nencode\nh\x00h\x01\x86R" * 10_000 + b"e.",
    "a long name of a tensor": pickled_bytes({"x" * 1_000_000: tensor("1", "Float", 1, (), ())}),
    "no value": b"\x80\x02.",
    "no mark": b"\x80\x02t.",
    "a memo that is empty": b"\x80\x02h\x05.",
    "to fill what is no list": b"\x80\x02NNa.",
    "to fill what is no dict": b"\x80\x02]NNs.",
    "an odd dict": b"\x80\x02}(Nu.",
    "a state for a number": b"\x80\x02K\x01}b.",
    "an extension": b"\x80\x02\x82\x01.",
    "a call with keywords": b"\x80\x04ctorch\nSize\n)}\x92.",
    "a shape of nothing": b"\x80\x02ctorch\nSize\n)R.",
    "objects of NumPy": pickled_bytes(Call("numpy.dtype", ("O8", False, True))),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(here, name):
    """Refused in a line, in seconds, with no more memory than a small multiple of the file."""
    write_zip("a.pth", BOMBS[name], {})
    size = os.path.getsize("a.pth")
    tracemalloc.start()
    start = time.perf_counter()
    try:
        with pytest.raises(rl.FormatError) as caught:
            load_torch("a.pth")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - start < 30
    assert peak < (200 << 20) + 100 * size
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 410


def test_numbers_that_ask_for_memory_get_none(here):
    """A memo's number, from which Python makes room for all below it, and the length of a frame."""
    state = b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b"K\x05r\xff\xff\xff\x7f."
    write_zip("a.pth", state, {})
    tracemalloc.start()
    try:
        assert load_torch("a.pth") == 5
        assert tracemalloc.get_traced_memory()[1] < 5 << 20
    finally:
        tracemalloc.stop()


def test_most_operations(here, monkeypatch):
    monkeypatch.setattr(pickled, "MOST_OPERATIONS", 100)
    write_zip("a.pth", list(range(99)), {})
    with pytest.raises(rl.FormatError, match="more than 100 operations"):
        load_torch("a.pth")


def test_zip_archives_that_lie(here):
    numbers = np.arange(6, dtype=np.float32)
    write_zip("a.pth", {"w": whole("0", numbers)}, {"0": numbers})
    good = Path("a.pth").read_bytes()
    entry = good.rindex(b"archive/data/0") - 46  # in the central directory
    for offset, content, message in [
        (24, struct.pack("<I", 1 << 30), "reaches outside the file"),  # the size
        (42, struct.pack("<I", 7), "is not where it should be"),  # the place
        (10, struct.pack("<H", 8), "is packed"),
        (8, struct.pack("<H", 1), "is packed"),  # encrypted
        (24, struct.pack("<I", 3), "should have 6 elements of 4 bytes and has 3 bytes"),
        (46, b"archive/version", "zip archive"),
    ]:
        at = entry + offset
        Path("a.pth").write_bytes(good[:at] + content + good[at + len(content) :])
        with pytest.raises(rl.FormatError, match=message):
            load_torch("a.pth")
    with zipfile.ZipFile("a.pth", "w") as archive:
        archive.writestr("a/data.pkl", pickled_bytes({}))
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a/data.pkl", pickled_bytes({}))
    with pytest.raises(rl.FormatError, match="has a name twice"):
        load_torch("a.pth")
    write_zip("a.pth", {}, {}, order=b"middle")
    with pytest.raises(rl.FormatError, match="neither little nor big"):
        load_torch("a.pth")
