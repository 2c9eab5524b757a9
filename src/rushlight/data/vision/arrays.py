"""Sets of images that are in memory as one array: MNIST, Fashion-MNIST, any IDX or npz file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from rushlight.data.dataset import TensorDataset
from rushlight.data.vision.base import Change, LabelledImages, check_channels
from rushlight.data.vision.download import download_file
from rushlight.data.vision.idx import find_pair, read_labelled
from rushlight.data.vision.npz import read_npz
from rushlight.errors import DtypeError, FormatError, ShapeError
from rushlight.io.files import PathLike
from rushlight.kernels import Array
from rushlight.tensor import Tensor

_AT_ONCE = 1 << 24  # elements that `normalized` converts in one go


def normalized(
    images: Array, mean: float | Sequence[float] = 0.0, std: float | Sequence[float] = 1.0
) -> Tensor:
    """(x / 255 - mean) / std of many images at once, ready for a TensorDataset.

    images: uint8 (N, H, W) or (N, H, W, C).  mean, std: one number, or C.
    Returns (N, C, H, W) float32. Raises: DtypeError, ShapeError, ValueError for a std of 0.
    """
    if images.dtype != np.uint8:
        raise DtypeError(f"normalized: expected uint8 images, got {images.dtype}")
    if images.ndim not in (3, 4):
        raise ShapeError(f"normalized: expected (N, H, W) or (N, H, W, C), got {images.shape}")
    if images.ndim == 3:
        images = images[:, :, :, None]
    n, height, width, channels = images.shape
    m, s = (np.asarray(x, np.float64).reshape(-1) for x in (mean, std))
    check_channels("normalized", m, s, channels)
    if not s.all():
        raise ValueError("normalized: std must not be 0")
    levels = (np.arange(256)[:, None] / 255 - m) / s  # (256, C): what becomes of each byte
    table = np.broadcast_to(levels, (256, channels)).astype(np.float32)
    out = np.empty((n, channels, height, width), np.float32)
    step = max(1, _AT_ONCE // max(1, height * width))
    for start in range(0, n, step):
        for c in range(channels):
            out[start : start + step, c] = table[:, c][images[start : start + step, :, :, c]]
    return Tensor(out)


class ArrayImages(LabelledImages):
    """Images in one array, each with a class.

    data: (N, H, W) or (N, H, W, C).  targets: (N,) integers. Sample i: (image, class), the image an
    array of its own, passed through `transform`, the class an int, through `target_transform`.
    Raises: ShapeError when the counts differ.
    """

    def __init__(
        self,
        data: Array,
        targets: Array,
        transform: Change | None = None,
        target_transform: Change | None = None,
    ) -> None:
        if len(data) != len(targets):
            raise ShapeError(f"{len(data)} images and {len(targets)} labels")
        super().__init__(transform, target_transform)
        self.data = data
        self.targets = targets

    def __len__(self) -> int:
        return len(self.data)

    def _labelled(self, index: Any) -> tuple[Any, int]:
        return self.data[index].copy(), int(self.targets[index])

    def to_tensors(
        self, mean: float | Sequence[float] = 0.0, std: float | Sequence[float] = 1.0
    ) -> TensorDataset:
        """All images `normalized`, and their classes: the fast way when nothing is drawn.

        Samples are (C, H, W) float32 and () int64; transforms are not applied.
        """
        return TensorDataset(normalized(self.data, mean, std), Tensor(self.targets.copy()))


class IDXDataset(ArrayImages):
    """Images and labels of two IDX files.  Raises: FormatError, OSError; see `read_idx`."""

    def __init__(
        self,
        images: PathLike,
        labels: PathLike,
        transform: Change | None = None,
        target_transform: Change | None = None,
    ) -> None:
        super().__init__(*read_labelled(images, labels), transform, target_transform)


class MNIST(IDXDataset):
    """Handwritten digits: 60 000 to train, 10 000 to test, (28, 28) uint8.

    The files lie in `root` or `root/MNIST/raw` under their original names, compressed or not.
    download: fetch into the latter what is not there, with its checksum.
    Raises: FileNotFoundError that says what was looked for; FormatError; DownloadError.
    Source: LeCun, Cortes & Burges, The MNIST database of handwritten digits.
    """

    mirrors = [
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "http://yann.lecun.com/exdb/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ]
    md5 = {
        "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
    }
    classes = [str(digit) for digit in range(10)]

    def __init__(
        self,
        root: PathLike,
        train: bool = True,
        transform: Change | None = None,
        target_transform: Change | None = None,
        download: bool = False,
    ) -> None:
        name = type(self).__name__
        try:
            files = find_pair(root, name, train)
        except FileNotFoundError:
            if not download:
                raise
            self._download(os.path.join(root, name, "raw"), "train" if train else "t10k")
            files = find_pair(root, name, train)
        super().__init__(*files, transform, target_transform)
        self.train = train
        if len(self) and self.targets.max() >= len(self.classes):
            raise FormatError(
                f"{files[1]}: label {self.targets.max()}; {name} has {len(self.classes)} classes"
            )

    def _download(self, folder: str, split: str) -> None:
        for file, md5 in self.md5.items():
            if file.startswith(split):
                urls = [mirror + file for mirror in self.mirrors]
                download_file(urls, os.path.join(folder, file), md5=md5)


class FashionMNIST(MNIST):
    """Pictures of clothes, in MNIST's format: 60 000 to train, 10 000 to test.

    Source: Xiao, Rasul & Vollgraf 2017, arXiv:1708.07747.
    """

    mirrors = [
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ]
    md5 = {
        "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
    }
    classes = [
        *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
        *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    ]


class NpzImages(ArrayImages):
    """Images and labels of an npz file, under the names that such files mostly use.

    Names: x_train and y_train, X_train and Y_train, train_images and train_labels; with train=False
    the same with "test"; a file without splits may have images and labels, x and y, X and Y, data
    and targets, data and labels, or arr_0 and arr_1, and is all for training. Images: (N, H, W),
    (N, H, W, C), or (N, C, H, W), which is turned into the second; where both fit, channels are
    last. Integers from 0 to 255 become uint8, floats float32. Labels: integers, (N,) or (N, 1).
    Raises: FormatError that names the file and what it holds; OSError.
    """

    def __init__(
        self,
        path: PathLike,
        train: bool = True,
        transform: Change | None = None,
        target_transform: Change | None = None,
    ) -> None:
        super().__init__(*read_npz(path, train), transform, target_transform)
        self.train = train
