"""Transforms that move pixels: resizing, cropping, flipping, padding, turning."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from rushlight.data.vision import draw
from rushlight.data.vision.base import ImageTransform, check_name, check_probability, check_range
from rushlight.data.vision.image import (
    Fill,
    channel_count,
    check_image,
    fills,
    pillow,
    through_pillow,
)
from rushlight.kernels import Array

Size: TypeAlias = "int | Sequence[int]"

INTERPOLATIONS = ("nearest", "bilinear", "bicubic")
_MODES = ("constant", "edge", "reflect", "symmetric")


def _integers(what: str, name: str, given: Size, counts: tuple[int, ...], least: int) -> list[int]:
    """As many as the last count, of one number or several.  Raises: ValueError."""
    values = [*given] if isinstance(given, Sequence) else [given]
    fit = all(isinstance(x, numbers.Integral) and x >= least for x in values)
    if len(values) not in counts or not fit:
        wanted = " or ".join(map(str, counts))
        raise ValueError(f"{what}: {name} must be {wanted} integers from {least} on, got {given!r}")
    return [int(x) for x in values] * (counts[-1] // len(values))


def _pair(what: str, size: Size) -> tuple[int, int]:
    """(height, width) of one number or two."""
    height, width = _integers(what, "size", size, (1, 2), 1)
    return height, width


def resize(image: Array, height: int, width: int, interpolation: str = "bilinear") -> Array:
    """An image of another size, (H, W[, C]) -> (height, width[, C]), same dtype.

    "nearest" takes the pixel at each new pixel's centre, of any dtype; the others go through
    Pillow, uint8 or float32, and weigh all pixels that a new one covers.
    """
    check_image("Resize", image)
    old_height, old_width = image.shape[:2]
    if (height, width) == (old_height, old_width):
        return image
    if interpolation == "nearest":
        rows = (2 * np.arange(height) + 1) * old_height // (2 * height)
        columns = (2 * np.arange(width) + 1) * old_width // (2 * width)
        return np.asarray(image[rows[:, None], columns])
    how = getattr(pillow("Resize").Resampling, interpolation.upper())
    return through_pillow("Resize", image, lambda x, _: x.resize((width, height), how))


class Resize(ImageTransform):
    """To a size: (height, width), or one number for the shorter side, keeping the aspect.

    interpolation: "bilinear", "bicubic" (both need Pillow) or "nearest".
    """

    def __init__(self, size: Size, interpolation: str = "bilinear") -> None:
        _pair("Resize", size)
        self.size = size
        self.interpolation = check_name("Resize", interpolation, INTERPOLATIONS)

    def _changed(self, image: Array) -> Array:
        height, width = image.shape[:2]
        if isinstance(self.size, Sequence) and len(self.size) == 2:
            new = _pair("Resize", self.size)
        else:
            short = _pair("Resize", self.size)[0]
            long = int(short * max(height, width) / min(height, width))
            new = (short, long) if height <= width else (long, short)
        return resize(image, *new, self.interpolation)


def _pad(what: str, image: Array, sides: tuple[int, int, int, int], fill: Fill, mode: str) -> Array:
    left, top, right, bottom = sides
    around = [(top, bottom), (left, right)] + [(0, 0)] * (image.ndim - 2)
    if mode != "constant":
        return np.pad(image, around, mode)  # type: ignore[call-overload, no-any-return]
    values = fills(what, fill, channel_count(image))
    height, width = image.shape[:2]
    out = np.empty((height + top + bottom, width + left + right, *image.shape[2:]), image.dtype)
    out[:] = values[0] if image.ndim == 2 else values
    out[top : top + height, left : left + width] = image
    return out


def _sides(what: str, padding: Size) -> tuple[int, int, int, int]:
    """Left, top, right, bottom of one number, (left and right, top and bottom), or all four."""
    left, top, right, bottom = _integers(what, "padding", padding, (1, 2, 4), 0)
    return left, top, right, bottom


class Pad(ImageTransform):
    """Pixels around: padding for all sides, (left and right, top and bottom), or four sides.

    fill: for padding_mode "constant", one value or one for each channel. "edge" repeats the last
    pixel, "reflect" mirrors without it, "symmetric" with it.
    """

    def __init__(self, padding: Size, fill: Fill = 0, padding_mode: str = "constant") -> None:
        _sides("Pad", padding)
        self.padding, self.fill = padding, fill
        self.padding_mode = check_name("Pad", padding_mode, _MODES)

    def _changed(self, image: Array) -> Array:
        return _pad("Pad", image, _sides("Pad", self.padding), self.fill, self.padding_mode)


class CenterCrop(ImageTransform):
    """The middle, of size (height, width) or square; what an image lacks is filled with 0."""

    def __init__(self, size: Size) -> None:
        self.size = _pair("CenterCrop", size)

    def _changed(self, image: Array) -> Array:
        height, width = image.shape[:2]
        y, x = self.size
        need_y, need_x = max(0, y - height), max(0, x - width)
        if need_y or need_x:
            sides = (need_x // 2, need_y // 2, need_x - need_x // 2, need_y - need_y // 2)
            image = _pad("CenterCrop", image, sides, 0, "constant")
        top, left = round(max(0, height - y) / 2), round(max(0, width - x) / 2)
        return image[top : top + y, left : left + x]


class RandomCrop(ImageTransform):
    """A part of size (height, width), or square, anywhere in the image once it is padded.

    padding, fill, padding_mode: as of `Pad`. pad_if_needed: pad smaller images on both sides until
    the part fits. Raises: ValueError when it does not fit.
    """

    def __init__(
        self,
        size: Size,
        padding: Size | None = None,
        pad_if_needed: bool = False,
        fill: Fill = 0,
        padding_mode: str = "constant",
    ) -> None:
        self.size = _pair("RandomCrop", size)
        if padding is not None:
            _sides("RandomCrop", padding)
        self.padding, self.pad_if_needed, self.fill = padding, pad_if_needed, fill
        self.padding_mode = check_name("RandomCrop", padding_mode, _MODES)

    def _changed(self, image: Array) -> Array:
        if self.padding is not None:
            sides = _sides("RandomCrop", self.padding)
            image = _pad("RandomCrop", image, sides, self.fill, self.padding_mode)
        need_y, need_x = (max(0, a - b) for a, b in zip(self.size, image.shape[:2], strict=True))
        if self.pad_if_needed and (need_y or need_x):
            sides = (need_x, need_y, need_x, need_y)
            image = _pad("RandomCrop", image, sides, self.fill, self.padding_mode)
        (height, width), (y, x) = image.shape[:2], self.size
        if height < y or width < x:
            raise ValueError(
                f"RandomCrop: {self.size} does not fit into an image of {(height, width)}; "
                "pad it, or pass pad_if_needed=True"
            )
        top, left = draw.below(height - y + 1), draw.below(width - x + 1)
        return image[top : top + y, left : left + x]


class RandomResizedCrop(ImageTransform):
    """A part of random area and aspect, resized to a size (height, width), or square.

    scale: bounds of its area as a part of the image's. ratio: bounds of width / height, drawn
    evenly in its logarithm. When ten draws do not fit, it is the middle with the nearest ratio.
    Source: Szegedy et al. 2014, arXiv:1409.4842, section 6.
    """

    def __init__(
        self,
        size: Size,
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3),
        interpolation: str = "bilinear",
    ) -> None:
        self.size = _pair("RandomResizedCrop", size)
        self.scale = check_range("RandomResizedCrop", "scale", scale, 0)
        self.ratio = check_range("RandomResizedCrop", "ratio", ratio, 0)
        self.interpolation = check_name("RandomResizedCrop", interpolation, INTERPOLATIONS)

    def _changed(self, image: Array) -> Array:
        height, width = image.shape[:2]
        top, left, y, x = self._part(height, width)
        return resize(image[top : top + y, left : left + x], *self.size, self.interpolation)

    def _part(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Top, left, height and width."""
        for x, y in draw.rectangles(height * width, self.scale, self.ratio):
            if 0 < x <= width and 0 < y <= height:
                return draw.below(height - y + 1), draw.below(width - x + 1), y, x
        x = min(width, max(1, round(height * self.ratio[1])))
        y = min(height, max(1, round(width / self.ratio[0])))
        return (height - y) // 2, (width - x) // 2, y, x


