"""Convolution against a direct loop in float64, against itself (derivatives) and PyTorch."""

import itertools
import math
import re

import numpy as np
import pytest

import rushlight as rl
import rushlight.nn.functional as F
from rushlight import nn
from rushlight.errors import DtypeError, ShapeError
from vectors import vector


def direct(x, w, geometry, outputs, g=None):
    """By the formula, one output place and tap at a time: y, or the gradients of x and w."""
    stride, before, dilation, groups = geometry
    y, gx, gw = np.zeros((len(x), len(w), *outputs)), np.zeros(x.shape), np.zeros(w.shape)
    filters, channels = len(w) // groups, w.shape[1]
    for place in itertools.product(*map(range, outputs)):
        for tap in itertools.product(*map(range, w.shape[2:])):
            lies = zip(place, stride, tap, dilation, before, strict=True)
            at = [p * s + t * d - q for p, s, t, d, q in lies]
            if any(not 0 <= a < size for a, size in zip(at, x.shape[2:], strict=True)):
                continue
            for group in range(groups):
                mine = slice(group * filters, (group + 1) * filters)
                i = (slice(None), slice(group * channels, (group + 1) * channels), *at)
                j, k = (slice(None), mine, *place), (mine, slice(None), *tap)
                y[j] += x[i] @ w[k].T
                if g is not None:
                    gx[i] += g[j] @ w[k]
                    gw[k] += g[j].T @ x[i]
    return y if g is None else (gx, gw)


def output_size(size, k, s, p, d):
    return (size + 2 * p - d * (k - 1) - 1) // s + 1


CONV = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
TRANSPOSE = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}

