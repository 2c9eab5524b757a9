"""What an image is here, and the way through Pillow where one is needed.

An image is a NumPy array (H, W) or (H, W, C): uint8, 0 to 255, or float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from rushlight.errors import DtypeError, ShapeError
from rushlight.kernels import Array

Fill: TypeAlias = "float | Sequence[float]"


def pillow(what: str) -> Any:
    """The module PIL.Image.  Raises: ImportError that says how to install it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError(f'{what} needs Pillow: pip install "rushlight[vision]"') from error
    return Image


def check_image(what: str, image: Any) -> Array:
    """The image itself.  Raises: TypeError for no array, ShapeError for one of other axes."""
    if not isinstance(image, np.ndarray):
        kind = type(image).__name__
        hint = "it belongs before ToTensor" if kind == "Tensor" else "np.asarray(image) makes one"
        raise TypeError(f"{what}: expected a NumPy array (H, W) or (H, W, C), got {kind}; {hint}")
    if image.ndim not in (2, 3) or 0 in image.shape:
        raise ShapeError(f"{what}: expected (H, W) or (H, W, C) with pixels, got {image.shape}")
    return image


def check_bytes(what: str, image: Any, channels: tuple[int, ...] = ()) -> Array:
    """The image, checked to be uint8 and, when channels are given, to have so many."""
    array = check_image(what, image)
    if array.dtype != np.uint8:
        raise DtypeError(f"{what}: expected a uint8 image, got {array.dtype}")
    if channels and channel_count(array) not in channels:
        wanted = " or ".join(map(str, channels))
        raise ShapeError(f"{what}: expected {wanted} channels, got an image {array.shape}")
    return array


def channel_count(image: Array) -> int:
    """1 for (H, W), C for (H, W, C)."""
    return 1 if image.ndim == 2 else image.shape[2]


def fills(what: str, fill: Fill, channels: int) -> tuple[float, ...]:
    """One value for each channel, of one for all or one for each.  Raises: ValueError."""
    values = tuple(fill) if isinstance(fill, Sequence) else (fill,)
    if len(values) == 1:
        return values * channels
    if len(values) != channels:
        raise ValueError(f"{what}: {len(values)} fill values for {channels} channels")
    return values


def through_pillow(
    what: str, image: Any, change: Callable[[Any, Any], Any], fill: Fill = 0
) -> Array:
    """The image changed by `change(picture, fill)`, from one Pillow picture to another.

    (H, W, 3) uint8 crosses as one RGB picture; all else channel by channel, so that any number of
    channels will do and alpha is a channel like others. Raises: DtypeError for other dtypes.
    """
    image = check_image(what, image)
    if image.dtype not in (np.uint8, np.float32):
        raise DtypeError(f"{what}: expected a uint8 or float32 image, got {image.dtype}")
    picture_of = pillow(what).fromarray
    values = fills(what, fill, channel_count(image))
    if image.dtype == np.uint8:
        values = tuple(round(x) for x in values)
    if image.ndim == 2 or (image.shape[2] == 3 and image.dtype == np.uint8):
        fill = values[0] if image.ndim == 2 else values
        return np.array(change(picture_of(np.ascontiguousarray(image)), fill))
    planes = [
        np.asarray(change(picture_of(np.ascontiguousarray(image[:, :, c])), values[c]))
        for c in range(image.shape[2])
    ]
    return np.stack(planes, axis=2)