class _RandomFlip(ImageTransform):
    turned: Any  # the index that exchanges the sides

    def __init__(self, p: float = 0.5) -> None:
        self.p = check_probability(type(self).__name__, p)

    def _changed(self, image: Array) -> Array:
        return np.ascontiguousarray(image[self.turned]) if draw.uniform() < self.p else image


class RandomHorizontalFlip(_RandomFlip):
    """Left and right exchanged, with probability p."""

    turned = np.s_[:, ::-1]


class RandomVerticalFlip(_RandomFlip):
    """Top and bottom exchanged, with probability p."""

    turned = np.s_[::-1]


def _degrees(what: str, degrees: float | Sequence[float]) -> tuple[float, float]:
    bounds = degrees if isinstance(degrees, Sequence) else (0.0 - degrees, degrees)
    return check_range(what, "degrees", bounds)


class RandomRotation(ImageTransform):
    """Turned about its centre by an angle drawn from `degrees`: (low, high), or n for -n to n.

    A positive angle turns to the left. expand: enlarge the image to hold all of it. center: (x, y)
    instead of the middle. fill: the value outside. Needs Pillow.
    """

    def __init__(
        self,
        degrees: float | Sequence[float],
        interpolation: str = "nearest",
        expand: bool = False,
        center: Sequence[float] | None = None,
        fill: Fill = 0,
    ) -> None:
        self.degrees = _degrees("RandomRotation", degrees)
        self.interpolation = check_name("RandomRotation", interpolation, INTERPOLATIONS)
        self.expand, self.center, self.fill = expand, center, fill

    def _changed(self, image: Array) -> Array:
        angle = draw.uniform(*self.degrees)
        how = getattr(pillow("RandomRotation").Resampling, self.interpolation.upper())

        def change(picture: Any, fill: Any) -> Any:
            return picture.rotate(angle, how, self.expand, self.center, fillcolor=fill)

        return through_pillow("RandomRotation", image, change, self.fill)