# input, weight, stride, padding, dilation, groups
CASES = [
    ((2, 3, 9, 8), (5, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((2, 4, 7, 9), (6, 2, 3, 2), (2, 1), (1, 0), (1, 2), 2),
    ((3, 2, 8, 8), (3, 2, 2, 4), (1, 3), (1, 2), (1, 1), 1),
    ((1, 6, 5, 40), (6, 1, 3, 3), (1, 1), (1, 1), (1, 1), 6),
    ((2, 3, 12, 11), (6, 1, 5, 3), (2, 2), (2, 1), (2, 3), 3),
    ((2, 3, 2, 2), (4, 3, 5, 5), (1, 1), (2, 2), (1, 1), 1),  # larger than the input
    ((2, 3, 1, 1), (4, 3, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((2, 3, 1, 1), (4, 3, 3, 3), (2, 2), (1, 1), (1, 1), 1),
    ((2, 5, 6, 7), (50, 5, 1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((2, 5, 6, 7), (3, 5, 1, 1), (2, 3), (0, 1), (1, 1), 1),
    ((1, 3, 20, 50), (2, 3, 7, 7), (2, 2), (3, 3), (1, 1), 1),
    ((40, 2, 3, 2), (35, 2, 2, 2), (1, 1), (1, 1), (1, 1), 1),
    ((2, 2, 6, 90), (3, 2, 3, 3), (1, 4), (1, 5), (1, 6), 1),
    ((2, 300, 4, 4), (40, 300, 3, 3), (1, 1), (1, 1), (1, 1), 1),  # several blocks of rows
    ((3, 4, 17), (6, 4, 3), (1,), (1,), (1,), 1),
    ((3, 4, 70), (6, 2, 4), (3,), (2,), (2,), 2),
    ((2, 3, 4, 5, 6), (4, 3, 3, 2, 3), (1, 2, 1), (1, 0, 1), (1, 1, 2), 1),
    ((1, 4, 5, 4, 20), (4, 2, 2, 3, 3), (2, 1, 2), (1, 1, 1), (2, 1, 1), 2),
    ((0, 3, 5, 5), (4, 3, 3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((9, 1, 28, 28), (10, 1, 5, 5), (1, 1), (0, 0), (1, 1), 1),  # few filters: LeNet's
    ((9, 10, 12, 12), (20, 10, 5, 5), (1, 1), (0, 0), (1, 1), 1),
    ((1, 20, 90, 33), (13, 20, 3, 3), (1, 1), (1, 1), (1, 1), 1),  # in bands of rows
    ((1, 2, 40, 40), (32, 2, 7, 8), (1, 1), (9, 2), (1, 1), 1),  # more border than window
    ((2, 3, 30, 41), (7, 3, 3, 9), (1, 1), (1, 4), (1, 1), 1),  # a wide window
    ((2, 3, 30, 41), (33, 3, 3, 3), (1, 1), (1, 1), (2, 2), 1),  # one filter too many
]


def drawn(rng, x, w, outputs, dtype):
    shapes = x, w, (w[0],), (x[0], w[0], *outputs)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def sized(case):
    x, w, stride, padding, dilation, groups = case
    outputs = tuple(map(output_size, x[2:], w[2:], stride, padding, dilation))
    return outputs, (stride, padding, dilation, groups)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_and_gradients(rng, case, dtype):
    outputs, geometry = sized(case)
    x, w, b, g = drawn(rng, *case[:2], outputs, dtype)
    tensors = [rl.tensor(a, requires_grad=True) for a in (x, w, b)]
    y = CONV[len(outputs)](*tensors, *geometry)
    y.backward(rl.tensor(g))
    x, w, b, g = (a.astype(np.float64) for a in (x, w, b, g))
    gx, gw = direct(x, w, geometry, outputs, g)
    offset = b.reshape(-1, *(1,) * len(outputs))
    terms = max(w[:1].size, g[:, :1].size, 1)  # of the longest sum
    for mine, expected in (
        (y.detach(), direct(x, w, geometry, outputs) + offset),
        (tensors[0].grad, gx),
        (tensors[1].grad, gw),
        (tensors[2].grad, g.sum((0, *range(2, g.ndim)))),
    ):
        close = {"float32": 2e-7, "float64": 4e-16}[dtype] * terms  # numbers from N(0, 1)
        np.testing.assert_allclose(mine.numpy(), expected, rtol=0, atol=close)


ACTIVATIONS = {
    None: lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "silu": lambda x: x * (1 + np.tanh(x / 2)) / 2,
}
erf = np.vectorize(math.erf, otypes=[float])


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_what_comes_behind(rng, case, dtype, activation):
    """Bias, scale, residual and activation, in one pass and as recorded operations."""
    outputs, geometry = sized(case)
    x, w, b, r = drawn(rng, *case[:2], outputs, dtype)
    s = rng.standard_normal(b.shape).astype(dtype)
    conv, tensors = CONV[len(outputs)], [rl.tensor(a, requires_grad=True) for a in (x, w, b, s, r)]

    def run(*parts):
        return conv(*parts[:3], *geometry, activation=activation, scale=parts[3], residual=parts[4])

    with rl.no_grad():
        fused = run(*tensors).numpy()
    recorded = run(*tensors)
    x, w, b, s, r = (a.astype(np.float64) for a in (x, w, b, s, r))
    b, s = (v.reshape(-1, *(1,) * len(outputs)) for v in (b, s))
    expected = ACTIVATIONS[activation]((direct(x, w, geometry, outputs) + b) * s + r)
    close = {"float32": 2e-6, "float64": 4e-15}[dtype] * max(w[:1].size, 1)
    np.testing.assert_allclose(fused, expected, rtol=0, atol=close)
    np.testing.assert_allclose(recorded.detach().numpy(), expected, rtol=0, atol=close)
    along = rl.tensor(rng.standard_normal(recorded.shape).astype(dtype))
    recorded.backward(along)
    apart = [t.detach().requires_grad_() for t in tensors]
    y = conv(*apart[:3], *geometry) * apart[3].view(b.shape) + apart[4]
    same = {None: lambda y: y, "gelu_tanh": lambda y: F.gelu(y, "tanh")}
    (same.get(activation) or getattr(F, activation))(y).backward(along)
    for one, other in zip(tensors, apart, strict=True):
        np.testing.assert_array_equal(one.grad.numpy(), other.grad.numpy())


@pytest.mark.parametrize("width", [1, 7, 8, 16, 17, 40, 64])
@pytest.mark.parametrize("kernel", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_depthwise(rng, width, kernel, stride):
    """Every block of rows and vectors, with two filters a channel."""
    x = rng.standard_normal((1, 3, max(1, 20 - width // 4), width)).astype(np.float32)
    w = rng.standard_normal((6, 1, kernel, kernel)).astype(np.float32)
    before = kernel // 2
    outputs = tuple(output_size(n, kernel, stride, before, 1) for n in x.shape[2:])
    geometry = ((stride,) * 2, (before,) * 2, (1, 1), 3)
    y = F.conv2d(rl.tensor(x), rl.tensor(w), None, *geometry).numpy()
    expected = direct(x.astype(np.float64), w.astype(np.float64), geometry, outputs)
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-6 * kernel)


@pytest.mark.parametrize("pixels", [1, 31, 32, 33, 49, 64, 96, 700])
@pytest.mark.parametrize("channels", [1, 20, 900])
def test_pointwise(rng, pixels, channels):
    """Few columns and many, of one image and two, below and above a block of rows of x."""
    for images, filters in ((1, 13), (1, 400), (3, 30)):
        x, w = (
            rng.standard_normal((images, channels, pixels)),
            rng.standard_normal((filters, channels)),
        )
        y = F.conv1d(rl.tensor(x), rl.tensor(w[:, :, None])).numpy()
        np.testing.assert_allclose(y, w @ x, rtol=0, atol=1e-11)


def test_wrong_epilogues():
    x, w = rl.ones(1, 2, 4, 4), rl.ones(3, 2, 1, 1)
    for options, error, message in (
        ({"activation": "tanh"}, ValueError, "activation 'tanh' is not one of"),
        ({"activation": ["relu"]}, ValueError, "activation ['relu'] is not one of"),
        ({"stride": [1, 2, 3]}, ValueError, "stride must be 2 integers from 1 on, got [1, 2, 3]"),
        ({"padding": 2**62}, ValueError, "padding must be 2 integers up to 2147483647"),
        ({"dilation": (1, 2**70)}, ValueError, "dilation must be 2 integers up to 2147483647"),
        ({"scale": rl.ones(2)}, ShapeError, "scale has shape (2,)"),
        ({"scale": rl.ones(1, 3)}, ShapeError, "scale has shape (1, 3)"),
        ({"scale": rl.ones(3).double()}, DtypeError, "scale is float64"),
        ({"residual": rl.ones(3, 4, 4)}, ShapeError, "residual has shape (3, 4, 4)"),
        ({"residual": rl.ones(1, 3, 4, 4).double()}, DtypeError, "residual is float64"),
    ):
        with pytest.raises(error, match=re.escape(message)):
            F.conv2d(x, w, **options)
    y = F.conv2d(x[0], w, scale=rl.ones(3, 1, 1), residual=rl.ones(3, 4, 4), activation="relu")
    assert y.shape == (3, 4, 4)
    assert (y.numpy() == 3).all()
    assert F.conv2d(x, w, stride=[2, 2]).shape == (
        1,
        3,
        2,
        2,
    )  # unlike tuples, lists are not hashable


@pytest.mark.parametrize("case", CASES, ids=str)
def test_transposed_is_the_inputs_gradient(rng, case):
    outputs, (stride, padding, dilation, groups) = sized(case)
    x, w, _, g = (rl.tensor(a) for a in drawn(rng, *case[:2], outputs, "float64"))
    x.requires_grad_()
    y = CONV[len(outputs)](x, w, None, stride, padding, dilation, groups)
    y.backward(g)
    b = rl.randn(x.shape[1], dtype=rl.float64)
    lies = zip(x.shape[2:], outputs, stride, padding, dilation, w.shape[2:], strict=True)
    extra = [n - ((o - 1) * s - 2 * p + d * (k - 1) + 1) for n, o, s, p, d, k in lies]
    options = (stride, padding, extra, groups, dilation)
    z = TRANSPOSE[len(outputs)](g, w, b, *options)
    shifted = x.grad + b.view(-1, *(1,) * len(outputs))
    np.testing.assert_array_equal(z.numpy(), shifted.numpy())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_second_derivatives(case):
    """The gradient's derivative in a random direction: that of a polynomial of low degree."""
    outputs, geometry = sized(case)
    points = [rl.randn(*s, dtype=rl.float64) for s in (*case[:2], case[1][:1])]
    along = [rl.randn(*p.shape, dtype=rl.float64) for p in points]
    weights = [rl.randn(*p.shape, dtype=rl.float64) for p in points]
    g = rl.randn(points[0].shape[0], points[1].shape[0], *outputs, dtype=rl.float64)

    def contracted(step):
        x = [(p + step * a).detach().requires_grad_() for p, a in zip(points, along, strict=True)]
        y = CONV[len(outputs)](*x, *geometry)
        (y * y * g).sum().backward(create_graph=True)
        value = sum((p.grad * u).sum() for p, u in zip(x, weights, strict=True))
        for p in x:
            p.grad = None
        return x, value

    x, value = contracted(0)
    value.backward()
    mine = sum((p.grad * a).sum().item() for p, a in zip(x, along, strict=True))
    h = 1e-4
    expected = (contracted(h)[1].item() - contracted(-h)[1].item()) / (2 * h)
    np.testing.assert_allclose(mine, expected, rtol=1e-6, atol=1e-6 * abs(value.item()))


@pytest.mark.filterwarnings("ignore:Using padding:UserWarning")
@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("d", [1, 2])
def test_same_padding_keeps_the_size(rng, torch, k, d):
    x, w = (rng.standard_normal(shape) for shape in ((2, 3, 8, 9), (4, 3, k, 5 - k)))
    y = F.conv2d(rl.tensor(x), rl.tensor(w), padding="same", dilation=d)
    before = [d * (n - 1) // 2 for n in w.shape[2:]]
    expected = direct(x, w, ((1, 1), before, (d, d), 1), (8, 9))
    np.testing.assert_allclose(y.numpy(), expected, rtol=0, atol=1e-13)
    peer = torch.nn.functional.conv2d(torch.tensor(x), torch.tensor(w), padding="same", dilation=d)
    np.testing.assert_allclose(y.numpy(), peer.numpy(), rtol=0, atol=1e-13)
    valid = F.conv2d(rl.tensor(x), rl.tensor(w), padding="valid")
    assert valid.tolist() == F.conv2d(rl.tensor(x), rl.tensor(w)).tolist()


def test_golden_vectors():
    v = vector("conv2d")
    for name in "abc":
        x, w, b = (rl.from_numpy(v[f"{name}_{part}"]) for part in "xwb")
        y = F.conv2d(x, w, b, int(v[f"{name}_stride"]), int(v[f"{name}_pad"]))
        np.testing.assert_allclose(y.numpy(), v[f"{name}_ref_out"], rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_same_bits_for_any_number_of_threads(rng, case):
    outputs, geometry = sized(case)
    arrays = drawn(rng, *case[:2], outputs, "float32")
    results = []
    for threads in (1, 2, 3):
        rl.set_num_threads(threads)
        x, w, b = (rl.tensor(a, requires_grad=True) for a in arrays[:3])
        y = CONV[len(outputs)](x, w, b, *geometry)
        y.backward(rl.tensor(arrays[3]))
        results.append([a.numpy().tobytes() for a in (y.detach(), x.grad, w.grad, b.grad)])
    assert results[0] == results[1] == results[2]


def test_strided_views_and_missing_batch(rng):
    x = rl.tensor(rng.standard_normal((4, 9, 8, 2))).permute(3, 0, 2, 1)
    w = rl.tensor(rng.standard_normal((3, 3, 4, 5))).permute(3, 2, 0, 1)
    expected = F.conv2d(x.contiguous(), w.contiguous(), padding=1)
    np.testing.assert_array_equal(F.conv2d(x, w, padding=1).numpy(), expected.numpy())
    np.testing.assert_array_equal(F.conv2d(x[1], w, padding=1).numpy(), expected[1].numpy())
    one = F.conv_transpose2d(expected[0], w, stride=2)
    np.testing.assert_array_equal(one.numpy(), F.conv_transpose2d(expected, w, stride=2)[0].numpy())


def test_gradients_only_where_needed():
    x, w, b = rl.randn(2, 3, 5, 5), rl.randn(4, 3, 3, 3), rl.randn(4, requires_grad=True)
    F.conv2d(x, w, b).sum().backward()
    assert x.grad is None
    assert w.grad is None
    assert b.grad.tolist() == [18.0] * 4
    assert not F.conv2d(x, w).requires_grad


X, W = (2, 4, 6, 6), (6, 4, 3, 3)
REFUSED = [
    (X, W, {"stride": 0}, ValueError, "stride must be 2 integers from 1 on, got 0"),
    (X, W, {"stride": (1, 2, 3)}, ValueError, "stride"),
    (X, W, {"stride": 1.5}, ValueError, "stride"),
    (X, W, {"dilation": 0}, ValueError, "dilation must be 2 integers from 1 on, got 0"),
    (X, W, {"padding": -1}, ValueError, "padding must be 2 integers from 0 on, got -1"),
    (X, W, {"padding": "full"}, ValueError, "padding 'full'"),
    (X, W, {"padding": "same", "stride": 2}, ValueError, "stride 1"),
    (X, W, {"groups": 0}, ValueError, "groups"),
    (X, W, {"groups": 2}, rl.ShapeError, "2 groups"),
    (X, (6, 4, 7, 3), {}, rl.ShapeError, "window of 7 is larger than the input of 6"),
    (X, (6, 4, 3, 3), {"dilation": 3, "padding": 0}, rl.ShapeError, "window of 7"),
    (X, (6, 4, 0, 3), {}, rl.ShapeError, "empty window"),
    (X, (6, 3, 3, 3), {}, rl.ShapeError, "does not fit"),
    ((4, 6), W, {}, rl.ShapeError, "4 axes"),
    (X, (6, 4, 3), {}, rl.ShapeError, "4 axes"),
    (X, W, {"bias": rl.ones(5)}, rl.ShapeError, r"bias has shape \(5,\), expected \(6,\)"),
]


@pytest.mark.parametrize(("x", "w", "options", "error", "text"), REFUSED)
def test_refused(x, w, options, error, text):
    """Stride and dilation mixed up, windows larger than the input, dilation 0: see `REFUSED`."""
    with pytest.raises(error, match=text):
        F.conv2d(rl.ones(*x), rl.ones(*w), **options)


def test_dtypes_are_not_mixed():
    with pytest.raises(rl.DtypeError, match="float32, float64"):
        F.conv2d(rl.ones(1, 1, 3, 3), rl.ones(1, 1, 2, 2, dtype=rl.float64))
    with pytest.raises(rl.DtypeError, match="int64"):
        F.conv2d(rl.ones(1, 1, 3, 3, dtype=rl.int64), rl.ones(1, 1, 2, 2, dtype=rl.int64))


def test_transposed_refused():
    x, w = rl.ones(1, 2, 4, 4), rl.ones(2, 3, 3, 3)
    with pytest.raises(ValueError, match="output_padding 2 must be smaller than stride 2"):
        F.conv_transpose2d(x, w, stride=2, output_padding=2)
    with pytest.raises(rl.ShapeError, match="padding 3 leaves nothing of 6"):
        F.conv_transpose2d(x, w, padding=3)
    with pytest.raises(rl.ShapeError, match="does not fit"):
        F.conv_transpose2d(rl.ones(1, 3, 4, 4), w)


LAYERS = [
    ("Conv1d", (4, 6, 3), {"stride": 2, "padding": 1, "groups": 2}, (2, 4, 9)),
    ("Conv2d", (4, 6, (3, 2)), {"padding": (1, 0), "dilation": (1, 2)}, (2, 4, 9, 8)),
    ("Conv2d", (4, 6, 3), {"padding": "same", "bias": False}, (4, 9, 8)),
    ("Conv3d", (2, 4, 3), {"padding": 1, "stride": (1, 2, 2)}, (2, 2, 4, 5, 6)),
    ("ConvTranspose1d", (4, 6, 3), {"stride": 2, "groups": 2}, (2, 4, 9)),
    ("ConvTranspose2d", (4, 6, 3), {"stride": 2, "padding": 1, "output_padding": 1}, (2, 4, 5, 6)),
    ("ConvTranspose3d", (2, 4, 2), {"dilation": 2}, (2, 2, 4, 5, 6)),
]


@pytest.mark.parametrize(("name", "sizes", "options", "shape"), LAYERS)
def test_layers_match_pytorch(torch, name, sizes, options, shape):
    rl.manual_seed(3)
    mine = getattr(nn, name)(*sizes, **options)
    peer = getattr(torch.nn, name)(*sizes, **options)
    assert repr(mine).replace("'", "") == repr(peer).replace("'", "")
    state = {key: torch.tensor(value.numpy()) for key, value in mine.state_dict().items()}
    peer.load_state_dict(state, strict=True)
    x = rl.randn(*shape, requires_grad=True)
    t = torch.tensor(x.detach().numpy(), requires_grad=True)
    y, z = mine(x), peer(t)
    g = rl.randn(*y.shape)
    y.backward(g)
    z.backward(torch.tensor(g.numpy()))
    pairs = [(y.detach(), z.detach()), (x.grad, t.grad)]
    pairs += [(p.grad, q.grad) for p, q in zip(mine.parameters(), peer.parameters(), strict=True)]
    for a, b in pairs:
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-5)
    bound = 1 / np.sqrt(np.prod(mine.weight.shape[1:]))
    for p in mine.parameters():
        assert 0.5 * bound < p.abs().max().item() <= bound


def test_layers_refuse():
    with pytest.raises(ValueError, match="in_channels=5 cannot be divided into 2 groups"):
        nn.Conv2d(5, 4, 3, groups=2)
    with pytest.raises(ValueError, match="kernel_size must be 2 integers from 1 on, got 0"):
        nn.Conv2d(4, 4, 0)
    with pytest.raises(NotImplementedError, match="reflect"):
        nn.Conv2d(4, 4, 3, padding_mode="reflect")


@pytest.mark.parametrize("filters", [4, 40])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("column", [0, 9])
def test_an_infinite_pixel_touches_its_own_taps(filters, groups, column):
    """Few filters, many, and single channels: the gradient of a tap that never sees it is finite."""
    x = rl.ones(1, 2, 10, 10)
    x[0, 0, 5, column] = float("inf")
    w = rl.ones(filters, 2 // groups, 3, 3, requires_grad=True)
    y = F.conv2d(x, w, groups=groups)
    y.backward(rl.ones(*y.shape))
    finite = np.isfinite(w.grad.numpy())
    unseen = [t for t in range(3) if t != (0 if column == 0 else 2)]
    assert finite[: filters // groups, 0][:, :, unseen].all()
    assert not finite[: filters // groups, 0][:, :, 0 if column == 0 else 2].any()
