"""Sample inputs for every operation: one table drives values, gradients and the comparison with PyTorch.

A row is (name, call, oracle, inputs). `call(t, F, *x)` runs the operation with t = rushlight or torch; `oracle(*x)`
is the same in float64 NumPy. `inputs` are shapes, drawn from N(0, 1), or `In(...)` for other ranges.
To add an operation: add its rows here, nothing else.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class In:
    """An input: its shape, the range of its numbers, and whether it is laid out transposed."""

    shape: tuple
    low: float | None = None  # uniform in [low, high) instead of normal
    high: float | None = None
    transposed: bool = False
    integers: bool = False
    values: Any = None

    def draw(self, rng):
        if self.values is not None:
            return np.asarray(self.values)
        if self.integers:
            return rng.integers(self.low, self.high, self.shape)
        if self.low is not None:
            x = rng.uniform(self.low, self.high, self.shape)
        else:
            x = rng.standard_normal(self.shape)
        return np.ascontiguousarray(x.swapaxes(0, -1)).swapaxes(0, -1) if self.transposed else x


erf = np.vectorize(math.erf, otypes=[float])


def sigmoid(x):
    return np.where(
        x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x)))
    )


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis, keepdims=True, initial=-np.inf))
    return e / e.sum(axis, keepdims=True)


def logsumexp(x, axis=-1, keepdims=False):
    top = x.max(axis, keepdims=True)
    out = top + np.log(np.exp(x - top).sum(axis, keepdims=True))
    return out if keepdims else out.squeeze(axis)


def gelu_tanh(x):
    return x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def layer_norm(x, w=1.0, b=0.0, eps=1e-5):
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d * d).mean(-1, keepdims=True) + eps) * w + b


def rms_norm(x, w=1.0, eps=1e-6):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * w


def batch_norm(x, w=1.0, b=0.0, mean=None, var=None, eps=1e-5):
    channels = (-1,) + (1,) * (x.ndim - 2)
    w, b, mean, var = (p if p is None else np.reshape(p, channels) for p in (w, b, mean, var))
    axes = (0, *range(2, x.ndim))
    d = x - (x.mean(axes, keepdims=True) if mean is None else mean)
    var = (d * d).mean(axes, keepdims=True) if var is None else var
    return d / np.sqrt(var + eps) * w + b


def attention(q, k, v, mask=None, causal=False, scale=None):
    share = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, share, 1), np.repeat(v, share, 1)
    scores = q @ k.swapaxes(-1, -2) * (scale or 1 / math.sqrt(q.shape[-1]))
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    return softmax(scores) @ v


def cross_entropy(x, target, ignore=-100, reduction="mean", smoothing=0.0):
    logp = x - logsumexp(x, 1, keepdims=True)
    kept = target != ignore
    t = np.where(kept, target, 0)
    loss = -(1 - smoothing) * np.take_along_axis(logp, t[:, None], 1)[:, 0] - smoothing * logp.mean(
        1
    )
    loss = loss * kept
    return loss if reduction == "none" else loss.sum() / (kept.sum() if reduction == "mean" else 1)


ROWS = []


def row(name, call, oracle, *inputs):
    ROWS.append(
        (f"{name}-{len(ROWS)}", call, oracle, [i if isinstance(i, In) else In(i) for i in inputs])
    )


# ---- one operand, element by element ----

away = {
    "log": (0.1, 3),
    "sqrt": (0.1, 3),
    "rsqrt": (0.1, 3),
    "reciprocal": (0.5, 3),
    "relu": (0.1, 2),
    "abs": (0.1, 2),
}
for name, oracle in {
    "neg": np.negative, "abs": np.abs, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos,
    "erf": erf, "tanh": np.tanh, "sigmoid": sigmoid, "relu": lambda x: np.maximum(x, 0), "square": np.square,
    "rsqrt": lambda x: 1 / np.sqrt(x), "reciprocal": lambda x: 1 / x, "sign": np.sign,
}.items():  # fmt: skip
    for shape in ((), (1,), (37,), (3, 5), (0, 3)):
        row(
            name,
            lambda t, F, x, name=name: getattr(t, name)(x),
            oracle,
            In(shape, *away.get(name, ())),
        )
    row(
        name,
        lambda t, F, x, name=name: getattr(t, name)(x),
        oracle,
        In((4, 3, 19), *away.get(name, ()), transposed=True),
    )
for name, call, oracle in (
    ("silu", lambda t, F, x: F.silu(x), lambda x: x * sigmoid(x)),
    ("gelu", lambda t, F, x: F.gelu(x), lambda x: x / 2 * (1 + erf(x / math.sqrt(2)))),
    ("gelu_tanh", lambda t, F, x: F.gelu(x, approximate="tanh"), gelu_tanh),
):
    for inputs in (
        In(()),
        In((33,)),
        In((2, 3, 17), transposed=True),
        In((0,)),
        In((40,), -12, 12),
    ):
        row(name, call, oracle, inputs)

# ---- two operands ----

SHAPES = [
    ((), ()),
    ((3, 4), (3, 4)),
    ((3, 4), (4,)),
    ((3, 1), (1, 4)),
    ((2, 1, 4, 8), (2, 1, 4, 1)),
    ((), (2,)),
    ((4, 1), (4, 0)),
    ((1,), (3, 4)),
]
for name, oracle, low in (
    ("add", np.add, None),
    ("sub", np.subtract, None),
    ("mul", np.multiply, None),
    ("div", np.divide, 0.5),
):
    for a, b in SHAPES:
        row(
            name,
            lambda t, F, x, y, name=name: getattr(t, name)(x, y),
            oracle,
            a,
            In(b, low, 2 if low else None),
        )
    row(
        name,
        lambda t, F, x, y, name=name: getattr(t, name)(x, y),
        oracle,
        In((5, 70), transposed=True),
        In((5, 70), low, 2 if low else None),
    )
row("pow", lambda t, F, x, y: t.pow(x, y), np.power, In((3, 4), 0.3, 2), (4,))
row("pow", lambda t, F, x: x**3, lambda x: x**3, (3, 4))
row("pow", lambda t, F, x: x**2, lambda x: x**2, (3, 4))
row("pow", lambda t, F, x: 2.0**x, lambda x: 2.0**x, (3, 4))
row(
    "remainder",
    lambda t, F, x, y: t.remainder(x, y),
    np.remainder,
    In((3, 4), -3, 3),
    In((4,), 0.3, 2),
)
row("maximum", lambda t, F, x, y: t.maximum(x, y), np.maximum, (3, 4), (4,))
row("minimum", lambda t, F, x, y: t.minimum(x, y), np.minimum, (3, 4), (3, 1))
row("clamp", lambda t, F, x: t.clamp(x, -0.5, 0.7), lambda x: np.clip(x, -0.5, 0.7), (5, 9))
row("clamp", lambda t, F, x: t.clamp(x, min=0.1), lambda x: np.clip(x, 0.1, None), (5, 9))
MASK = np.arange(12).reshape(3, 4) % 3 == 0
row("where", lambda t, F, m, x, y: t.where(m, x, y), np.where, In((), values=MASK), (3, 4), (4,))
row(
    "where",
    lambda t, F, m, x: t.where(m, x, 0.0),
    lambda m, x: np.where(m, x, 0.0),
    In((), values=MASK),
    (3, 4),
)
row(
    "masked_fill",
    lambda t, F, m, x: x.masked_fill(m, -2.0),
    lambda m, x: np.where(m, -2.0, x),
    In((), values=MASK),
    (3, 4),
)
row(
    "scalar",
    lambda t, F, x: 3 - x * 2 + x / 4 - 1 / (x + 9),
    lambda x: 3 - x * 2 + x / 4 - 1 / (x + 9),
    (3, 4),
)

# ---- reductions ----

for shape, dim in (
    ((), None),
    ((37,), None),
    ((3, 4, 5), 1),
    ((3, 4, 5), (0, 2)),
    ((3, 4, 5), -1),
    ((0, 3), 0),
    ((3, 0), 1),
    ((70, 90), 0),
):
    for keep in (False, True):
        options = {} if dim is None else {"dim": dim, "keepdim": keep}
        np_axis = {} if dim is None else {"axis": dim, "keepdims": keep}
        row(
            "sum",
            lambda t, F, x, o=options: t.sum(x, **o),
            lambda x, a=np_axis: np.sum(x, **a),
            shape,
        )
        if 0 not in shape:
            row(
                "mean",
                lambda t, F, x, o=options: t.mean(x, **o),
                lambda x, a=np_axis: np.mean(x, **a),
                shape,
            )
            row(
                "amax",
                lambda t, F, x, o=options: t.amax(x, **({"dim": ()} | o)),
                lambda x, a=np_axis: np.max(x, **a),
                shape,
            )
            row(
                "amin",
                lambda t, F, x, o=options: t.amin(x, **({"dim": ()} | o)),
                lambda x, a=np_axis: np.min(x, **a),
                shape,
            )
row("sum", lambda t, F, x: t.sum(x, dim=1), lambda x: x.sum(1), In((5, 6, 7), transposed=True))
row("max", lambda t, F, x: t.max(x, dim=1).values, lambda x: x.max(1), (3, 4))
row("min", lambda t, F, x: t.min(x, dim=0).values, lambda x: x.min(0), (3, 4))
row("max", lambda t, F, x: t.max(x), np.max, (3, 4))
row("var", lambda t, F, x: t.var(x, dim=1), lambda x: x.var(1, ddof=1), (3, 5))
row("std", lambda t, F, x: t.std(x), lambda x: x.std(ddof=1), (3, 5))
row("norm", lambda t, F, x: t.norm(x, dim=1), lambda x: np.linalg.norm(x, axis=1), (3, 5))

# ---- along an axis ----

for shape, dim in (
    ((5,), -1),
    ((3, 70), -1),
    ((3, 4, 5), 1),
    ((4, 3), 0),
    ((0, 3), -1),
    ((3, 1), -1),
):
    row(
        "softmax", lambda t, F, x, d=dim: F.softmax(x, dim=d), lambda x, d=dim: softmax(x, d), shape
    )
    row(
        "log_softmax",
        lambda t, F, x, d=dim: F.log_softmax(x, dim=d),
        lambda x, d=dim: x - logsumexp(x, d, True) if x.size else x,
        shape,
    )
    if 0 not in shape:
        row(
            "logsumexp",
            lambda t, F, x, d=dim: t.logsumexp(x, dim=d),
            lambda x, d=dim: logsumexp(x, d),
            shape,
        )

# ---- normalisation ----

for shape in ((8,), (3, 17), (2, 3, 64), (0, 5), (40, 1)):
    d = shape[-1:]
    row("layer_norm", lambda t, F, x, w, b, d=d: F.layer_norm(x, d, w, b), layer_norm, shape, d, d)
    row("layer_norm", lambda t, F, x, d=d: F.layer_norm(x, d), layer_norm, shape)
    row("rms_norm", lambda t, F, x, w, d=d: F.rms_norm(x, d, w, 1e-6), rms_norm, shape, d)
    row("rms_norm", lambda t, F, x, d=d: F.rms_norm(x, d, eps=1e-6), rms_norm, shape)
row(
    "layer_norm",
    lambda t, F, x, w: F.layer_norm(x, (3, 4), w),
    lambda x, w: layer_norm(x.reshape(2, 12)).reshape(2, 3, 4) * w,
    (2, 3, 4),
    (3, 4),
)

for shape in ((8, 3), (2, 1), (5, 3, 7), (1, 3, 9), (3, 2, 4, 5), (2, 3, 2, 3, 4)):
    c = shape[1:2]
    row("batch_norm", lambda t, F, x, w, b: F.batch_norm(x, None, None, w, b, True), batch_norm, shape, c, c)  # fmt: skip
    row("batch_norm", lambda t, F, x: F.batch_norm(x, None, None, training=True), batch_norm, shape)
row(
    "batch_norm",
    lambda t, F, x, w: F.batch_norm(x, None, None, w, None, True, eps=0.5),
    lambda x, w: batch_norm(x, w, eps=0.5),
    In((5, 3, 7), transposed=True),
    (3,),
)
row(
    "batch_norm",
    lambda t, F, x: F.batch_norm(x, None, None, training=True),
    batch_norm,
    In((40, 3), 2, 4),
)
MEAN, VAR = [0.5, -1.0, 2.0], [0.25, 4.0, 0.0]
for shape in ((1, 3), (0, 3), (5, 3), (2, 3, 4), (2, 3, 4, 5)):
    row(
        "batch_norm",
        lambda t, F, x, w, b: F.batch_norm(x, t.tensor(MEAN, dtype=x.dtype), t.tensor(VAR, dtype=x.dtype), w, b, eps=0.1),
        lambda x, w, b: batch_norm(x, w, b, MEAN, VAR, 0.1),
        shape,
        (3,),
        (3,),
    )  # fmt: skip

# ---- matrix products ----

for a, b in (((3, 4), (4, 5)), ((1, 1), (1, 1)), ((4,), (4,)), ((4,), (4, 3)), ((2, 4), (4,)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)),
             ((0, 4), (4, 3)), ((3, 0), (0, 2)), ((37, 65), (65, 33)), ((2, 3, 4), (2, 4, 5))):  # fmt: skip
    row("matmul", lambda t, F, x, y: t.matmul(x, y), np.matmul, a, b)
row("matmul", lambda t, F, x, y: x.T @ y.T, lambda x, y: x.T @ y.T, (30, 40), (50, 30))
row("outer", lambda t, F, x, y: t.outer(x, y), np.outer, (3,), (4,))
for shape, out in (((4,), 3), ((5, 4), 3), ((2, 3, 4), 6), ((0, 4), 3), ((64, 70), 129)):
    k = shape[-1]
    row(
        "linear",
        lambda t, F, x, w, b: F.linear(x, w, b),
        lambda x, w, b: x @ w.T + b,
        shape,
        (out, k),
        (out,),
    )
    row("linear", lambda t, F, x, w: F.linear(x, w), lambda x, w: x @ w.T, shape, (out, k))

# ---- shapes ----

for name, call, oracle in (
    ("view", lambda t, F, x: x.view(4, 6), lambda x: x.reshape(4, 6)),
    ("reshape", lambda t, F, x: x.transpose(0, 1).reshape(-1, 2), lambda x: x.swapaxes(0, 1).reshape(-1, 2)),
    ("flatten", lambda t, F, x: t.flatten(x, 1), lambda x: x.reshape(2, 12)),
    ("unflatten", lambda t, F, x: x.unflatten(2, (2, -1)), lambda x: x.reshape(2, 3, 2, 2)),
    ("transpose", lambda t, F, x: x.transpose(0, 2), lambda x: x.swapaxes(0, 2)),
    ("permute", lambda t, F, x: x.permute(2, 0, 1), lambda x: x.transpose(2, 0, 1)),
    ("unsqueeze", lambda t, F, x: x.unsqueeze(1), lambda x: x[:, None]),
    ("squeeze", lambda t, F, x: x.unsqueeze(1).squeeze(), lambda x: x),
    ("expand", lambda t, F, x: x.unsqueeze(0).expand(3, -1, -1, -1), lambda x: np.broadcast_to(x, (3, 2, 3, 4))),
    ("repeat", lambda t, F, x: x.repeat(2, 1, 3), lambda x: np.tile(x, (2, 1, 3))),
    ("split", lambda t, F, x: t.cat([a * (i + 1) for i, a in enumerate(x.split(2, 2))], 2), lambda x: np.concatenate([x[..., :2], 2 * x[..., 2:]], 2)),
    ("split", lambda t, F, x: x.split([1, 3], 2)[1], lambda x: x[..., 1:]),
    ("chunk", lambda t, F, x: t.chunk(x, 2, 2)[0], lambda x: x[..., :2]),
    ("unbind", lambda t, F, x: t.unbind(x, 1)[2], lambda x: x[:, 2]),
    ("narrow", lambda t, F, x: t.narrow(x, 2, 1, 2), lambda x: x[..., 1:3]),
    ("getitem", lambda t, F, x: x[..., 0::2] + x[..., 1::2], lambda x: x[..., ::2] + x[..., 1::2]),
    ("getitem", lambda t, F, x: x[1, None, :, -1], lambda x: x[1, None, :, -1]),
    ("getitem", lambda t, F, x: x[:, [0, 2, 2]], lambda x: x[:, [0, 2, 2]]),
    ("getitem", lambda t, F, x: x[x > 0], lambda x: x[x > 0]),
    ("stack", lambda t, F, x: t.stack([x, 2 * x], -1), lambda x: np.stack([x, 2 * x], -1)),
    ("cat", lambda t, F, x: t.cat([x, x[:1]], 0), lambda x: np.concatenate([x, x[:1]])),
    ("clone", lambda t, F, x: x.transpose(0, 1).clone(), lambda x: x.swapaxes(0, 1)),
    ("contiguous", lambda t, F, x: x.transpose(0, 1).contiguous(), lambda x: x.swapaxes(0, 1)),
    ("tril", lambda t, F, x: t.tril(x), np.tril),
    ("triu", lambda t, F, x: t.triu(x, 1), lambda x: np.triu(x, 1)),
    ("to", lambda t, F, x: x.to(t.float64), lambda x: x),
):  # fmt: skip
    row(name, call, oracle, (2, 3, 4))
INDEX = np.array([[0, 2, 2], [1, 0, 2]])
row(
    "gather",
    lambda t, F, i, x: t.gather(x, 1, i),
    lambda i, x: np.take_along_axis(x, i, 1),
    In((), values=INDEX),
    (2, 4),
)
row(
    "index_select",
    lambda t, F, i, x: t.index_select(x, 1, i),
    lambda i, x: x[:, i],
    In((), values=np.array([2, 0, 2])),
    (3, 4),
)
row(
    "embedding",
    lambda t, F, i, w: F.embedding(i, w),
    lambda i, w: w[i],
    In((), values=INDEX),
    (5, 7),
)
row(
    "embedding",
    lambda t, F, i, w: F.embedding(i, w),
    lambda i, w: w[i],
    In((0,), 0, 5, integers=True),
    (5, 7),
)

# ---- attention ----

sdpa = "scaled_dot_product_attention"
for q, k, causal in (((2, 3, 5, 4), (2, 3, 5, 4), True), ((1, 2, 50, 8), (1, 2, 50, 8), True), ((2, 2, 3, 6), (2, 2, 7, 6), False), ((1, 1, 1, 1), (1, 1, 1, 1), True),
                     ((1, 2, 0, 4), (1, 2, 3, 4), False), ((1, 1, 130, 33), (1, 1, 130, 33), True)):  # fmt: skip
    row(
        sdpa,
        lambda t, F, q, k, v, c=causal: F.scaled_dot_product_attention(q, k, v, is_causal=c),
        lambda q, k, v, c=causal: attention(q, k, v, causal=c),
        q,
        k,
        k,
    )
row(sdpa, lambda t, F, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True), lambda q, k, v: attention(q, k, v, causal=True),
    (2, 6, 9, 8), (2, 2, 9, 8), (2, 2, 9, 8))  # fmt: skip
KEEP = np.random.default_rng(5).random((2, 1, 5, 7)) > 0.3
KEEP[..., 0] = True
row(sdpa, lambda t, F, m, q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=m), lambda m, q, k, v: attention(q, k, v, m),
    In((), values=KEEP), (2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4))  # fmt: skip
row(sdpa, lambda t, F, m, q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=m, scale=0.3), lambda m, q, k, v: attention(q, k, v, m, scale=0.3),
    (5, 7), (2, 3, 5, 4), (2, 3, 7, 4), (2, 3, 7, 4))  # fmt: skip
row(
    sdpa,
    lambda t, F, q, k, v: F.scaled_dot_product_attention(q, k, v),
    lambda q, k, v: attention(q[None], k[None], v[None])[0],
    (3, 5, 4),
    (3, 6, 4),
    (3, 6, 4),
)
# what is dropped with another probability is a matter of test_attention_dropout.py
row(
    sdpa,
    lambda t, F, q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=1.0, is_causal=True),
    lambda q, k, v: np.zeros_like(q),
    *[(2, 3, 5, 4)] * 3,
)

# ---- losses ----

LABELS = np.array([2, 0, 6, 3])
for reduction in ("mean", "sum", "none"):
    row("cross_entropy", lambda t, F, y, x, r=reduction: F.cross_entropy(x, y, reduction=r), lambda y, x, r=reduction: cross_entropy(x, y, reduction=r),
        In((), values=LABELS), (4, 7))  # fmt: skip
    row("cross_entropy", lambda t, F, y, x, r=reduction: F.cross_entropy(x, y, ignore_index=0, reduction=r),
        lambda y, x, r=reduction: cross_entropy(x, y, 0, r), In((), values=LABELS), (4, 7))  # fmt: skip
    row("nll_loss", lambda t, F, y, x, r=reduction: F.nll_loss(F.log_softmax(x, 1), y, reduction=r), lambda y, x, r=reduction: cross_entropy(x, y, reduction=r),
        In((), values=LABELS), (4, 7))  # fmt: skip
    row("mse_loss", lambda t, F, x, y, r=reduction: F.mse_loss(x, y, reduction=r),
        lambda x, y, r=reduction: {"mean": np.mean, "sum": np.sum, "none": lambda z: z}[r]((x - y) ** 2), (3, 4), (3, 4))  # fmt: skip
row(
    "l1_loss", lambda t, F, x, y: F.l1_loss(x, y), lambda x, y: np.abs(x - y).mean(), (3, 4), (3, 4)
)
row(
    "cross_entropy",
    lambda t, F, y, x: F.cross_entropy(x, y, label_smoothing=0.1),
    lambda y, x: cross_entropy(x, y, smoothing=0.1),
    In((), values=LABELS),
    (4, 7),
)
row("cross_entropy", lambda t, F, y, x: F.cross_entropy(x, y), lambda y, x: cross_entropy(x.transpose(0, 2, 1).reshape(-1, 3), y.reshape(-1)),
    In((), values=np.array([[0, 2, 1, 1], [2, 2, 0, 1]])), (2, 3, 4))  # fmt: skip
