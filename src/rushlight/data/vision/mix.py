"""Images mixed with others of their batch, and their labels with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from rushlight.data.collate import default_collate
from rushlight.data.vision import draw
from rushlight.data.vision.base import Transform
from rushlight.errors import DtypeError, ShapeError
from rushlight.kernels import Array
from rushlight.tensor import Tensor


def mixup(x: Tensor, y: Tensor, num_classes: int, alpha: float = 1.0) -> tuple[Tensor, Tensor]:
    """Images lam * x + (1 - lam) * x[others of the batch], with lam of Beta(alpha, alpha).

    x: (N, ...) floats.  y: (N,) integer classes, or (N, K) floats mixed before.
    Returns x's shape and dtype, and (N, K) float32 targets for `F.cross_entropy`. One lam is drawn
    for the batch. Raises: ShapeError, DtypeError, IndexError for a class outside of [0, K),
    ValueError for an alpha not above 0.
    Source: Zhang et al. 2017, arXiv:1710.09412.
    """
    targets = _check("mixup", x, y, num_classes, alpha, None)
    lam, other = draw.beta(alpha), draw.order(len(x))
    images = x.array
    mixed = images * images.dtype.type(lam)
    mixed += images.dtype.type(1 - lam) * images[other]
    return Tensor(mixed), _mixed_targets(targets, other, lam)


def cutmix(x: Tensor, y: Tensor, num_classes: int, alpha: float = 1.0) -> tuple[Tensor, Tensor]:
    """A rectangle of each image taken from another of the batch; labels mixed by area.

    x: (N, C, H, W), any dtype.  y, results, errors: as of `mixup`. The rectangle, the same for all,
    has 1 - lam of the area, and less where it leaves the image; the labels count what it covers.
    Source: Yun et al. 2019, arXiv:1905.04899.
    """
    targets = _check("cutmix", x, y, num_classes, alpha, 4)
    lam, other = draw.beta(alpha), draw.order(len(x))
    height, width = x.shape[2:]
    side = math.sqrt(1 - lam)
    half_y, half_x = int(height * side) // 2, int(width * side) // 2
    middle_y, middle_x = draw.below(height), draw.below(width)
    rows = slice(max(0, middle_y - half_y), min(height, middle_y + half_y))
    columns = slice(max(0, middle_x - half_x), min(width, middle_x + half_x))
    mixed = x.array.copy()
    mixed[:, :, rows, columns] = x.array[other][:, :, rows, columns]
    covered = (rows.stop - rows.start) * (columns.stop - columns.start)
    return Tensor(mixed), _mixed_targets(targets, other, 1 - covered / (height * width))


def _check(what: str, x: Tensor, y: Tensor, num_classes: int, alpha: float, axes: Any) -> Array:
    """Targets as (N, K) float32."""
    if not alpha > 0:
        raise ValueError(f"{what}: alpha must be above 0, got {alpha}")
    if axes is not None and x.ndim != axes:
        raise ShapeError(f"{what}: expected images (N, C, H, W), got {tuple(x.shape)}")
    if axes is None and x.array.dtype.kind != "f":
        raise DtypeError(f"{what}: expected float images, got {x.dtype}")
    labels = y.array
    if x.ndim == 0 or labels.ndim == 0 or len(labels) != x.shape[0]:
        raise ShapeError(f"{what}: images {tuple(x.shape)} and labels {labels.shape}")
    if labels.ndim == 2 and labels.dtype.kind == "f" and labels.shape[1] == num_classes:
        return labels.astype(np.float32)
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        wanted = f"labels (N,) of integers or (N, {num_classes}) of floats"
        raise ShapeError(f"{what}: expected {wanted}, got {labels.shape} of {y.dtype}")
    if labels.size and (labels.min() < 0 or labels.max() >= num_classes):
        found = f"{labels.min()} to {labels.max()}"
        raise IndexError(f"{what}: classes from {found}, expected 0 to {num_classes - 1}")
    soft = np.zeros((len(labels), num_classes), np.float32)
    soft[np.arange(len(labels)), labels] = 1
    return soft


def _mixed_targets(targets: Array, other: list[int], lam: float) -> Tensor:
    return Tensor((lam * targets + (1 - lam) * targets[other]).astype(np.float32))


class MixUp(Transform):
    """`collate_fn` of a DataLoader that collates samples (image, class) and mixes them.

    Returns `mixup`'s two tensors. What it draws belongs to the batch, whoever makes it.
    """

    mix = staticmethod(mixup)

    def __init__(self, *, alpha: float = 1.0, num_classes: int) -> None:
        self.alpha = alpha
        self.num_classes = num_classes

    def _changed(self, samples: Sequence[Any]) -> tuple[Tensor, Tensor]:
        x, y = default_collate(samples)
        return self.mix(x, y, self.num_classes, self.alpha)


class CutMix(MixUp):
    """The same with `cutmix`."""

    mix = staticmethod(cutmix)
