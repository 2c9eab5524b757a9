"""Token files: against the array that was written; memory on a file of two gigabytes."""

import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rushlight as rl
from rushlight.data import DataLoader, RandomSampler, TokenFile, Windows, tokens
from vectors import vector


@pytest.fixture
def written(tmp_path, rng):
    def write(count=1000, dtype="uint16"):
        values = rng.integers(0, 200, count).astype(dtype)
        path = tmp_path / f"{count}.{dtype}"
        values.tofile(path)
        return values.astype(np.int64), path

    return write


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int32", "int64", ">u2"])
def test_reads_what_was_written(written, dtype):
    values, path = written(dtype=dtype)
    file = TokenFile(path, dtype)
    assert len(file) == 1000
    assert [file[0], file[7], file[-1]] == [values[0], values[7], values[-1]]
    assert type(file[3]) is int
    for part in (slice(3, 9), slice(None), slice(-5, None), slice(20, 2, -3), slice(5, 5)):
        np.testing.assert_array_equal(file[part], values[part])
        assert file[part].dtype == np.int64
    with pytest.raises(IndexError):
        file[1000]


def test_gather(written):
    values, path = written()
    file = TokenFile(path)
    starts = np.array([0, 990, 5, 5])
    rows = file.gather(starts, 10)
    assert rows.dtype == np.int64
    np.testing.assert_array_equal(rows, [values[s : s + 10] for s in starts])
    np.testing.assert_array_equal(file.gather(rl.tensor([1, 2]), 3), [values[1:4], values[2:5]])
    assert file.gather([], 4).shape == (0, 4)
    for wrong in ([991], [-1]):
        with pytest.raises(IndexError, match="do not lie in 1000 tokens"):
            file.gather(wrong, 10)
    with pytest.raises(rl.DtypeError, match="starts must be integers"):
        file.gather([0.5], 2)


def test_part_shares_the_map(written):
    values, path = written()
    file = TokenFile(path)
    inner = file.part(100, 900).part(10, 50)
    assert len(inner) == 40
    np.testing.assert_array_equal(inner[:], values[110:150])
    np.testing.assert_array_equal(inner.gather([38], 2), values[None, 148:150])
    with pytest.raises(IndexError):
        inner.gather([39], 2)  # it is in the file, but not in the part
    for start, stop in ((-1, 3), (3, 2), (0, 41)):
        with pytest.raises(IndexError, match="part"):
            inner.part(start, stop)
    assert len(inner.part(5, 5)) == 0
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(inner))[:], inner[:])


def test_files_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        TokenFile(tmp_path / "missing.bin")
    (tmp_path / "empty").touch()
    with pytest.raises(rl.FormatError, match="empty: the file is empty"):
        TokenFile(tmp_path / "empty")
    (tmp_path / "cut").write_bytes(b"12345")
    with pytest.raises(rl.FormatError, match="cut: 5 bytes are no whole number of 2-byte tokens"):
        TokenFile(tmp_path / "cut")
    with pytest.raises(rl.DtypeError, match="integers, not float32"):
        TokenFile(tmp_path / "cut", "float32")


def test_pages_are_given_back(written, monkeypatch):
    """And what was read before and after is the same."""
    values, path = written(100_000)
    monkeypatch.setattr(tokens, "_LIMIT", 1)
    file = TokenFile(path)
    for start in range(0, 99_000, 997):
        np.testing.assert_array_equal(file[start : start + 64], values[start : start + 64])
        np.testing.assert_array_equal(file.gather([start], 8)[0], values[start : start + 8])
    assert file._map.touched == 0


@settings(max_examples=50)
@given(st.integers(2, 40), st.integers(1, 12), st.integers(1, 7))
def test_windows_are_all_there_is(count, context, stride):
    values = np.arange(count) * 3
    if count < context + 1:
        with pytest.raises(ValueError, match=f"at least {context + 1} tokens, got {count}"):
            Windows(values, context, stride)
        return
    windows = Windows(values, context, stride)
    starts = [i for i in range(0, count, stride) if i + context < count]
    assert len(windows) == len(starts)
    for i, start in enumerate(starts):
        x, y = windows[i]
        assert x.tolist() == values[start : start + context].tolist()
        assert y.tolist() == values[start + 1 : start + context + 1].tolist()
        assert x.dtype is y.dtype is rl.int64
    assert len(Windows(values, context)) == count - context
    for wrong in (len(windows), -len(windows) - 1):
        with pytest.raises(IndexError):
            windows[wrong]


def test_windows_of_a_file_in_a_loader(written):
    values, path = written()
    train = Windows(TokenFile(path).part(0, 900), 16)
    batches = list(DataLoader(train, 32, shuffle=True))
    assert [tuple(x.shape) for x, _ in batches[:2]] == [(32, 16)] * 2
    rows = np.concatenate([x.numpy() for x, _ in batches])
    expected = np.lib.stride_tricks.sliding_window_view(values[:900], 16)[:-1]
    np.testing.assert_array_equal(np.sort(rows, 0), np.sort(expected, 0))
    assert {tuple(r) for r in rows} == {tuple(r) for r in expected}
    for x, y in batches:
        np.testing.assert_array_equal(x.numpy()[:, 1:], y.numpy()[:, :-1])
    sampler = RandomSampler(train, replacement=True, num_samples=64)
    for kind in ({}, {"multiprocessing_context": "fork"}):
        assert len(list(DataLoader(train, 32, sampler=sampler, num_workers=2, **kind))) == 2


def test_windows_that_make_no_sense():
    with pytest.raises(ValueError, match="must be positive"):
        Windows(np.arange(9), 0)
    with pytest.raises(ValueError, match="must be positive"):
        Windows(np.arange(9), 2, stride=0)
    with pytest.raises(rl.DtypeError, match=r"float64 \(9,\)"):
        Windows(np.ones(9), 2)
    with pytest.raises(rl.DtypeError, match=r"\(3, 3\)"):
        Windows(rl.arange(9).reshape(3, 3), 2)
    assert Windows(rl.arange(9), 2)[0][1].tolist() == [1, 2]


MEASURE = """
import sys, numpy as np
from rushlight.data import TokenFile, Windows
def resident():
    return int(next(l for l in open("/proc/self/status") if l.startswith("VmRSS")).split()[1]) << 10
windows = Windows(TokenFile(sys.argv[1]), 64)
rng = np.random.default_rng(0)
windows.take(rng.integers(0, len(windows), 16))
before, most = resident(), 0
for step in range(10_000):
    x, y = windows.take(rng.integers(0, len(windows), 16))
    if step % 10 == 0:
        most = max(most, resident())
print(most - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_stays_bounded_on_two_gigabytes(tmp_path):
    path = tmp_path / "large.bin"
    path.touch()
    os.truncate(path, 2 << 30)  # sparse: it takes no room on the disk
    command = [sys.executable, "-c", MEASURE, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64 << 20


def test_windows_of_the_golden_vector():
    """Batches of neighbouring windows, in the golden order; 13 of them in three epochs."""
    golden = vector("dataloader")
    length, size = int(golden["meta_seq_len"]), int(golden["meta_batch"])
    windows = Windows(golden["tokens"], length, stride=length)
    order = [[int(k) * size + row for row in range(size)] for k in golden["perms"].ravel()]
    loader = DataLoader(windows, batch_sampler=order)
    for (x, y), expected_x, expected_y in zip(loader, golden["x"], golden["y"], strict=False):
        np.testing.assert_array_equal(x.numpy(), expected_x)
        np.testing.assert_array_equal(y.numpy(), expected_y)
