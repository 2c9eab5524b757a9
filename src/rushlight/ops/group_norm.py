"""Group and instance normalisation: over parts of the channels of each sample."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from rushlight import kernels
from rushlight.autograd import new_tensor, no_grad
from rushlight.errors import DtypeError, ShapeError
from rushlight.ops.batch_norm import batch_norm
from rushlight.ops.convert import TensorLike, as_tensor, host, is_real
from rushlight.ops.elementwise import add, mul, sub
from rushlight.ops.inplace import copy_
from rushlight.ops.norm import layer_norm
from rushlight.ops.reduce import mean, var
from rushlight.ops.shape import flatten, reshape

if TYPE_CHECKING:
    from rushlight.tensor import Tensor


def group_norm(
    input: TensorLike,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) * weight + bias, over groups of channels of each sample.

    input: (N, C, ...) float32/float64 -> the same.  weight, bias: (C,), dtype of the input.
    Mean and biased variance are over the C / num_groups channels of a group and all of space.
    Raises: ShapeError where num_groups does not divide C or a group has one value altogether;
    DtypeError; ValueError.  Source: Wu & He 2018, arXiv:1803.08494.
    """
    x = as_tensor(input)
    _check("group_norm", x, weight, bias)
    shape = x.array.shape
    if not isinstance(num_groups, int) or num_groups < 1:
        raise ValueError(f"group_norm: num_groups must be a positive integer, got {num_groups!r}")
    if shape[1] % num_groups:
        raise ShapeError(f"group_norm: {num_groups} groups do not divide {shape[1]} channels")
    if x.array.size == num_groups:
        raise ShapeError(
            f"group_norm: expected more than 1 value per group, got input {shape} in "
            f"{num_groups} groups"
        )
    out = x if x.array.size == 0 else _normalised(x, num_groups, eps)
    channels = (shape[1],) + (1,) * (len(shape) - 2)
    if weight is not None:
        out = mul(out, reshape(weight, channels))
    return out if bias is None else add(out, reshape(bias, channels))


def instance_norm(
    input: TensorLike,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """`batch_norm` of every sample by itself: mean and variance are over space.

    input: (N, C, ...) float32/float64 -> the same.  The other tensors: (C,), dtype of the input.
    use_input_stats: running statistics, where given, take in the mean over samples of what
    `batch_norm` would take in of each. Otherwise they are used.
    Raises: ShapeError, also for a channel of one value; DtypeError; ValueError.
    Source: Ulyanov, Vedaldi & Lempitsky 2016, arXiv:1607.08022.
    """
    x = as_tensor(input)
    _check("instance_norm", x, running_mean, running_var, weight, bias)
    if not use_input_stats:
        return batch_norm(x, running_mean, running_var, weight, bias, eps=eps)
    if math.prod(x.array.shape[2:]) == 1:
        raise ShapeError(
            f"instance_norm: expected more than 1 value per channel, got {x.array.shape}"
        )
    if (running_mean is None) != (running_var is None):
        raise ValueError("instance_norm: one running statistic without the other")
    if running_mean is not None and running_var is not None and x.array.size:
        _follow(x, running_mean, running_var, momentum)
    return group_norm(x, x.array.shape[1], weight, bias, eps)


def _normalised(x: Tensor, num_groups: int, eps: float) -> Tensor:
    """The kernel rounds its mean to the dtype, so what it is given has a mean near 0 already."""
    shape, width = x.array.shape, math.prod(x.array.shape[1:]) // num_groups
    groups = reshape(x, (shape[0], num_groups, width))
    centre = new_tensor(kernels.sum_axes(groups.array, (2,), 1 / width))  # shifts change nothing
    return reshape(layer_norm(sub(groups, centre), width, eps=eps), shape)


def _follow(x: Tensor, running_mean: Tensor, running_var: Tensor, momentum: float) -> None:
    """Let running statistics take in a batch, unless one of them would not be finite then."""
    with no_grad():
        rows = flatten(x, 2)
        found = mean(mean(rows, 2), 0), mean(var(rows, 2), 0)
        running = running_mean, running_var
        new = [
            add(mul(t, 1 - momentum), mul(s, momentum)) for t, s in zip(running, found, strict=True)
        ]
        if all(np.isfinite(host(t, "instance_norm")).all() for t in new):
            for t, value in zip(running, new, strict=True):
                copy_(t, value)


def _check(name: str, x: Tensor, *parameters: Tensor | None) -> None:
    if not is_real(x):
        raise DtypeError(f"{name}: input is {x.array.dtype}, expected float32 or float64")
    if x.array.ndim < 2:
        raise ShapeError(f"{name}: input {x.array.shape}, expected (N, C, ...)")
    for parameter in parameters:
        if parameter is None:
            continue
        if parameter.array.shape != x.array.shape[1:2]:
            expected = f"expected {x.array.shape[1:2]} for input {x.array.shape}"
            raise ShapeError(f"{name}: a tensor of {parameter.array.shape}, {expected}")
        if parameter.array.dtype != x.array.dtype:
            kinds = f"{parameter.array.dtype} with an input of {x.array.dtype}"
            raise DtypeError(f"{name}: a tensor of {kinds}")
