"""Transforms that change colours: grey, jitter, and the set of RandAugment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rushlight.data.vision import draw
from rushlight.data.vision.base import Transform, check_name, check_range
from rushlight.data.vision.geometry import INTERPOLATIONS, affine
from rushlight.data.vision.image import Fill, channel_count, check_bytes, pillow, through_pillow
from rushlight.kernels import Array

# Weights of red, green and blue in 65536ths.  Source: ITU-R BT.601.
_RED, _GREEN, _BLUE = 19595, 38470, 7471


def grey(image: Array) -> Array:
    """The brightness of an image, 0.299 R + 0.587 G + 0.114 B, rounded.

    (H, W, 3) uint8 -> (H, W) uint8; images of one channel give that channel.
    """
    check_bytes("grey", image, (1, 3))
    if channel_count(image) == 1:
        return image.reshape(image.shape[:2])
    red, green, blue = (image[:, :, c].astype(np.uint32) for c in range(3))
    return ((red * _RED + green * _GREEN + blue * _BLUE + 32768) >> 16).astype(np.uint8)


class Grayscale(Transform):
    """An image's brightness: (H, W, 1), or with num_output_channels=3 three times the same."""

    def __init__(self, num_output_channels: int = 1) -> None:
        if num_output_channels not in (1, 3):
            raise ValueError(f"Grayscale: to 1 channel or 3, not to {num_output_channels!r}")
        self.num_output_channels = num_output_channels

    def _changed(self, image: Array) -> Array:
        check_bytes("Grayscale", image, (1, 3))
        return np.repeat(grey(image)[:, :, None], self.num_output_channels, axis=2)


def _blend(image: Array, other: float | Array, factor: float) -> Array:
    """Other + factor * (image - other), rounded and cut to 0..255."""
    of_byte = not isinstance(other, np.ndarray)  # then a table of 256 says it all
    levels = (np.arange(256) if of_byte else image).astype(np.float32)
    mixed = other + np.float32(factor) * (levels - other)
    cut = np.clip(np.rint(mixed), 0, 255).astype(np.uint8)
    return np.take(cut, image) if of_byte else cut


def adjust_brightness(image: Array, factor: float) -> Array:
    """Times factor.  Images here and below: uint8, 1 or 3 channels."""
    return _blend(check_bytes("adjust_brightness", image), 0.0, factor)


def adjust_contrast(image: Array, factor: float) -> Array:
    """The difference to the mean brightness, times factor."""
    return _blend(image, float(round(float(grey(image).mean()))), factor)


def adjust_saturation(image: Array, factor: float) -> Array:
    """The difference to the pixel's own brightness, times factor; one channel stays as it is."""
    check_bytes("adjust_saturation", image, (1, 3))
    if channel_count(image) == 1:
        return image
    return _blend(image, grey(image)[:, :, None].astype(np.float32), factor)


def adjust_hue(image: Array, factor: float) -> Array:
    """The hue turned by factor, a part of the circle from -0.5 to 0.5.

    One channel stays as it is. Needs Pillow, whose hues are bytes.
    """
    check_bytes("adjust_hue", image, (1, 3))
    if not -0.5 <= factor <= 0.5:
        raise ValueError(f"adjust_hue: factor must lie in -0.5 to 0.5, got {factor}")
    if channel_count(image) == 1:
        return image
    turn = round(factor * 256)

    def change(picture: Any, _: Any) -> Any:
        hue, saturation, value = picture.convert("HSV").split()
        turned = hue.point([(h + turn) % 256 for h in range(256)])
        return pillow("adjust_hue").merge("HSV", (turned, saturation, value)).convert("RGB")

    return through_pillow("adjust_hue", image, change)


def _bounds(
    name: str, value: float | Sequence[float], middle: float, least: float, most: float
) -> tuple[float, float] | None:
    """What to draw from: n is n around the middle, from least on.  None for the middle alone."""
    if not isinstance(value, Sequence):
        value = max(middle - value, least), middle + value
    low, high = check_range("ColorJitter", name, value)
    if low < least or high > most:
        raise ValueError(f"ColorJitter: {name} must lie in {least} to {most}, got {value}")
    return None if low == high == middle else (low, high)


