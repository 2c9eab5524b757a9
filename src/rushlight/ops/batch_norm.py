"""Batch normalisation, composed of other operations."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from rushlight import kernels
from rushlight.autograd import changed_in_place, new_tensor
from rushlight.errors import DtypeError, ShapeError
from rushlight.ops.convert import TensorLike, as_tensor, host, is_real
from rushlight.ops.elementwise import add, mul, rsqrt, square, sub
from rushlight.ops.inplace import add_
from rushlight.ops.reduce import mean
from rushlight.ops.shape import reshape

if TYPE_CHECKING:
    from rushlight.tensor import Tensor


def batch_norm(
    x: TensorLike,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    batches: Tensor | None = None,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias per channel, over all axes but 1.

    x: (N, C, ...) float32/float64 -> the same.  The other tensors: (C,), dtype of x.
    training: mean and biased variance are the batch's, and the running ones, where given, become
    (1 - momentum) * running + momentum * batch in place, with the unbiased variance; `batches`
    (), int64, then counts one more. Otherwise the running ones are used, as constants.
    Unlike PyTorch, a batch after which they would not all be finite changes neither them nor the
    count, and an empty batch raises.
    Raises: ShapeError, a ValueError, also for fewer than 2 values per channel when training, before
    anything is changed; DtypeError; ValueError for eps or without running statistics to use.
    Source: Ioffe & Szegedy 2015, arXiv:1502.03167, algorithms 1 and 2.
    """
    x = as_tensor(x)
    _check(x, running_mean, running_var, weight, bias)
    if eps < 0 or (training and eps == 0):
        raise ValueError(f"batch_norm: eps must be positive, got {eps}")
    shape = x.array.shape
    channels = (1, shape[1]) + (1,) * (len(shape) - 2)
    axes = (0, *range(2, len(shape)))
    if training:
        count = math.prod([shape[d] for d in axes])
        if count < 2:
            raise ShapeError(
                "batch_norm: expected more than 1 value per channel when training, "
                f"got input size {shape}"
            )
        center = mean(x, axes, keepdim=True)
        deviation = sub(x, center)
        variance = mean(square(deviation), axes, keepdim=True)
        if running_mean is not None and running_var is not None:
            unbiased = mul(new_tensor(variance.array), count / (count - 1))
            _move((running_mean, running_var), (center, unbiased), momentum, batches)
    elif running_mean is None or running_var is None:
        raise ValueError("batch_norm: running statistics are needed when not training")
    else:
        deviation = sub(x, reshape(new_tensor(running_mean.array), channels))
        variance = reshape(new_tensor(running_var.array), channels)
    scale = rsqrt(add(variance, eps))
    if weight is not None:
        scale = mul(scale, reshape(weight, channels))
    out = mul(deviation, scale)
    return out if bias is None else add(out, reshape(bias, channels))


def _check(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, *parameters: Tensor | None
) -> None:
    if not is_real(x):
        raise DtypeError(f"batch_norm: input is {x.array.dtype}, expected float32 or float64")
    if x.array.ndim < 2:
        raise ShapeError(f"batch_norm: input {x.array.shape}, expected (N, C, ...)")
    if (running_mean is None) != (running_var is None):
        raise ValueError("batch_norm: one running statistic without the other")
    for tensor in (running_mean, running_var, *parameters):
        if tensor is None:
            continue
        if tensor.array.shape != x.array.shape[1:2]:
            expected = f"expected {x.array.shape[1:2]} for input {x.array.shape}"
            raise ShapeError(f"batch_norm: a tensor of {tensor.array.shape}, {expected}")
        if tensor.array.dtype != x.array.dtype:
            kinds = f"{tensor.array.dtype} with an input of {x.array.dtype}"
            raise DtypeError(f"batch_norm: a tensor of {kinds}")


def _move(
    running: tuple[Tensor, ...], batch: tuple[Tensor, ...], momentum: float, batches: Tensor | None
) -> None:
    """Running statistics towards those of a batch, outside the graph; all of them or none."""
    moved = []
    for old, new in zip(running, batch, strict=True):
        step = mul(reshape(new_tensor(new.array), old.array.shape), momentum)
        moved.append(host(add(mul(new_tensor(old.array), 1 - momentum), step), "batch_norm"))
    if not all(np.isfinite(array).all() for array in moved):
        return
    for old, array in zip(running, moved, strict=True):
        kernels.copy_into(old.array, array)
        changed_in_place(old)
    if batches is not None:
        add_(batches, 1)
