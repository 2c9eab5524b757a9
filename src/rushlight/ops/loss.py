"""Losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rushlight import kernels
from rushlight.autograd import is_grad_enabled, new_tensor, record
from rushlight.errors import ShapeError
from rushlight.kernels import Array, Shape
from rushlight.ops.activation import hardtanh, softplus
from rushlight.ops.convert import TensorLike, as_real, as_tensor, host, pair, to_dtype
from rushlight.ops.elementwise import abs, add, div, mul, neg, square, sub, where, zero_like
from rushlight.ops.index import check_range, gather, integer_index
from rushlight.ops.reduce import mean, sum
from rushlight.ops.shape import contiguous, flatten, permute, reshape, squeeze, unsqueeze
from rushlight.ops.softmax import log_softmax

if TYPE_CHECKING:
    from rushlight.tensor import Tensor

_REDUCTIONS = ("mean", "sum", "none")


def _reduce(name: str, loss: Tensor, reduction: str) -> Tensor:
    _check_reduction(name, reduction)
    return loss if reduction == "none" else mean(loss) if reduction == "mean" else sum(loss)


def _check_reduction(name: str, reduction: str) -> None:
    if reduction not in _REDUCTIONS:
        raise ValueError(f"{name}: reduction {reduction!r} is not one of {_REDUCTIONS}")


def _class_rows(name: str, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Input (C,), (N, C) or (N, C, ...) and target as rows (R, C) and (R,)."""
    shape = x.array.shape
    expected = shape[:1] + shape[2:] if len(shape) >= 2 else ()
    rows = target.array.shape
    if len(shape) == 0 or rows != expected:
        raise ShapeError(f"{name}: input {shape} and target {rows}; expected (N, C, ...), (N, ...)")
    if len(shape) == 1:
        return unsqueeze(x, 0), unsqueeze(target, 0)
    if len(shape) > 2:
        x = permute(x, (0, *range(2, len(shape)), 1))
        return reshape(x, (target.array.size, shape[1])), flatten(target)
    return x, target