class ColorJitter(Transform):
    """Brightness, contrast, saturation and hue changed at random, in a random order.

    brightness, contrast, saturation: n for factors from max(0, 1 - n) to 1 + n, or (low, high).
    hue: n for turns from -n to n, at most 0.5, or (low, high); it needs Pillow. Images: uint8 of 1
    or 3 channels.
    """

    def __init__(
        self,
        brightness: float | Sequence[float] = 0,
        contrast: float | Sequence[float] = 0,
        saturation: float | Sequence[float] = 0,
        hue: float | Sequence[float] = 0,
    ) -> None:
        self.brightness = _bounds("brightness", brightness, 1, 0, math.inf)
        self.contrast = _bounds("contrast", contrast, 1, 0, math.inf)
        self.saturation = _bounds("saturation", saturation, 1, 0, math.inf)
        self.hue = _bounds("hue", hue, 0, -0.5, 0.5)

    def _changed(self, image: Array) -> Array:
        check_bytes("ColorJitter", image, (1, 3))
        changes = (adjust_brightness, adjust_contrast, adjust_saturation, adjust_hue)
        bounds = (self.brightness, self.contrast, self.saturation, self.hue)
        for i in draw.order(4):
            drawn_from = bounds[i]
            if drawn_from is not None:
                image = changes[i](image, draw.uniform(*drawn_from))
        return image


# ---- RandAugment ----

_STEPS = 30  # magnitudes are 0 to 30 of the largest change

# What changes with the magnitude: its largest value, and whether its sign is drawn.
_OPERATIONS = {
    "identity": (0.0, False),
    "shear_x": (0.3, True),  # a slope
    "shear_y": (0.3, True),
    "translate_x": (150 / 331, True),  # of the width
    "translate_y": (150 / 331, True),
    "rotate": (30.0, True),  # degrees
    "brightness": (0.9, True),  # away from 1
    "color": (0.9, True),
    "contrast": (0.9, True),
    "sharpness": (0.9, True),
    "posterize": (4.0, False),  # bits fewer
    "solarize": (255.0, False),  # below 255
    "autocontrast": (0.0, False),
    "equalize": (0.0, False),
}
_FACTORS = {
    "brightness": adjust_brightness,
    "color": adjust_saturation,
    "contrast": adjust_contrast,
}


class RandAugment(Transform):
    """Some of 14 changes, drawn anew for each image, all of one magnitude.

    num_ops: how many, one after the other. magnitude: 0 to 30, from no change to the largest. fill:
    the value of what comes into view. Images: uint8 of 1 or 3 channels. Needs Pillow.
    Source: Cubuk et al. 2019, arXiv:1909.13719; the largest changes are those of AutoAugment.
    """

    def __init__(
        self, num_ops: int = 2, magnitude: int = 9, interpolation: str = "nearest", fill: Fill = 0
    ) -> None:
        if not 0 <= magnitude <= _STEPS:
            raise ValueError(f"RandAugment: magnitude must lie in 0 to {_STEPS}, got {magnitude}")
        if num_ops < 0:
            raise ValueError(f"RandAugment: num_ops must not be negative, got {num_ops}")
        self.num_ops, self.magnitude = num_ops, magnitude
        self.interpolation = check_name("RandAugment", interpolation, INTERPOLATIONS)
        self.fill = fill

    def _changed(self, image: Array) -> Array:
        check_bytes("RandAugment", image, (1, 3))
        names = list(_OPERATIONS)
        for _ in range(self.num_ops):
            name = names[draw.below(len(names))]
            largest, signed = _OPERATIONS[name]
            amount = largest * self.magnitude / _STEPS
            if signed and draw.below(2):
                amount = -amount
            image = augment(image, name, amount, self.interpolation, self.fill)
        return image


def augment(
    image: Array, name: str, amount: float, interpolation: str = "nearest", fill: Fill = 0
) -> Array:
    """One change of RandAugment, by name, as the table above says what `amount` is."""
    height, width = check_bytes("RandAugment", image, (1, 3)).shape[:2]
    degrees = float(np.degrees(np.arctan(amount)))
    moves: dict[str, dict[str, Any]] = {
        "shear_x": {"shear": (degrees, 0.0), "center": (0.0, 0.0)},
        "shear_y": {"shear": (0.0, degrees), "center": (0.0, 0.0)},
        "translate_x": {"translate": (int(amount * width), 0)},
        "translate_y": {"translate": (0, int(amount * height))},
        "rotate": {"angle": -amount},
    }
    if name in moves:
        return affine(image, interpolation=interpolation, fill=fill, **moves[name])
    if name in _FACTORS:
        return _FACTORS[name](image, 1 + amount)
    if name == "identity":
        return image
    if name == "posterize":
        return image & np.uint8(256 - 2 ** round(amount))
    if name == "solarize":
        return np.where(image < 255 - amount, image, 255 - image).astype(np.uint8)
    return through_pillow("RandAugment", image, lambda picture, _: _enhanced(picture, name, amount))


def _enhanced(picture: Any, name: str, amount: float) -> Any:
    from PIL import ImageEnhance, ImageOps

    if name == "sharpness":
        return ImageEnhance.Sharpness(picture).enhance(1 + amount)
    return ImageOps.autocontrast(picture) if name == "autocontrast" else ImageOps.equalize(picture)
