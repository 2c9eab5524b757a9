"""Other sizes for images: nearest elements, linear and cubic interpolation, means of areas."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rushlight.autograd import new_tensor
from rushlight.errors import DtypeError, ShapeError
from rushlight.kernels import FLOAT32, Array
from rushlight.ops import pool
from rushlight.ops.conv import Size, sizes
from rushlight.ops.convert import TensorLike, as_tensor, is_real
from rushlight.ops.linalg import matmul
from rushlight.ops.padding import Order, take
from rushlight.ops.shape import clone, reshape, transpose

if TYPE_CHECKING:
    from rushlight.tensor import Tensor

_AXES = {"linear": 1, "bilinear": 2, "bicubic": 2, "trilinear": 3}  # spatial ones of these modes
_ANY_RANK = ("nearest", "nearest-exact", "area")
_AREAS = {1: pool.adaptive_avg_pool1d, 2: pool.adaptive_avg_pool2d, 3: pool.adaptive_avg_pool3d}


def interpolate(
    input: TensorLike,
    size: Size | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """The same image in another size.  (N, C, ...) -> (N, C, *size), one to three spatial axes.

    input: float32/float64.  size: or scale_factor, which gives floor(n * scale_factor) and the
    distance 1 / scale_factor of the places that are looked at (n / size with a size, and with
    recompute_scale_factor).
    mode: "nearest" (the element at or before the place; what keeps or doubles its size is a
    factor of 1 or 2), "nearest-exact" (around it), "linear",
    "bilinear", "trilinear", "bicubic" (a = -0.75), "area" (means, as `adaptive_avg_pool2d`).
    align_corners: the outermost elements stay where they are, instead of the edges of the image.
    antialias: of "bilinear" and "bicubic" (then a = -0.5): windows grow with the distance.
    But for the nearest ones and areas every axis is a matrix product: NaN and infinity spread
    along it.
    Raises: ShapeError, DtypeError, ValueError for options that do not go together.
    Source: Keys 1981 for cubic interpolation.
    """
    x = as_tensor(input)
    axes = x.array.ndim - 2
    _check(x, mode, align_corners, antialias)
    shape = x.array.shape[2:]
    if (size is None) == (scale_factor is None):
        raise ValueError("interpolate: give either size or scale_factor")
    steps: list[float | None] = [None] * axes
    if scale_factor is None:
        if recompute_scale_factor:
            raise ValueError("interpolate: recompute_scale_factor goes with scale_factor only")
        outputs = sizes("interpolate", "size", size if size is not None else 0, axes, 1)
    else:
        factors = _factors(scale_factor, axes)
        outputs = tuple(math.floor(n * f) for n, f in zip(shape, factors, strict=True))
        if not recompute_scale_factor:
            steps = [1 / f for f in factors]
    if min(outputs) < 1 or 0 in shape:
        raise ShapeError(f"interpolate: from {shape} to {outputs}, where no size may be 0")
    if mode == "area":
        return _AREAS[axes](x, outputs)
    plans = zip(range(2, axes + 2), shape, outputs, steps, strict=True)
    result = x
    for axis, n, m, step in sorted(plans, key=lambda plan: plan[2] / plan[1]):  # shrink first
        if mode in _ANY_RANK:
            order = _nearest(n, m, step, mode == "nearest-exact")
            result = result if order is None else take(result, axis, order)
        elif n != m or (mode == "bicubic" and not antialias):  # PyTorch leaves other axes alone
            kind = "cubic" if mode == "bicubic" else "linear"
            name = x.array.dtype.name
            weights = _matrix(kind, n, m, step, bool(align_corners), antialias, name)
            result = _along(result, axis, weights)
    return clone(x) if result is x else result


def _check(x: Tensor, mode: str, align_corners: bool | None, antialias: bool) -> None:
    axes = x.array.ndim - 2
    if not is_real(x):
        raise DtypeError(f"interpolate: input is {x.array.dtype}, expected float32 or float64")
    if mode not in _AXES and mode not in _ANY_RANK:
        raise ValueError(f"interpolate: mode {mode!r} is not one of {(*_ANY_RANK, *_AXES)}")
    if not 1 <= axes <= 3 or axes != _AXES.get(mode, axes):
        wanted = f"(N, C, ...) with {_AXES.get(mode, '1 to 3')} spatial axes for mode {mode!r}"
        raise ShapeError(f"interpolate: input {x.array.shape}, expected {wanted}")
    if align_corners is not None and mode in _ANY_RANK:
        raise ValueError(f"interpolate: align_corners has no meaning in mode {mode!r}")
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ValueError(f"interpolate: antialias goes with bilinear and bicubic, not {mode!r}")


def _factors(given: Any, axes: int) -> list[float]:
    factors = [float(f) for f in (given if isinstance(given, Sequence) else [given] * axes)]
    if len(factors) != axes or not all(math.isfinite(f) and f > 0 for f in factors):
        raise ValueError(f"interpolate: scale_factor is {axes} positive numbers, got {given!r}")
    return factors


# ---- the nearest element ----


@functools.lru_cache(512)
def _nearest(n: int, m: int, step: float | None, exact: bool) -> Order | None:
    """Which elements to take; None for the same."""
    if not exact and m in (n, 2 * n):  # so PyTorch has it for images
        step = None
    # in float32, as PyTorch does for images, so that both choose the same where it is close
    distance = np.float32(n) / np.float32(m) if step is None else np.float32(step)
    places = np.arange(m, dtype=FLOAT32)
    if exact:
        places += np.float32(0.5)
    index = np.minimum(np.floor(places * distance).astype(np.int64), n - 1)
    if n == m and np.array_equal(index, np.arange(n)):
        return None
    k = m // n
    if m % n == 0 and np.array_equal(index, np.arange(m) // k):
        return Order(n, m, tuple((slice(0, n), slice(i, m, k)) for i in range(k)))
    return Order.of(n, index)


# ---- weighted means along an axis ----


def _along(x: Tensor, axis: int, weights: Array) -> Tensor:
    """(..., n, ...) times (m, n) along an axis."""
    shape, (m, n) = x.array.shape, weights.shape
    outer, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    if inner == 1:
        out = matmul(reshape(x, (outer, n)), transpose(new_tensor(weights), 0, 1))
    else:
        out = matmul(new_tensor(weights), reshape(x, (outer, n, inner)))
    return reshape(out, (*shape[:axis], m, *shape[axis + 1 :]))


@functools.lru_cache(64)
def _matrix(
    kind: str, n: int, m: int, step: float | None, align: bool, antialias: bool, dtype: str
) -> Array:
    """(m, n): what every old element gives to every new one; rows sum to 1."""
    distance = n / m if step is None else step
    if align:
        distance = (n - 1) / (m - 1) if m > 1 else 0.0
    build = _windowed if antialias else _pointwise
    weights = build(kind, n, m, distance, align).astype(dtype)
    weights.flags.writeable = False
    return weights


def _pointwise(kind: str, n: int, m: int, distance: float, align: bool) -> Array:
    """Between the two or four elements around each place; beyond the border is the border."""
    places = np.arange(m) * distance if align else (np.arange(m) + 0.5) * distance - 0.5
    if kind == "linear":
        places = np.maximum(places, 0)
    first = np.floor(places).astype(np.int64)
    weights = np.zeros((m, n))
    for tap in (0, 1) if kind == "linear" else (-1, 0, 1, 2):
        share = _KERNELS[kind](first + tap - places, -0.75)
        weights[np.arange(m), (first + tap).clip(0, n - 1)] += share
    return weights


def _windowed(kind: str, n: int, m: int, distance: float, align: bool) -> Array:
    """Over all elements within a window that is as many times wider as the image shrinks.

    As in PyTorch, align_corners changes the distance but not where the first window lies.
    """
    wide = max(distance, 1.0)
    centres = ((np.arange(m) + 0.5) * distance)[:, None]
    support = wide * (1 if kind == "linear" else 2)
    start = np.maximum((centres - support + 0.5).astype(np.int64), 0)
    end = np.minimum((centres + support + 0.5).astype(np.int64), n)
    places = np.arange(n)
    shares = _KERNELS[kind]((places - centres + 0.5) / wide, -0.5)
    weights = np.where((places >= start) & (places < end), shares, 0)
    return np.asarray(weights / weights.sum(1, keepdims=True))


def _triangle(distance: Array, a: float) -> Array:
    return np.asarray(np.maximum(1 - np.abs(distance), 0))


def _cubic(distance: Array, a: float) -> Array:
    d = np.abs(distance)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = a * (((d - 5) * d + 8) * d - 4)
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


_KERNELS = {"linear": _triangle, "cubic": _cubic}