def cross_entropy(
    input: TensorLike,
    target: TensorLike,
    weight: TensorLike | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """-log softmax(input)[target], over classes on axis 1.

    input: (N, C, ...) or (C,) logits.  target: (N, ...) or () class indices; ignore_index is left
    out of loss, gradient and mean.  Where every target is ignored the mean is 0 (PyTorch: NaN).
    target may also be probabilities of input's shape.  weight: (C,).
    Raises: ShapeError, IndexError for a target outside [0, C), ValueError, DtypeError.
    """
    _check_reduction("cross_entropy", reduction)
    if not 0 <= label_smoothing <= 1:
        raise ValueError(f"cross_entropy: label_smoothing must be in [0, 1], got {label_smoothing}")
    x, target = as_real(input), as_tensor(target)
    if target.array.dtype.kind == "f":
        return _soft_cross_entropy(x, target, weight, reduction, label_smoothing)
    shape = target.array.shape
    x, target = _class_rows("cross_entropy", x, integer_index("cross_entropy", target))
    if weight is None and label_smoothing == 0:
        loss = _cross_entropy_rows(x, target, ignore_index, reduction)
    else:
        loss = _weighted_cross_entropy(x, target, weight, ignore_index, reduction, label_smoothing)
    return reshape(loss, shape) if reduction == "none" else loss


def _cross_entropy_rows(x: Tensor, target: Tensor, ignore_index: int, reduction: str) -> Tensor:
    logits, labels = _row_contiguous(x.array), target.array
    loss, log_total, reduced, valid = kernels.cross_entropy(
        logits, labels, ignore_index, reduction == "mean"
    )
    out = loss if reduction == "none" else reduced.reshape(())
    divide = valid if reduction == "mean" else None

    def vjp(g: Tensor) -> tuple[Tensor]:
        gradient = kernels.cross_entropy_backward(
            g.array, logits, labels, log_total, divide, ignore_index
        )
        return (record("cross_entropy_backward", gradient, (g, x), None),)

    attrs = {"ignore_index": ignore_index, "reduction": reduction}
    return record("cross_entropy", out, (x,), vjp, saved=(x, target), attrs=attrs)


def _row_contiguous(x: Array) -> Array:
    return x if x.shape[1] <= 1 or x.strides[1] == x.itemsize else kernels.contiguous(x)


def _weighted_cross_entropy(
    x: Tensor,
    target: Tensor,
    weight: TensorLike | None,
    ignore_index: int,
    reduction: str,
    smoothing: float,
) -> Tensor:
    logp = log_softmax(x, 1)  # (R, C)
    classes = _class_weight("cross_entropy", x, weight)
    loss, share = _chosen("cross_entropy", logp, target, classes, ignore_index)
    if smoothing:
        spread = logp if weight is None else mul(logp, classes)
        counted = new_tensor(target.array != ignore_index)
        uniform = where(counted, neg(mean(spread, 1)), zero_like(logp))
        loss = add(mul(loss, 1 - smoothing), mul(uniform, smoothing))
    return _reduce_by(loss, float(share.sum()), reduction)


def _class_weight(name: str, x: Tensor, weight: TensorLike | None, axis: int = 1) -> Tensor:
    """(C,), by default ones, in x's dtype."""
    classes, dtype = x.array.shape[axis], x.array.dtype
    if weight is None:
        return new_tensor(np.ones(classes, dtype))
    weight = to_dtype(as_tensor(weight), dtype)
    if weight.array.shape != (classes,):
        raise ShapeError(f"{name}: weight has shape {weight.array.shape}, expected ({classes},)")
    return weight


def _chosen(
    name: str, logp: Tensor, target: Tensor, weight: Tensor, ignore_index: int
) -> tuple[Tensor, Array]:
    """-weight[target] * logp[target] and weight[target] per row (R,); 0 where target is ignored."""
    labels = host(target, name)
    counted = labels != ignore_index
    chosen = np.where(counted, labels, 0)
    rows, classes = logp.array.shape
    if classes == 0 and not counted.any():  # no class to choose, and none wanted
        return sum(logp, 1), np.zeros(rows, logp.array.dtype)
    check_range(name, chosen, classes if chosen.size else 1)
    picked = squeeze(gather(logp, 1, new_tensor(chosen[:, None])), 1)
    share = (host(weight, name)[chosen] * counted).astype(logp.array.dtype)
    kept = where(new_tensor(counted), picked, zero_like(logp))
    return neg(mul(kept, new_tensor(share))), share


def _reduce_by(loss: Tensor, count: float, reduction: str) -> Tensor:
    """As `_reduce`, with the mean over `count`; over 0 it is 0."""
    if reduction == "none":
        return loss
    return sum(loss) if reduction == "sum" else div(sum(loss), count or 1.0)


def _soft_cross_entropy(
    x: Tensor, target: Tensor, weight: TensorLike | None, reduction: str, smoothing: float
) -> Tensor:
    if target.array.shape != x.array.shape:
        raise ShapeError(
            f"cross_entropy: target is {target.array.dtype} of shape {target.array.shape}; class "
            f"indices are int64, probabilities have the input's shape {x.array.shape}"
        )
    axis = 1 if x.array.ndim > 1 else 0
    if smoothing:
        target = add(mul(target, 1 - smoothing), smoothing / max(x.array.shape[axis], 1))
    logp = log_softmax(x, axis)
    if weight is not None:
        classes = _class_weight("cross_entropy", x, weight, axis)
        logp = mul(logp, reshape(classes, (-1,) + (1,) * (x.array.ndim - axis - 1)))
    loss = neg(sum(mul(target, logp), axis))
    return _reduce_by(loss, float(loss.array.size), reduction)


def nll_loss(
    input: TensorLike,
    target: TensorLike,
    weight: TensorLike | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """-input[target] over classes on axis 1; input holds log-probabilities.

    input: (N, C, ...) or (C,).  target: (N, ...) or ().  weight: (C,).  All ignored: the mean is 0.
    Raises: ShapeError, IndexError, ValueError.
    """
    _check_reduction("nll_loss", reduction)
    x, target = as_real(input), integer_index("nll_loss", target)
    shape = target.array.shape
    x, target = _class_rows("nll_loss", x, target)
    classes = _class_weight("nll_loss", x, weight)
    loss, share = _chosen("nll_loss", x, target, classes, ignore_index)
    loss = _reduce_by(loss, float(share.sum()), reduction)
    return reshape(loss, shape) if reduction == "none" else loss


def linear_cross_entropy(
    x: TensorLike,
    weight: Tensor,
    target: TensorLike,
    *,
    ignore_index: int = -100,
    chunk_rows: int | None = None,
) -> Tensor:
    """Mean cross-entropy of the logits x W^T, of which only chunk_rows rows exist at a time.

    x: (..., D).  weight: (V, D).  target: (...) class indices.  -> ().
    chunk_rows: by default what makes a million logits, but at least 128.
    The gradients are made on the way forward, while each chunk of logits is at hand.
    Raises: ShapeError, IndexError, ValueError for chunk_rows below 1.
    Source: the chunked form of arXiv:2410.10989.
    """
    if chunk_rows is not None and chunk_rows < 1:
        raise ValueError(f"linear_cross_entropy: chunk_rows must be at least 1, got {chunk_rows}")
    x, weight = contiguous(as_real(x)), as_tensor(weight)
    target = integer_index("linear_cross_entropy", target)
    fits = x.array.ndim > 0 and weight.array.ndim == 2
    if not fits or x.array.shape != (*target.array.shape, weight.array.shape[1]):
        raise ShapeError(
            f"linear_cross_entropy: input {x.array.shape}, weight {weight.array.shape}, "
            f"target {target.array.shape}; expected (..., D), (V, D), (...)"
        )
    rows = x.array.reshape(target.array.size, x.array.shape[-1])
    labels = kernels.contiguous(target.array).reshape(-1)
    w, dtype = weight.array, rows.dtype
    wanted = is_grad_enabled()
    gx = kernels.empty(rows.shape, dtype) if wanted and x.needs_grad else None
    gweight = kernels.full(w.shape, 0.0, dtype) if wanted and weight.needs_grad else None
    loss, count = _chunked_cross_entropy(rows, w, labels, ignore_index, chunk_rows, gx, gweight)
    shape = x.array.shape
    divide = kernels.maximum(count, np.ones(1, dtype))

    def vjp(g: Tensor) -> tuple[Tensor | None, Tensor | None]:
        scale = kernels.div(g.array, divide)

        def scaled(gradient: Array | None, shape: Shape) -> Tensor | None:
            if gradient is None:
                return None
            out = kernels.mul(gradient.reshape(shape), scale)
            return record("linear_cross_entropy_backward", out, (g, x, weight), None)

        return scaled(gx, shape), scaled(gweight, w.shape)

    out = kernels.div(loss, divide).reshape(())
    return record("linear_cross_entropy", out, (x, weight), vjp)


def _chunked_cross_entropy(
    rows: Array,
    w: Array,
    labels: Array,
    ignore_index: int,
    chunk_rows: int | None,
    gx: Array | None,
    gweight: Array | None,
) -> tuple[Array, Array]:
    """Sum of the losses and number of rows counted; fills the gradients of that sum where given."""
    dtype = rows.dtype
    loss, count = kernels.full((1,), 0.0, dtype), kernels.full((1,), 0.0, dtype)
    one = np.ones(1, dtype)
    step = chunk_rows or max(128, 2**20 // max(w.shape[0], 1))
    for start in range(0, rows.shape[0], step):
        part = slice(start, start + step)
        logits = kernels.empty((rows[part].shape[0], w.shape[0]), dtype)
        kernels.gemm(logits, rows[part], w.T)
        _, log_total, total, valid = kernels.cross_entropy(
            logits, labels[part], ignore_index, mean=False
        )
        kernels.accumulate(loss, total)
        kernels.accumulate(count, valid)
        if gx is None and gweight is None:
            continue
        glogits = kernels.cross_entropy_backward(
            one, logits, labels[part], log_total, None, ignore_index, out=logits
        )
        if gx is not None:
            kernels.gemm(gx[part], glogits, w)
        if gweight is not None:
            kernels.gemm(gweight, glogits.T, rows[part], accumulate=True)
    return loss, count


def _same_shape(name: str, x: TensorLike, y: TensorLike) -> tuple[Tensor, Tensor]:
    x, y = pair(x, y)
    if x.array.shape != y.array.shape:
        raise ShapeError(f"{name}: input {x.array.shape} and target {y.array.shape} must be equal")
    return x, y


def mse_loss(input: TensorLike, target: TensorLike, reduction: str = "mean") -> Tensor:
    """(input - target)^2, of one shape."""
    x, y = _same_shape("mse_loss", input, target)
    return _reduce("mse_loss", square(sub(x, y)), reduction)


def l1_loss(input: TensorLike, target: TensorLike, reduction: str = "mean") -> Tensor:
    """|input - target|, of one shape."""
    x, y = _same_shape("l1_loss", input, target)
    return _reduce("l1_loss", abs(sub(x, y)), reduction)


def huber_loss(
    input: TensorLike, target: TensorLike, reduction: str = "mean", delta: float = 1.0
) -> Tensor:
    """d^2 / 2 for d = input - target within delta of 0, delta * (|d| - delta / 2) outside.

    Input and target of one shape.  Raises: ShapeError; ValueError for delta <= 0.
    Source: Huber 1964.
    """
    if not delta > 0:
        raise ValueError(f"huber_loss: delta must be positive, got {delta}")
    return _reduce("huber_loss", _huber("huber_loss", input, target, delta), reduction)


def smooth_l1_loss(
    input: TensorLike, target: TensorLike, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """`huber_loss` with delta = beta, divided by beta; beta 0 is `l1_loss`.

    Raises: ShapeError; ValueError for beta < 0.  Source: Girshick 2015, arXiv:1504.08083.
    """
    if not beta >= 0:
        raise ValueError(f"smooth_l1_loss: beta must not be negative, got {beta}")
    if beta == 0:
        return l1_loss(input, target, reduction)
    loss = div(_huber("smooth_l1_loss", input, target, beta), beta)
    return _reduce("smooth_l1_loss", loss, reduction)


def _huber(name: str, input: TensorLike, target: TensorLike, delta: float) -> Tensor:
    x, y = _same_shape(name, input, target)
    distance = sub(x, y)
    within = hardtanh(distance, -delta, delta)
    return mul(within, sub(distance, mul(within, 0.5)))


def binary_cross_entropy_with_logits(
    input: TensorLike,
    target: TensorLike,
    weight: TensorLike | None = None,
    reduction: str = "mean",
    pos_weight: TensorLike | None = None,
) -> Tensor:
    """-target * log(sigmoid(input)) - (1 - target) * log(1 - sigmoid(input)), for any input.

    input: logits.  target: probabilities of the same shape.  pos_weight: a factor of the first
    term, weight: of both; each of any shape that broadcasts to the input's.
    Raises: ShapeError, ValueError.
    """
    name = "binary_cross_entropy_with_logits"
    x, y = _same_shape(name, input, as_real(target))
    x = as_real(x)
    for factor in (weight, pos_weight):
        if factor is not None:
            kernels.check_fits(name, as_tensor(factor).array.shape, x.array.shape)
    right = mul(y, softplus(neg(x)))
    if pos_weight is not None:
        right = mul(right, pos_weight)
    loss = add(right, mul(sub(1.0, y), softplus(x)))
    return _reduce(name, loss if weight is None else mul(loss, weight), reduction)