def affine(
    image: Array,
    angle: float = 0.0,
    translate: Sequence[float] = (0.0, 0.0),
    scale: float = 1.0,
    shear: Sequence[float] = (0.0, 0.0),
    interpolation: str = "nearest",
    fill: Fill = 0,
    center: Sequence[float] | None = None,
) -> Array:
    """An image sheared, scaled, turned to the right about `center`, and moved, in this order.

    angle, shear: degrees; shear along x, then along y. translate: (x, y) in pixels. center: (x, y)
    in pixels from the upper left corner, or the middle. Same size and dtype. Needs Pillow.
    """
    height, width = check_image("affine", image).shape[:2]
    x, y = (width / 2, height / 2) if center is None else center
    a, (p, q) = math.radians(angle), (math.tan(math.radians(s)) for s in shear)
    turn = np.array([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]])
    forth = scale * (turn @ np.array([[1.0, 0.0], [-q, 1.0]]) @ np.array([[1.0, -p], [0.0, 1.0]]))
    back = np.linalg.inv(forth)  # Pillow asks where each new pixel comes from
    shift = np.array([x, y]) - back @ np.array([x + translate[0], y + translate[1]])
    rows = (*back[0], shift[0], *back[1], shift[1])
    image_module = pillow("affine")
    how = getattr(image_module.Resampling, interpolation.upper())

    def change(picture: Any, fill: Any) -> Any:
        size, kind = (width, height), image_module.Transform.AFFINE
        return picture.transform(size, kind, rows, how, fillcolor=fill)

    return through_pillow("affine", image, change, fill)


class RandomAffine(ImageTransform):
    """Turned, moved, scaled and sheared at random, about its centre, at the same size.

    degrees: as of `RandomRotation`, but positive turns to the right. translate: (a, b), moves of up
    to a times the width and b times the height, in whole pixels. scale: (low, high). shear: n for
    -n to n degrees along x, (low, high), or four numbers, of x and of y. fill: the value outside.
    Needs Pillow.
    """

    def __init__(
        self,
        degrees: float | Sequence[float],
        translate: Sequence[float] | None = None,
        scale: Sequence[float] | None = None,
        shear: float | Sequence[float] | None = None,
        interpolation: str = "nearest",
        fill: Fill = 0,
        center: Sequence[float] | None = None,
    ) -> None:
        self.degrees = _degrees("RandomAffine", degrees)
        if translate is not None and [0 <= t <= 1 for t in translate] != [True, True]:
            raise ValueError(f"RandomAffine: translate is two parts of the size, got {translate}")
        self.translate = translate
        self.scale = None if scale is None else check_range("RandomAffine", "scale", scale, 0)
        self.shear = _shear(shear)
        self.interpolation = check_name("RandomAffine", interpolation, INTERPOLATIONS)
        self.fill, self.center = fill, center

    def _changed(self, image: Array) -> Array:
        height, width = image.shape[:2]
        angle = draw.uniform(*self.degrees)
        move = (0, 0)
        if self.translate is not None:
            u, v = draw.uniforms(2, -1.0, 1.0)
            move = (round(u * self.translate[0] * width), round(v * self.translate[1] * height))
        scale = 1.0 if self.scale is None else draw.uniform(*self.scale)
        shear = [draw.uniform(a, b) if a < b else a for a, b in self.shear]
        return affine(image, angle, move, scale, shear, self.interpolation, self.fill, self.center)


def _shear(shear: float | Sequence[float] | None) -> list[tuple[float, float]]:
    """Bounds along x and along y."""
    values = tuple(shear) if isinstance(shear, Sequence) else _degrees("RandomAffine", shear or 0)
    if len(values) not in (2, 4):
        raise ValueError(f"RandomAffine: shear is one, two or four numbers, got {shear!r}")
    both = values[:2], values[2:] or (0.0, 0.0)
    return [check_range("RandomAffine", "shear", bounds) for bounds in both]
