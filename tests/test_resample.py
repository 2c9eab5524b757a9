"""Interpolation against loops over places, PyTorch, and its own transpose."""

import itertools
import math

import numpy as np
import pytest

import rushlight as rl
import rushlight.nn.functional as F
from rushlight import nn

SIZES = [(1, 1), (1, 4), (4, 1), (3, 7), (7, 3), (5, 10), (10, 5), (6, 6), (17, 12)]


def cubic(d, a):
    d = abs(d)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else 0.0


def pointwise(n, m, mode, align, step):
    """(m, n) weights, place by place."""
    weights = np.zeros((m, n))
    for i in range(m):
        place = (i + 0.5) * step - 0.5
        if align:
            place = i * (n - 1) / max(m - 1, 1)
        if mode == "linear":
            place = min(max(place, 0.0), n - 1)
            for j in range(n):
                weights[i, j] = max(1 - abs(j - place), 0)
        else:
            for j in range(math.floor(place) - 1, math.floor(place) + 3):
                weights[i, min(max(j, 0), n - 1)] += cubic(j - place, -0.75)
    return weights


def windowed(n, m, mode, step):
    wide = max(step, 1.0)
    reach = wide * (1 if mode == "linear" else 2)
    weights = np.zeros((m, n))
    for i, j in itertools.product(range(m), range(n)):
        d = (j + 0.5 - (i + 0.5) * step) / wide
        if abs(d) * wide < reach:
            weights[i, j] = max(1 - abs(d), 0) if mode == "linear" else cubic(d, -0.5)
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("align", [False, True])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weighted_means(rng, n, m, align, mode, dtype):
    x = rng.standard_normal((2, 3, n, n + 1)).astype(dtype)
    y = F.interpolate(rl.tensor(x), size=(m, m + 2), mode=f"bi{mode}", align_corners=align)
    rows = pointwise(n, m, mode, align, n / m)
    columns = pointwise(n + 1, m + 2, mode, align, (n + 1) / (m + 2))
    atol = 1e-14 if dtype == "float64" else 2e-6
    np.testing.assert_allclose(y.numpy(), rows @ x @ columns.T, rtol=0, atol=10 * atol)
    assert y.numpy().dtype == dtype


@pytest.mark.parametrize(("n", "m"), SIZES)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialias(rng, n, m, mode):
    x = rng.standard_normal((2, 3, n, 2 * n))
    y = F.interpolate(rl.tensor(x), size=(m, m), mode=f"bi{mode}", antialias=True)
    expected = windowed(n, m, mode, n / m) @ x @ windowed(2 * n, m, mode, 2 * n / m).T
    np.testing.assert_allclose(y.numpy(), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("n", "m"), SIZES)
