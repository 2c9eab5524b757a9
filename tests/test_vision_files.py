"""IDX and npz files, MNIST's layout, and folders of images: what is read, and what is refused."""

import gzip
import pathlib
import struct
import subprocess
import sys

import numpy as np
import pytest

import rushlight as rl
from rushlight.data import DataLoader
from rushlight.data.vision import (
    MNIST,
    FashionMNIST,
    IDXDataset,
    NpzImages,
    normalized,
    read_idx,
)


def idx_bytes(array):
    """An IDX file by the format's description, written out once more."""
    codes = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}
    head = bytes([0, 0, codes[array.dtype.str[1:]], array.ndim])
    sizes = b"".join(struct.pack(">I", n) for n in array.shape)
    return head + sizes + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write(path, array, packed=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = idx_bytes(array)
    path.write_bytes(gzip.compress(data) if packed else data)
    return path


# ---- IDX ----


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", ["u1", "i1", "i2", "i4", "f4", "f8"])
def test_read_idx(tmp_path, rng, dtype, packed):
    for shape in [(7,), (3, 5, 2), (0, 4), (1, 1, 1, 1)]:
        array = rng.integers(-100, 100, shape).astype(np.dtype(dtype))
        got = read_idx(write(tmp_path / "x", array, packed))
        assert got.dtype == array.dtype
        assert got.dtype.isnative
        assert got.shape == shape
        assert np.array_equal(got, array)


def test_read_idx_is_writable_and_larger_than_one_piece(tmp_path, rng):
    array = rng.integers(0, 256, (3, 1000, 1000), np.uint8)
    got = read_idx(str(write(tmp_path / "x.gz", array, True)))
    assert np.array_equal(got, array)
    got[0, 0, 0] = 1


GOOD = idx_bytes(np.arange(12, dtype=np.uint8).reshape(3, 2, 2))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an IDX file: it begins with 0x"),
        (b"<html>", r"0x3c68746d \(a web page\?\), expected a magic number such as 0x00000803"),
        (b"\0\0\x07\x01" + GOOD[4:], "begins with 0x00000701"),
        (b"\0\0\x08\0" + GOOD[4:], "begins with 0x00000800"),
        (GOOD[::-1], "not an IDX file"),
        (GOOD[:9], "truncated inside the sizes of its 3 axes"),
        (GOOD[:-1], r"truncated: shape \(3, 2, 2\) needs 12 bytes of data, the file has 11"),
        (GOOD + b"x", r"too long: shape \(3, 2, 2\) needs 12 bytes"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "truncated: shape .4294967295.* the file has 0"),
        (b"\0\0\x08\xff" + b"\0\0\0\x01" * 255 + b"x", "claims to have 255 axes"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_read_idx_says_what_is_wrong(tmp_path, data, message, packed):
    path = tmp_path / "some-file"
    path.write_bytes(gzip.compress(data) if packed else data)
    with pytest.raises(rl.FormatError, match=f"some-file: .*{message}"):
        read_idx(path)


def test_damaged_gzip(tmp_path):
    path, packed = tmp_path / "file.gz", gzip.compress(GOOD)
    damaged = [packed[:-9], packed[:5], packed[:-8] + b"\0" * 8, packed + b"more", b"\x1f\x8bxyz"]
    for data in [*damaged, packed[:12] + b"\xff\xff" + packed[14:]]:
        path.write_bytes(data)
        with pytest.raises(rl.FormatError, match=r"file\.gz: "):
            read_idx(path)
    for cut in range(2, len(packed)):
        path.write_bytes(packed[:cut])
        with pytest.raises(rl.FormatError, match=r"file\.gz: "):
            read_idx(path)
    with pytest.raises(FileNotFoundError):
        read_idx(tmp_path / "none")


# ---- MNIST ----


def make_mnist(folder, rng, join="-", end="", count=6, split="train"):
    x = rng.integers(0, 256, (count, 28, 28), np.uint8)
    y = rng.integers(0, 10, count, np.uint8)
    write(folder / f"{split}-images{join}idx3-ubyte{end}", x, end == ".gz")
    write(folder / f"{split}-labels{join}idx1-ubyte{end}", y, end == ".gz")
    return x, y


@pytest.mark.parametrize("join", ["-", "."])
@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("inside", ["", "FashionMNIST/raw"])
def test_mnist_is_found(tmp_path, rng, join, end, inside):
    x, y = make_mnist(tmp_path / inside, rng, join, end)
    tx, ty = make_mnist(tmp_path / inside, rng, join, end, 4, "t10k")
    dataset = FashionMNIST(tmp_path)
    assert np.array_equal(dataset.data, x)
    assert dataset.targets.tolist() == y.tolist()
    assert dataset.targets.dtype == np.int64
    test = FashionMNIST(str(tmp_path), train=False)
    assert len(test) == 4
    assert np.array_equal(test.data, tx)
    assert test.targets.tolist() == ty.tolist()


def test_mnist_samples(tmp_path, rng):
    x, y = make_mnist(tmp_path, rng)
    image, label = MNIST(tmp_path)[2]
    assert image.shape == (28, 28)
    assert image.dtype == np.uint8
    assert np.array_equal(image, x[2])
    assert type(label) is int
    assert label == y[2]
    image[:] = 0  # an array of its own
    dataset = MNIST(tmp_path, transform=lambda a: a.astype(int).sum(), target_transform=str)
    assert dataset[-1] == (x[-1].astype(int).sum(), str(y[-1]))
    assert np.array_equal(dataset.data, x)
    with pytest.raises(IndexError):
        dataset[6]
    images, labels = next(iter(DataLoader(MNIST(tmp_path), 3)))
    assert images.dtype is rl.uint8
    assert tuple(images.shape) == (3, 28, 28)
    assert labels.tolist() == y[:3].tolist()


def test_mnist_errors(tmp_path, rng):
    with pytest.raises(
        FileNotFoundError, match=r"train-images-idx3-ubyte and .*MNIST/raw.*download"
    ):
        MNIST(tmp_path)
    make_mnist(tmp_path, rng, count=6)
    labels = write(tmp_path / "train-labels-idx1-ubyte", np.zeros(5, np.uint8))
    with pytest.raises(rl.FormatError, match=r"has 6 images, .*labels-idx1-ubyte has 5 labels"):
        MNIST(tmp_path)
    write(labels, np.full(6, 10, np.uint8))
    with pytest.raises(rl.FormatError, match="label 10; MNIST has 10 classes"):
        MNIST(tmp_path)
    images = tmp_path / "train-images-idx3-ubyte"
    with pytest.raises(rl.FormatError, match=r"images are uint8 with 3 axes .*0x00000803.*swapped"):
        IDXDataset(labels, images)
    write(labels, np.full(6, 1, np.int32))
    with pytest.raises(rl.FormatError, match="labels are uint8 with 1 axes"):
        MNIST(tmp_path)


def test_normalized_and_to_tensors(tmp_path, rng):
    x, y = make_mnist(tmp_path, rng)
    expected = ((x[:, None] / 255.0 - 0.1307) / 0.3081).astype(np.float32)
    got = normalized(x, 0.1307, 0.3081)
    assert got.dtype is rl.float32
    assert tuple(got.shape) == (6, 1, 28, 28)
    np.testing.assert_array_equal(got.numpy(), expected)
    tensors = MNIST(tmp_path).to_tensors(0.1307, 0.3081)
    images, labels = next(iter(DataLoader(tensors, 6)))
    np.testing.assert_array_equal(images.numpy(), expected)
    assert labels.tolist() == y.tolist()
    colour = rng.integers(0, 256, (3, 5, 4, 3), np.uint8)
    mean, std = [0.1, 0.2, 0.3], [0.5, 1, 2]
    expected = (colour.transpose(0, 3, 1, 2) / 255 - np.reshape(mean, (3, 1, 1))) / np.reshape(
        std, (3, 1, 1)
    )
    np.testing.assert_allclose(normalized(colour, mean, std).numpy(), expected, atol=1e-6)
    assert tuple(normalized(x[:0]).shape) == (0, 1, 28, 28)
    with pytest.raises(rl.ShapeError, match="2 means and 1 stds for 3 channels"):
        normalized(colour, [1, 2])
    with pytest.raises(rl.DtypeError, match="float64"):
        normalized(colour / 1.0)
    with pytest.raises(ValueError, match="std must not be 0"):
        normalized(colour, 0, [1, 0, 1])
    with pytest.raises(rl.ShapeError, match=r"\(5, 4\)"):
        normalized(colour[0, :, :, 0])


# ---- npz ----


@pytest.mark.parametrize(
    "names",
    [
        ("x_train", "y_train"),
        ("X_train", "y_train"),
        ("train_images", "train_labels"),
        ("images", "labels"),
        ("arr_0", "arr_1"),
        ("data", "targets"),
    ],
)
def test_npz_names(tmp_path, rng, names):
    x, y = rng.integers(0, 256, (5, 6, 7), np.uint8), np.arange(5)
    np.savez(tmp_path / "a.npz", **dict(zip(names, (x, y), strict=True)))
    dataset = NpzImages(tmp_path / "a.npz")
    assert np.array_equal(dataset.data, x)
    assert dataset[3][1] == 3
    with pytest.raises(rl.FormatError, match=f"a.npz: holds {names[0]}, .* x_test and y_test"):
        NpzImages(tmp_path / "a.npz", train=False)


def test_npz_layouts(tmp_path, rng):
    path = tmp_path / "a.npz"

    def read(x, y=None, **options):
        np.savez_compressed(path, x_test=x, y_test=np.arange(len(x)) if y is None else y)
        return NpzImages(path, train=False, **options)

    last = rng.integers(0, 256, (2, 5, 6, 3), np.uint8)
    for x in (last, last.transpose(0, 3, 1, 2), last.astype(np.int64)):
        assert np.array_equal(read(x).data, last)
        assert read(x).data.dtype == np.uint8
    assert read(last[:, :, :, :1]).data.shape == (2, 5, 6, 1)
    floats = rng.random((2, 3, 8, 9))
    assert read(floats).data.dtype == np.float32
    np.testing.assert_allclose(read(floats).data, floats.transpose(0, 2, 3, 1), rtol=1e-6)
    assert read(last, np.array([[3], [4]], np.uint8)).targets.tolist() == [3, 4]
    assert read(last, transform=np.shape)[0] == ((5, 6, 3), 0)
    for bad, message in [
        (np.full((2, 5, 6), -1), "int64 from -1 to -1; expected 0 to 255"),
        (np.full((2, 5, 6), 256), "from 256 to 256"),
        (last[0, 0], r"x_test has shape \(6, 3\)"),
        (np.zeros((2, 5, 6, 7)), r"shape \(2, 5, 6, 7\); expected"),
        (last > 3, "dtype bool"),
    ]:
        with pytest.raises(rl.FormatError, match=message):
            read(bad)
    with pytest.raises(rl.FormatError, match="2 images in x_test, 3 labels in y_test"):
        read(last, np.arange(3))
    with pytest.raises(rl.FormatError, match="y_test is of float64; expected integers"):
        read(last, np.ones(2))
    with pytest.raises(rl.FormatError, match=r"y_test has shape \(2, 2\)"):
        read(last, np.ones((2, 2), int))


def test_npz_damage(tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(b"nothing")
    with pytest.raises(rl.FormatError, match=r"a\.npz: not an npz file"):
        NpzImages(path)
    np.savez(path, images=np.array([None, 1]), labels=np.arange(2))  # would need pickle
    with pytest.raises(rl.FormatError, match=r"damaged npz file: .*pickle"):
        NpzImages(path)
    np.savez(path, images=np.zeros((50, 9, 9), np.uint8), labels=np.arange(50))
    data = bytearray(path.read_bytes())
    data[1000] ^= 255
    path.write_bytes(data)
    with pytest.raises(rl.FormatError, match=r"damaged npz file: .*CRC"):
        NpzImages(path)
    with pytest.raises(FileNotFoundError):
        NpzImages(tmp_path / "none.npz")


# ---- what is loaded when ----


def test_nothing_is_imported_before_it_is_needed():
    code = (
        "import sys, rushlight, rushlight.data\n"
        "assert 'rushlight.data.vision' not in sys.modules\n"
        "import rushlight.data.vision, rushlight.data.vision.transforms as t, numpy as np\n"
        "t.Compose([t.RandomCrop(3), t.RandomHorizontalFlip(), t.Resize(2, 'nearest'),\n"
        "    t.Pad(1), t.ColorJitter(.1, .1, .1), t.ToTensor(), t.RandomErasing(1)])(\n"
        "    np.ones((4, 5, 3), np.uint8))\n"
        "assert 'PIL' not in sys.modules\n"
        "sys.modules['PIL'] = None\n"
        "for f in (lambda: t.Resize(2)(np.ones((4, 5), np.uint8)),\n"
        "          lambda: rushlight.data.vision.default_loader('x')):\n"
        "    try:\n"
        "        f()\n"
        "    except ImportError as error:\n"
        "        assert 'pip install \"rushlight[vision]\"' in str(error), error\n"
        "    else:\n"
        "        raise AssertionError\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_everything_public_has_a_docstring():
    from rushlight.data import vision

    for module in (vision, vision.transforms):
        for name in module.__all__:
            assert getattr(module, name).__doc__, name
    for path in pathlib.Path(vision.__file__).parent.glob("*.py"):
        assert len(path.read_text().splitlines()) <= 500
