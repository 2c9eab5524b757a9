"""Scaled dot-product attention."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from rushlight import kernels
from rushlight.autograd import new_tensor, record
from rushlight.errors import DtypeError, ShapeError
from rushlight.kernels import Array
from rushlight.ops.convert import TensorLike, as_tensor, host
from rushlight.ops.dropout import dropout
from rushlight.ops.elementwise import add, masked_fill, mul
from rushlight.ops.linalg import matmul
from rushlight.ops.shape import reshape, transpose, tril
from rushlight.ops.softmax import softmax
from rushlight.random import current

if TYPE_CHECKING:
    from rushlight.tensor import Tensor


def scaled_dot_product_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    attn_mask: TensorLike | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """softmax(scale * query key^T + mask) value.

    query: (..., H, T, K).  key: (..., G, S, K).  value: (..., G, S, V).  -> (..., H, T, V);
    G = H unless enable_gqa, where query head h reads head h // (H / G).
    attn_mask broadcasts to (..., H, T, S): bool (True takes part) or added to the scores.
    is_causal: query t sees keys 0 to t.  scale: 1 / sqrt(K) by default.
    dropout_p: each weight of the softmax is zero with this probability, the others divided by
    1 - dropout_p.
    A query that sees no key gives zeros. The result's memory is laid out as (..., T, H, V), so that
    joining the heads costs no copy.
    Raises: ShapeError, DtypeError, ValueError when a mask and is_causal are both given.
    Source: arXiv:1706.03762, eq. 1; tiled as in arXiv:2205.14135.
    """
    q, k, v = as_tensor(query), as_tensor(key), as_tensor(value)
    _check(q.array, k.array, v.array, enable_gqa)
    if is_causal and attn_mask is not None:
        raise ValueError("scaled_dot_product_attention: give attn_mask or is_causal, not both")
    if not 0 <= dropout_p <= 1:
        raise ValueError(
            f"scaled_dot_product_attention: dropout_p must lie in [0, 1], got {dropout_p}"
        )
    if scale is None:
        scale = 1 / math.sqrt(q.array.shape[-1]) if q.array.shape[-1] else 1.0
    mask = None if attn_mask is None else as_tensor(attn_mask)
    if mask is not None and mask.needs_grad:
        return _composed(q, k, v, mask, dropout_p, is_causal, scale)
    lead = q.array.shape[:-3] if q.array.ndim >= 3 else ()
    q4, k4, v4 = (_with_four_axes(x) for x in (q, k, v))
    scores_shape = (*q4.array.shape[:3], k4.array.shape[2])
    keep, bias = _mask_views(mask, scores_shape, lead, q.array)
    out = _attention(q4, k4, v4, mask, keep, bias, dropout_p, is_causal, scale)
    return out if q.array.ndim == 4 else reshape(out, (*q.array.shape[:-1], v.array.shape[-1]))


def _check(q: Array, k: Array, v: Array, enable_gqa: bool) -> None:
    name = "scaled_dot_product_attention"
    if min(q.ndim, k.ndim, v.ndim) < 2 or not q.ndim == k.ndim == v.ndim:
        raise ShapeError(f"{name}: query {q.shape}, key {k.shape}, value {v.shape} differ in rank")
    if q.shape[-1] != k.shape[-1] or k.shape[:-1] != v.shape[:-1] or q.shape[:-3] != k.shape[:-3]:
        raise ShapeError(
            f"{name}: query {q.shape}, key {k.shape}, value {v.shape}; "
            "expected (..., H, T, K), (..., G, S, K), (..., G, S, V)"
        )
    heads, groups = (q.shape[-3], k.shape[-3]) if q.ndim >= 3 else (1, 1)
    if heads != groups and not enable_gqa:
        raise ShapeError(f"{name}: {heads} query heads and {groups} key heads need enable_gqa=True")
    if heads != groups and (groups == 0 or heads % groups):
        raise ShapeError(f"{name}: {heads} query heads are no multiple of {groups} key heads")


def _with_four_axes(x: Tensor) -> Tensor:
    if x.array.ndim == 4:
        return x
    shape = x.array.shape
    heads = shape[-3] if len(shape) >= 3 else 1
    batch = math.prod(shape[:-3])
    return reshape(x, (batch, heads, *shape[-2:]))


def _mask_views(
    mask: Tensor | None, shape: tuple[int, ...], lead: tuple[int, ...], q: Array
) -> tuple[Array | None, Array | None]:
    """The mask as a (B, H, T, S) view: of what is kept, or of what is added."""
    if mask is None:
        return None, None
    full = (*lead, *shape[1:]) if q.ndim != 2 else shape[2:]
    try:
        view = np.broadcast_to(mask.array, full)
    except ValueError:
        raise ShapeError(
            f"scaled_dot_product_attention: mask {mask.array.shape} does not broadcast to {full}"
        ) from None
    if view.ndim != len(shape):
        kernels.on_host("scaled_dot_product_attention: joining the batch axes of a mask")
        view = view.reshape(shape)
    if view.dtype == np.bool_:
        return view, None
    if view.dtype != q.dtype:
        raise DtypeError(
            f"scaled_dot_product_attention: mask is {view.dtype}, expected bool or {q.dtype}"
        )
    return None, view


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    keep: Array | None,
    bias: Array | None,
    dropout_p: float,
    causal: bool,
    scale: float,
) -> Tensor:
    qa, ka, va = (_unit_last(x.array) for x in (q, k, v))
    p, state = dropout_p, current().state if dropout_p > 0 else None
    out, lse, drawn = kernels.attention(qa, ka, va, keep, bias, scale, causal, state, p)

    def vjp(g: Tensor, _: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gq, gk, gv = _gradient_buffers(qa, ka, va)
        ga = _unit_last(g.array)
        kernels.attention_backward(
            gq, gk, gv, ga, qa, ka, va, out, lse, keep, bias, scale, causal, drawn, p
        )
        return (
            record("attention_backward", gq, (g, q, k, v), None),
            record("attention_backward", gk, (g, q, k, v), None),
            record("attention_backward", gv, (g, q, k, v), None),
        )

    attrs = {"scale": scale, "causal": causal, "dropout_p": dropout_p}
    saved = (q, k, v) if mask is None else (q, k, v, mask)
    return record("attention", out, (q, k, v), vjp, saved=saved, keeps_output=True, attrs=attrs)


def _unit_last(x: Array) -> Array:
    """The kernels want rows of heads contiguous; any other stride is free."""
    return x if x.shape[-1] <= 1 or x.strides[-1] == x.itemsize else kernels.contiguous(x)


def _gradient_buffers(q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
    """Gradients laid out as q, k, v are: pieces of one buffer where those are pieces of one array.

    The gradients of a projection's three parts then already lie side by side.
    """
    base = q.base
    if (
        isinstance(base, np.ndarray)
        and k.base is base
        and v.base is base
        and base.flags.c_contiguous
        and base.dtype == q.dtype
        and base.size == q.size + k.size + v.size
        and not any(0 in x.strides for x in (q, k, v))
        and not any(np.shares_memory(x, y) for x, y in ((q, k), (q, v), (k, v)))
    ):
        whole = kernels.empty(base.shape, base.dtype)
        start = base.__array_interface__["data"][0]
        gq, gk, gv = (
            np.ndarray(x.shape, x.dtype, whole, x.__array_interface__["data"][0] - start, x.strides)
            for x in (q, k, v)
        )
        return gq, gk, gv
    return _like(q), _like(k), _like(v)


def _like(x: Array) -> Array:
    """A buffer in the memory order of x: (B, T, H, K) where x is a view of that."""
    b, h, t, width = x.shape
    if x.flags.c_contiguous:
        return kernels.empty(x.shape, x.dtype)
    return kernels.empty((b, t, h, width), x.dtype).transpose(0, 2, 1, 3)


def _composed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    causal: bool,
    scale: float,
) -> Tensor:
    """The same from single operations: for masks that want a gradient."""
    share = q.array.shape[-3] // max(k.array.shape[-3], 1) if q.array.ndim >= 3 else 1
    if share > 1:
        k, v = (_repeat_heads(x, share) for x in (k, v))
    scores = mul(matmul(q, transpose(k, -2, -1)), scale)
    if causal:
        seen = tril(new_tensor(np.ones(scores.array.shape[-2:], np.bool_)))
        scores = masked_fill(scores, ~seen, -math.inf)
    if mask is not None:
        hidden: Any = ~mask if mask.array.dtype == np.bool_ else None
        scores = add(scores, mask) if hidden is None else masked_fill(scores, hidden, -math.inf)
    blind = new_tensor(
        np.asarray(np.isneginf(host(scores, "scaled_dot_product_attention")).all(-1, keepdims=True))
    )
    weights = softmax(masked_fill(scores, blind, 0.0), -1)
    weights = masked_fill(weights, blind, 0.0)
    return matmul(dropout(weights, dropout_p), v)


def _repeat_heads(x: Tensor, share: int) -> Tensor:
    shape = x.array.shape
    spread = x.unsqueeze(-3).expand(*shape[:-2], share, *shape[-2:])
    return reshape(spread, (*shape[:-3], shape[-3] * share, *shape[-2:]))
