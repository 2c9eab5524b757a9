"""More rows of `op_table`: operations on images."""

import itertools

import numpy as np

from op_table import row


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