def test_nearest(rng, n, m):
    x = rng.standard_normal((2, 3, n))
    y = F.interpolate(rl.tensor(x), size=m)
    np.testing.assert_array_equal(y.numpy(), x[:, :, [i * n // m for i in range(m)]])
    y = F.interpolate(rl.tensor(x), size=m, mode="nearest-exact")
    np.testing.assert_array_equal(
        y.numpy(), x[:, :, [(2 * i + 1) * n // (2 * m) for i in range(m)]]
    )
    whole = F.interpolate(rl.tensor(np.full((1, 1, 3), np.inf)), size=5)
    assert (whole.numpy() == np.inf).all()  # copies, no products


MODES = [
    ("nearest", {}),
    ("nearest-exact", {}),
    ("area", {}),
    ("linear", {"align_corners": False}),
    ("linear", {"align_corners": True}),
    ("bilinear", {}),
    ("bilinear", {"align_corners": True}),
    ("bilinear", {"antialias": True}),
    ("bilinear", {"antialias": True, "align_corners": True}),
    ("bicubic", {}),
    ("bicubic", {"align_corners": True}),
    ("bicubic", {"antialias": True}),
    ("bicubic", {"antialias": True, "align_corners": True}),
    ("trilinear", {}),
    ("trilinear", {"align_corners": True}),
]
AMOUNTS = [
    {"size": 5},
    {"size": 13},
    {"scale_factor": 2},
    {"scale_factor": 0.5},
    {"scale_factor": 1.3},
    {"scale_factor": 0.7},
    {"scale_factor": 2.6, "recompute_scale_factor": True},
]


@pytest.mark.parametrize(("mode", "options"), MODES, ids=str)
@pytest.mark.parametrize("amount", AMOUNTS, ids=str)
def test_pytorch(torch, rng, mode, options, amount):
    """Values and gradients, in every number of axes that the mode has."""
    ranks = {"linear": (1,), "bilinear": (2,), "bicubic": (2,), "trilinear": (3,)}
    for axes in ranks.get(mode, (1, 2, 3)):
        x = rng.standard_normal((2, 2, *(4, 7, 8)[:axes]))
        t, u = rl.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
        y = F.interpolate(t, mode=mode, **amount, **options)
        z = torch.nn.functional.interpolate(u, mode=mode, **amount, **options)
        np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), rtol=0, atol=1e-13)
        g = rng.standard_normal(tuple(z.shape))
        y.backward(rl.tensor(g))
        z.backward(torch.tensor(g))
        np.testing.assert_allclose(t.grad.numpy(), u.grad.numpy(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nearest_as_pytorch_where_it_is_close(torch, dtype):
    """floor(i * n / m) in float32 is not always what it is in numbers; 2 to 41 elements, say."""
    for n, m in itertools.product(range(1, 30), range(1, 60)):
        x = np.broadcast_to(np.arange(n, dtype=dtype), (1, 1, 2, n)).copy()
        for mode in ("nearest", "nearest-exact"):
            y = F.interpolate(rl.tensor(x), size=(2, m), mode=mode)
            z = torch.nn.functional.interpolate(torch.tensor(x), size=(2, m), mode=mode)
            np.testing.assert_array_equal(y.numpy(), z.numpy())


@pytest.mark.parametrize("mode", ["nearest", "nearest-exact", "bilinear", "bicubic"])
@pytest.mark.parametrize("factor", [1.3, (1.0, 1.3), 2.2])
def test_axes_that_keep_their_size_or_double_it(torch, rng, mode, factor):
    """Of 3 elements a factor of 1.3 makes 3, at the same places (bicubic: at others)."""
    x = rng.standard_normal((2, 2, 3, 3))
    y = F.interpolate(rl.tensor(x), scale_factor=factor, mode=mode)
    z = torch.nn.functional.interpolate(torch.tensor(x), scale_factor=factor, mode=mode)
    np.testing.assert_allclose(y.numpy(), z.numpy(), rtol=0, atol=1e-14)


@pytest.mark.parametrize(("mode", "options"), [m for m in MODES if m[0] != "area"], ids=str)
def test_is_linear_with_its_transpose_as_gradient(rng, mode, options):
    """<interpolate(x), g> = <x, gradient>, and the gradient of that in g is interpolate(u)."""
    axes = {"linear": 1, "trilinear": 3}.get(mode, 2)
    shape = (2, 2, *(5, 8, 3)[:axes])
    x = rl.tensor(rng.standard_normal(shape), requires_grad=True)
    y = F.interpolate(x, scale_factor=1.7, mode=mode, **options)
    g = rl.tensor(rng.standard_normal(y.shape), requires_grad=True)
    (y * g).sum().backward(create_graph=True)
    assert (y * g).sum().item() == pytest.approx((x * x.grad).sum().item(), rel=1e-12)
    u = rl.tensor(rng.standard_normal(shape))
    first, x.grad, g.grad = x.grad, None, None
    (first * u).sum().backward()
    expected = F.interpolate(u, scale_factor=1.7, mode=mode, **options)
    np.testing.assert_allclose(g.grad.numpy(), expected.numpy(), rtol=0, atol=1e-14)


def test_result_is_never_the_input():
    x = rl.randn(1, 1, 3, 3)
    for mode in ("nearest", "bilinear", "bicubic"):
        y = F.interpolate(x, size=3, mode=mode)
        assert not np.may_share_memory(y.numpy(), x.numpy())
        np.testing.assert_allclose(y.numpy(), x.numpy(), rtol=1e-6)


REFUSED = [
    ((1, 1, 4, 4), {}, ValueError, "either size or scale_factor"),
    ((1, 1, 4, 4), {"size": 2, "scale_factor": 2}, ValueError, "either size or scale_factor"),
    ((1, 1, 4, 4), {"size": (2, 2, 2)}, ValueError, "2 integers"),
    ((1, 1, 4, 4), {"size": 0}, ValueError, "from 1 on"),
    ((1, 1, 4, 4), {"size": 3, "recompute_scale_factor": True}, ValueError, "scale_factor only"),
    ((1, 1, 4, 4), {"scale_factor": -1.0}, ValueError, "positive"),
    ((1, 1, 4, 4), {"scale_factor": (1.0, 2.0, 3.0)}, ValueError, "2 positive numbers"),
    ((1, 1, 4, 4), {"scale_factor": 0.1}, rl.ShapeError, "no size may be 0"),
    ((1, 1, 0, 4), {"size": 3}, rl.ShapeError, "no size may be 0"),
    ((1, 1, 4), {"size": 3, "mode": "bilinear"}, rl.ShapeError, "with 2 spatial axes"),
    ((1, 1), {"size": 3}, rl.ShapeError, "1 to 3 spatial axes"),
    ((1, 1, 4, 4), {"size": 3, "mode": "lanczos"}, ValueError, "is not one of"),
    ((1, 1, 4, 4), {"size": 3, "align_corners": True}, ValueError, "align_corners"),
    ((1, 1, 4, 4), {"size": 3, "antialias": True}, ValueError, "antialias"),
]


@pytest.mark.parametrize(("shape", "options", "error", "text"), REFUSED, ids=str)
def test_refused(shape, options, error, text):
    with pytest.raises(error, match=text):
        F.interpolate(rl.ones(*shape), **options)


def test_integers_are_refused():
    with pytest.raises(rl.DtypeError, match="int64"):
        F.interpolate(rl.ones(1, 1, 4, dtype=rl.int64), size=3)


def test_layer(torch, rng):
    x = rng.standard_normal((1, 2, 4, 5)).astype(np.float32)
    for options in (
        {"scale_factor": 2},
        {"size": (3, 9), "mode": "bilinear", "align_corners": True},
        {"scale_factor": 1.5, "mode": "bicubic", "recompute_scale_factor": True},
    ):
        y, z = nn.Upsample(**options)(rl.tensor(x)), torch.nn.Upsample(**options)(torch.tensor(x))
        np.testing.assert_allclose(y.numpy(), z.numpy(), rtol=2e-6, atol=2e-6)
    assert "mode='nearest'" in repr(nn.Upsample(scale_factor=2))
