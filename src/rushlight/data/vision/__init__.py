"""Images: MNIST and its relatives, folders, npz files, and transforms of them.

Nothing of this is loaded with `rushlight`, and Pillow only when a file is decoded or a transform
needs it.
"""

from rushlight.data.vision import transforms
from rushlight.data.vision.arrays import (
    MNIST,
    ArrayImages,
    FashionMNIST,
    IDXDataset,
    NpzImages,
    normalized,
)
from rushlight.data.vision.decode import default_loader
from rushlight.data.vision.download import DownloadError, download_file
from rushlight.data.vision.folder import ImageFolder
from rushlight.data.vision.idx import read_idx
from rushlight.data.vision.mix import CutMix, MixUp, cutmix, mixup

__all__ = ["MNIST", "ArrayImages", "FashionMNIST", "IDXDataset", "ImageFolder", "NpzImages"]
__all__ += ["CutMix", "MixUp", "cutmix", "mixup", "transforms"]
__all__ += ["DownloadError", "default_loader", "download_file", "normalized", "read_idx"]
