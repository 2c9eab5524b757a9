"""More rows of `op_table`: operations on images."""

import itertools

import numpy as np

from op_table import In, row


def taps(x, shape, stride=1, padding=0, dilation=1):
    """What each element of a window sees of x, (N, C, H, W): pairs of its place and that part."""
    x = np.pad(x, [(0, 0), (0, 0), (padding, padding), (padding, padding)]) if padding else x
    reach = [dilation * (k - 1) + 1 for k in shape]
    size = [(n - r) // stride + 1 for n, r in zip(x.shape[2:], reach, strict=True)]
    for tap in itertools.product(*map(range, shape)):
        lies = zip(tap, size, strict=True)
        cut = [slice(t * dilation, t * dilation + stride * (n - 1) + 1, stride) for t, n in lies]
        yield tap, x[:, :, cut[0], cut[1]]


def conv2d(x, w, b, **options):
    parts = (
        np.einsum("nchw,oc->nohw", p, w[:, :, i, j])
        for (i, j), p in taps(x, w.shape[2:], **options)
    )
    return sum(parts) + b[:, None, None]


def conv1d(x, w, b):
    return conv2d(x[:, :, None], w[:, :, None], b)[:, :, 0]


def conv3d(x, w, b):
    depth = x.shape[2] - w.shape[2] + 1
    slices = [
        sum(conv2d(x[:, :, z + i], w[:, :, i], 0 * b) for i in range(w.shape[2]))
        for z in range(depth)
    ]
    return np.stack(slices, 2) + b[:, None, None, None]


def conv_transpose2d(x, w, b, stride=1):
    size = [(n - 1) * stride + k for n, k in zip(x.shape[2:], w.shape[2:], strict=True)]
    y = np.zeros((len(x), w.shape[1], *size))
    for (i, j), part in taps(y, w.shape[2:], stride):
        part += np.einsum("nchw,co->nohw", x, w[:, :, i, j])
    return y + b[:, None, None]


IMAGES, FILTERS, OFFSETS = (2, 3, 6, 5), (4, 3, 3, 2), (4,)
row("conv2d", lambda t, F, *x: F.conv2d(*x), conv2d, IMAGES, FILTERS, OFFSETS)
row("conv2d", lambda t, F, *x: F.conv2d(*x, stride=2, padding=1, dilation=2), lambda *x: conv2d(*x, stride=2, padding=1, dilation=2),
    IMAGES, FILTERS, OFFSETS)  # fmt: skip
row("conv2d", lambda t, F, *x: F.conv2d(*x), conv2d, (0, 3, 6, 5), FILTERS, OFFSETS)
row("conv1d", lambda t, F, *x: F.conv1d(*x), conv1d, (2, 3, 7), (4, 3, 3), OFFSETS)
row("conv3d", lambda t, F, *x: F.conv3d(*x), conv3d, (2, 2, 3, 4, 5), (3, 2, 2, 3, 1), (3,))
row("conv_transpose2d", lambda t, F, *x: F.conv_transpose2d(*x, stride=2), lambda *x: conv_transpose2d(*x, stride=2),
    (2, 3, 4, 3), (3, 4, 3, 2), OFFSETS)  # fmt: skip
row("conv_transpose1d", lambda t, F, *x: F.conv_transpose1d(*x), lambda x, w, b: conv_transpose2d(x[:, :, None], w[:, :, None], b)[:, :, 0],
    (2, 3, 5), (3, 4, 3), OFFSETS)  # fmt: skip


def max_pool2d(x, k, **options):
    return np.max([part for _, part in taps(x, k, **options)], 0)


def avg_pool2d(x, k, **options):
    return np.mean([part for _, part in taps(x, k, **options)], 0)


row(
    "max_pool2d",
    lambda t, F, x: F.max_pool2d(x, 2),
    lambda x: max_pool2d(x, (2, 2), stride=2),
    (2, 3, 6, 5),
)
row(
    "max_pool2d",
    lambda t, F, x: F.max_pool2d(x, (2, 3), 1),
    lambda x: max_pool2d(x, (2, 3)),
    (2, 3, 6, 40),
)
row(
    "max_pool2d",
    lambda t, F, x: F.max_pool2d(x, 2, 1, dilation=2),
    lambda x: max_pool2d(x, (2, 2), dilation=2),
    (2, 3, 6, 7),
)
row(
    "max_pool1d",
    lambda t, F, x: F.max_pool1d(x, 3),
    lambda x: x.reshape(2, 3, 2, 3).max(3),
    (2, 3, 6),
)
row(
    "max_pool3d",
    lambda t, F, x: F.max_pool3d(x, 2),
    lambda x: x.reshape(2, 3, 2, 2, 2, 2, 3, 2).max((3, 5, 7)),
    (2, 3, 4, 4, 6),
)
row(
    "avg_pool2d",
    lambda t, F, x: F.avg_pool2d(x, 2),
    lambda x: avg_pool2d(x, (2, 2), stride=2),
    (2, 3, 6, 5),
)
row(
    "avg_pool2d",
    lambda t, F, x: F.avg_pool2d(x, 3, 2, 1),
    lambda x: avg_pool2d(x, (3, 3), stride=2, padding=1),
    (2, 3, 6, 37),
)
row(
    "avg_pool1d",
    lambda t, F, x: F.avg_pool1d(x, 2, 1),
    lambda x: (x[..., 1:] + x[..., :-1]) / 2,
    (2, 3, 7),
)
row(
    "adaptive_avg_pool2d",
    lambda t, F, x: F.adaptive_avg_pool2d(x, 1),
    lambda x: x.mean((2, 3), keepdims=True),
    (2, 3, 4, 5),
)
row(
    "adaptive_max_pool2d",
    lambda t, F, x: F.adaptive_max_pool2d(x, (2, 1)),
    lambda x: x.reshape(2, 3, 2, 2, 5).max((3, 4))[..., None],
    (2, 3, 4, 5),
)


def windows(x, k, stride=1, padding=0, dilation=1):
    parts = [p for _, p in taps(x, k, stride, padding, dilation)]
    return np.stack(parts, 2).reshape(len(x), x.shape[1] * len(parts), -1)


row("unfold", lambda t, F, x: F.unfold(x, (2, 3)), lambda x: windows(x, (2, 3)), (2, 3, 4, 5))
row("unfold", lambda t, F, x: F.unfold(x, 3, 2, 1, 2), lambda x: windows(x, (3, 3), 2, 1, 2), (1, 2, 6, 7))  # fmt: skip
row("fold", lambda t, F, x: F.fold(x, (4, 6), 2, stride=2), lambda x: x.reshape(2, 3, 2, 2, 2, 3).transpose(0, 1, 4, 2, 5, 3).reshape(2, 3, 4, 6),
    (2, 12, 6))  # fmt: skip
row(
    "fold",
    lambda t, F, x: F.fold(F.unfold(x, 3, padding=1), (4, 5), 3, padding=1),
    lambda x: x * np.outer([2, 3, 3, 2], [2, 3, 3, 3, 2]),
    (1, 2, 4, 5),
)
row("pixel_shuffle", lambda t, F, x: F.pixel_shuffle(x, 2), lambda x: x.reshape(2, 3, 2, 2, 2, 5).transpose(0, 1, 4, 2, 5, 3).reshape(2, 3, 4, 10),
    (2, 12, 2, 5))  # fmt: skip
row("pixel_unshuffle", lambda t, F, x: F.pixel_unshuffle(x, 3), lambda x: x.reshape(3, 2, 3, 1, 3).transpose(0, 2, 4, 1, 3).reshape(27, 2, 1),
    (3, 6, 3))  # fmt: skip
for amounts in ((1, 2), (0, 0), (2, 1, 0, 3), (-1, 2, 1, -2), (-1, -1), (0, 1, 2, 0, 1, 1)):
    pairs = [(0, 0)] * (4 - len(amounts) // 2) + [*zip(amounts[::2], amounts[1::2], strict=True)][
        ::-1
    ]
    row(
        "pad",
        lambda t, F, x, a=amounts: F.pad(x, a, value=0.5),
        lambda x, p=pairs: np.pad(x, np.maximum(p, 0), constant_values=0.5)[
            tuple(slice(max(-a, 0), n + max(a, 0) + b) if b < 0 else slice(max(-a, 0), None) for n, (a, b) in zip(x.shape, p, strict=True))
        ],
        (2, 3, 4, 5),
    )  # fmt: skip
for mode, oracle in (("reflect", "reflect"), ("replicate", "edge"), ("circular", "wrap")):
    row(
        "take",
        lambda t, F, x, m=mode: F.pad(x, (3, 1, 0, 2), mode=m),
        lambda x, m=oracle: np.pad(x, ((0, 0), (0, 0), (0, 2), (3, 1)), mode=m),
        (2, 3, 4, 5),
    )
row(
    "take",
    lambda t, F, x: F.interpolate(x, (3, 7)),
    lambda x: x[:, :, [0, 1, 2]][..., [0, 0, 1, 2, 2, 3, 4]],
    (2, 2, 4, 5),
)
row("interpolate", lambda t, F, x: F.interpolate(x, scale_factor=2), lambda x: x.repeat(2, 2).repeat(2, 3), (2, 2, 3, 4))  # fmt: skip
row(
    "interpolate",
    lambda t, F, x: F.interpolate(x, scale_factor=2.0, mode="linear"),
    lambda x: x @ [[1, 0.75, 0.25, 0, 0, 0], [0, 0.25, 0.75, 0.75, 0.25, 0], [0, 0, 0, 0.25, 0.75, 1]],
    (2, 2, 3),
)  # fmt: skip
row(
    "interpolate",
    lambda t, F, x: F.interpolate(x, size=(3, 5), mode="bilinear", align_corners=True),
    lambda x: (
        np.array([[1, 0], [0.5, 0.5], [0, 1]])
        @ x
        @ np.array([[1, 0.5, 0, 0, 0], [0, 0.5, 1, 0.5, 0], [0, 0, 0, 0.5, 1]])
    ),
    (2, 2, 2, 3),
)


def group_norm(x, groups, w=1.0, b=0.0, eps=1e-5):
    parts = x.reshape(len(x), groups, -1)
    d = parts - parts.mean(2, keepdims=True)
    y = (d / np.sqrt((d * d).mean(2, keepdims=True) + eps)).reshape(x.shape)
    channels = (-1,) + (1,) * (x.ndim - 2)
    return y * np.reshape(w, channels) + np.reshape(b, channels)


for shape, groups in (((2, 6, 3, 4), 3), ((3, 4), 2), ((2, 4, 5), 1), ((1, 4, 2, 3, 2), 4)):
    c = shape[1:2]
    row("group_norm", lambda t, F, x, w, b, n=groups: F.group_norm(x, n, w, b), lambda x, w, b, n=groups: group_norm(x, n, w, b), shape, c, c)  # fmt: skip
row(
    "instance_norm",
    lambda t, F, x, w, b: F.instance_norm(x, weight=w, bias=b),
    lambda x, w, b: group_norm(x, 3, w, b),
    (2, 3, 4, 5),
    (3,),
    (3,),
)

log1p_exp = lambda x: np.logaddexp(x, 0)  # noqa: E731
for name, call, oracle in (
    ("hardtanh", lambda t, F, x: F.hardtanh(x, -0.5, 0.7), lambda x: np.clip(x, -0.5, 0.7)),
    ("relu6", lambda t, F, x: F.relu6(x), lambda x: np.clip(x, 0, 6)),
    ("hardsigmoid", lambda t, F, x: F.hardsigmoid(x), lambda x: np.clip(x + 3, 0, 6) / 6),
    ("hardswish", lambda t, F, x: F.hardswish(x), lambda x: x * np.clip(x + 3, 0, 6) / 6),
    ("leaky_relu", lambda t, F, x: F.leaky_relu(x), lambda x: np.where(x > 0, x, 0.01 * x)),
    ("elu", lambda t, F, x: F.elu(x, 1.5), lambda x: np.where(x > 0, x, 1.5 * np.expm1(np.minimum(x, 0)))),
    ("softplus", lambda t, F, x: F.softplus(x), log1p_exp),
    ("softplus", lambda t, F, x: F.softplus(x, 2.0), lambda x: log1p_exp(2 * x) / 2),
    ("mish", lambda t, F, x: F.mish(x), lambda x: x * np.tanh(log1p_exp(x))),
):  # fmt: skip
    for inputs in (In(()), In((33,)), In((0, 2)), In((2, 3, 17), transposed=True), In((80,), -9, 9)):  # fmt: skip
        row(name, call, oracle, inputs)
row(
    "smooth_l1_loss",
    lambda t, F, x, y: F.smooth_l1_loss(x, y, beta=0.5),
    lambda x, y: np.where(np.abs(x - y) < 0.5, (x - y) ** 2, np.abs(x - y) - 0.25).mean(),
    (5, 9),
    (5, 9),
)
row(
    "huber_loss",
    lambda t, F, x, y: F.huber_loss(x, y, "sum", 0.5),
    lambda x, y: np.where(np.abs(x - y) < 0.5, (x - y) ** 2 / 2, np.abs(x - y) / 2 - 0.125).sum(),
    (5, 9),
    (5, 9),
)
row(
    "binary_cross_entropy_with_logits",
    lambda t, F, x, y: F.binary_cross_entropy_with_logits(
        x, y, reduction="none", pos_weight=t.tensor([0.5, 1.0, 2.0], dtype=x.dtype)
    ),
    lambda x, y: np.array([0.5, 1.0, 2.0]) * y * log1p_exp(-x) + (1 - y) * log1p_exp(x),
    (5, 3),
    In((5, 3), 0, 1),
)
