"""Transforms of images, with the names and arguments of torchvision's.

They take NumPy arrays (H, W) or (H, W, C), mostly uint8, until `ToTensor` makes a tensor (C, H, W);
`Normalize` and `RandomErasing` take that. What they draw comes from Rushlight's current generator,
so a DataLoader's batches are the same for any number and kind of workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rushlight.data.vision import draw
from rushlight.data.vision.base import (
    ImageTransform,
    Transform,
    check_channels,
    check_probability,
    check_range,
)
from rushlight.data.vision.colour import (
    ColorJitter,
    Grayscale,
    RandAugment,
    adjust_brightness,
    adjust_contrast,
    adjust_hue,
    adjust_saturation,
)
from rushlight.data.vision.geometry import (
    CenterCrop,
    Pad,
    RandomAffine,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomRotation,
    RandomVerticalFlip,
    Resize,
    affine,
)
from rushlight.data.vision.mix import CutMix, MixUp, cutmix, mixup
from rushlight.errors import DtypeError, ShapeError
from rushlight.kernels import Array
from rushlight.tensor import Tensor

__all__ = ["Compose", "Lambda", "Normalize", "RandomErasing", "ToTensor", "Transform"]
__all__ += ["CenterCrop", "Pad", "RandomCrop", "RandomResizedCrop", "Resize", "affine"]
__all__ += ["RandomAffine", "RandomHorizontalFlip", "RandomRotation", "RandomVerticalFlip"]
__all__ += ["ColorJitter", "Grayscale", "RandAugment", "adjust_brightness", "adjust_contrast"]
__all__ += ["CutMix", "MixUp", "adjust_hue", "adjust_saturation", "cutmix", "mixup"]


class Compose(Transform):
    """Transforms one after another."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = list(transforms)

    def _changed(self, image: Any) -> Any:
        for transform in self.transforms:
            image = transform(image)
        return image

    def __repr__(self) -> str:
        return "Compose(\n" + "".join(f"    {t!r},\n" for t in self.transforms) + ")"


class Lambda(Transform):
    """A function as a transform.  Worker processes that are not forked need one with a name."""

    def __init__(self, lambd: Callable[[Any], Any]) -> None:
        if not callable(lambd):
            raise TypeError(f"Lambda: expected a function, got {type(lambd).__name__}")
        self.lambd = lambd

    def _changed(self, image: Any) -> Any:
        return self.lambd(image)


class ToTensor(ImageTransform):
    """A tensor (C, H, W) float32 of an image (H, W) or (H, W, C).

    uint8 is divided by 255; floats are taken as they are. Raises: DtypeError for other dtypes.
    """

    def _changed(self, image: Array) -> Tensor:
        if image.dtype != np.uint8 and image.dtype.kind != "f":
            raise DtypeError(f"ToTensor: expected a uint8 or float image, got {image.dtype}")
        planes = image[None] if image.ndim == 2 else image.transpose(2, 0, 1)
        out = np.empty(planes.shape, np.float32)
        if image.dtype == np.uint8:
            np.divide(planes, 255, out=out, dtype=np.float32)
        else:
            out[:] = planes
        return Tensor(out)


def _check_tensor(what: str, x: Any, axes: tuple[int, ...]) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError(f"{what} belongs after ToTensor: expected a tensor, got {type(x).__name__}")
    if x.ndim not in axes:
        raise ShapeError(f"{what}: expected a tensor (C, H, W), got {tuple(x.shape)}")
    if x.array.dtype.kind != "f":
        raise DtypeError(f"{what}: expected a float tensor, got {x.dtype}")
    return x


class Normalize(Transform):
    """(x - mean) / std of each channel: (C, H, W) or (N, C, H, W) floats.

    mean, std: one number for each channel, or one for all. Raises: ShapeError, DtypeError;
    ValueError for a std of 0.
    """

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        self.mean = np.array(mean, np.float64, ndmin=1).tolist()
        self.std = np.array(std, np.float64, ndmin=1).tolist()
        if not all(self.std):
            raise ValueError(f"Normalize: std must not be 0, got {self.std}")

    def _changed(self, x: Tensor) -> Tensor:
        _check_tensor("Normalize", x, (3, 4))
        channels = x.shape[-3]
        check_channels("Normalize", self.mean, self.std, channels)
        both = (np.array(values, x.array.dtype) for values in (self.mean, self.std))
        mean, std = (Tensor(values.reshape(-1, 1, 1)) for values in both)
        return (x - mean) / std


class RandomErasing(Transform):
    """A rectangle of an image (C, H, W) overwritten, with probability p.

    scale: bounds of its area as a part of the image's. ratio: bounds of height / width, drawn
    evenly in the logarithm. value: one number, one for each channel, or "random" for normal noise.
    When ten draws do not fit, the image stays as it is; the tensor given is never changed.
    Source: Zhong et al. 2017, arXiv:1708.04896.
    """

    def __init__(
        self,
        p: float = 0.5,
        scale: Sequence[float] = (0.02, 0.33),
        ratio: Sequence[float] = (0.3, 3.3),
        value: float | str | Sequence[float] = 0,
    ) -> None:
        self.p = check_probability("RandomErasing", p)
        self.scale = check_range("RandomErasing", "scale", scale)
        if self.scale[0] < 0 or self.scale[1] > 1:
            raise ValueError(f"RandomErasing: scale must lie in 0 to 1, got {scale}")
        self.ratio = check_range("RandomErasing", "ratio", ratio, 0)
        if isinstance(value, str) and value != "random":
            raise ValueError(f'RandomErasing: value is numbers or "random", not {value!r}')
        self.value = value

    def _changed(self, x: Tensor) -> Tensor:
        _check_tensor("RandomErasing", x, (3,))
        channels, height, width = x.shape
        given = 1 if isinstance(self.value, str) else np.size(self.value)
        if given not in (1, channels):
            raise ShapeError(f"RandomErasing: {given} values for {channels} channels")
        if draw.uniform() >= self.p:
            return x
        for h, w in draw.rectangles(height * width, self.scale, self.ratio):
            if 0 < h <= height and 0 < w <= width:
                top, left = draw.below(height - h + 1), draw.below(width - w + 1)
                out = x.array.copy()
                out[:, top : top + h, left : left + w] = self._values(channels, h, w)
                return Tensor(out)
        return x

    def _values(self, *shape: int) -> Array:
        """What to write; numbers broadcast to (C, H, W)."""
        if self.value == "random":
            return np.array(draw.normals(math.prod(shape))).reshape(shape)
        return np.array(self.value, np.float64).reshape(-1, 1, 1)
