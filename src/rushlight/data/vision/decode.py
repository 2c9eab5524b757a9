"""Image files, decoded by Pillow."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import numpy as np

from rushlight.data.vision.image import pillow
from rushlight.errors import FormatError
from rushlight.io.files import open_ordinary
from rushlight.kernels import Array

# What Pillow's decoders raise for files that are not as they should be.
_DAMAGE = (ValueError, SyntaxError, EOFError, IndexError, KeyError, TypeError, OverflowError)


def default_loader(path: str) -> Array:
    """An image file as RGB: (H, W, 3) uint8, turned as its EXIF orientation says.

    Of several frames it is the first; alpha is dropped; of 16 bits the upper 8 are kept.
    Raises: FormatError that names a file which is no image or a damaged one; OSError for one that
    cannot be opened; ImportError without Pillow.
    """
    image = pillow("default_loader")
    with open_ordinary(path) as file:  # Pillow's errors do not always name the file
        try:
            with image.open(file) as picture:
                return _rgb(picture)
        except image.UnidentifiedImageError:
            raise FormatError(f"{path}: not an image of a kind that Pillow knows") from None
        except (*_DAMAGE, struct.error, zlib.error, image.DecompressionBombError, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # the disk, not the contents
                raise
            raise FormatError(f"{path}: damaged image: {error}") from error


def _rgb(picture: Any) -> Array:
    from PIL import ImageOps

    try:
        turned = ImageOps.exif_transpose(picture)
    except (*_DAMAGE, struct.error):  # bad EXIF data beside a good image
        turned = picture
    mode: str = turned.mode
    if mode.startswith(("I", "F")):
        return _from_deep(np.asarray(turned), mode)
    if mode in ("P", "PA") or "transparency" in turned.info:
        turned = turned.convert("RGBA")
    return np.array(turned if turned.mode == "RGB" else turned.convert("RGB"))


def _from_deep(grey: Array, mode: str) -> Array:
    """One channel of 16 bits as three of 8.  Pillow would cut off what is above 255."""
    if mode == "F" or grey.min() < 0 or grey.max() > 65535:
        raise ValueError(f"pixels of mode {mode} without a known range; pass a loader of your own")
    return np.repeat((grey >> 8).astype(np.uint8)[:, :, None], 3, axis=2)
