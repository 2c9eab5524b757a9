"""Batch normalisation."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rushlight import kernels
from rushlight.autograd import changed_in_place, record
from rushlight.errors import DtypeError, ShapeError
from rushlight.kernels import K
from rushlight.ops.convert import TensorLike, as_tensor, is_real
from rushlight.ops.shape import squeeze, transpose, unsqueeze

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
    if not training and running_mean is None:
        raise ValueError("batch_norm: running statistics are needed when not training")
    shape = x.array.shape
    if training and math.prod(shape) < 2 * shape[1]:
        raise ShapeError(
            "batch_norm: expected more than 1 value per channel when training, "
            f"got input size {shape}"
        )
    if len(shape) == 2:  # a plane per channel instead of many of one element
        options: Any = running_mean, running_var, weight, bias, training, momentum, eps
        columns = unsqueeze(transpose(x, 0, 1), 0)
        return transpose(squeeze(batch_norm(columns, *options, batches=batches), 0), 0, 1)
    return _planes(x, running_mean, running_var, weight, bias, training, momentum, eps, batches)


def _planes(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
    batches: Tensor | None,
) -> Tensor:
    shape, dtype = x.array.shape, x.array.dtype
    flat = (*shape[:2], math.prod(shape[2:]))
    a = kernels.contiguous(x.array).reshape(flat)
    w, b = (None if p is None else kernels.contiguous(p.array) for p in (weight, bias))
    out, stats = kernels.empty(flat, dtype), kernels.empty((shape[1], 4), dtype)
    running = [t for t in (running_mean, running_var, batches) if t is not None]
    arrays = [None if t is None else t.array for t in (running_mean, running_var, batches)]
    kernels.call(K.batch_norm, out, stats, *arrays, a, w, b, eps, momentum, int(training))
    for t in running if training else ():
        changed_in_place(t)

    def vjp(g: Tensor) -> tuple[Tensor | None, ...]:
        rows = kernels.contiguous(g.array).reshape(flat)
        gx = kernels.empty(flat, dtype)
        gw, gb = (None if p is None else kernels.empty(shape[1:2], dtype) for p in (weight, bias))
        kernels.call(K.batch_norm_backward, gx, gw, gb, rows, a, stats, w, int(training))
        gradients = (gx.reshape(shape), gw, gb)
        inputs = tuple(t for t in (g, x, weight) if t is not None)
        return tuple(
            None if n is None else record("batch_norm_backward", n, inputs, None) for n in gradients
        )

    saved = (x,) if weight is None else (x, weight)
    attrs = {"eps": eps, "training": training, "momentum": momentum}
    return record(
        "batch_norm", out.reshape(shape), (x, weight, bias), vjp, saved=saved, attrs=attrs
    )


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
