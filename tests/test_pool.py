"""Pooling against loops over windows and PyTorch."""

import itertools

import numpy as np
import pytest

import rushlight as rl
import rushlight.nn.functional as F
from rushlight import nn

# input, window, stride, padding, dilation, ceil_mode
CASES = [
    ((2, 3, 6, 7), (2, 2), (2, 2), (0, 0), (1, 1), False),
    ((2, 3, 7, 9), (3, 2), (2, 2), (1, 1), (1, 1), False),
    ((2, 3, 7, 9), (3, 2), (2, 2), (1, 0), (1, 1), True),
    ((1, 2, 5, 50), (3, 3), (1, 1), (1, 1), (1, 1), False),
    ((1, 2, 9, 70), (2, 3), (3, 2), (0, 1), (2, 3), True),
    ((3, 1, 1, 1), (1, 1), (1, 1), (0, 0), (1, 1), False),
    ((2, 3, 1, 1), (2, 2), (2, 2), (1, 1), (1, 1), False),
    ((2, 2, 40, 33), (9, 9), (4, 3), (4, 2), (1, 1), True),
    ((0, 2, 4, 4), (2, 2), (2, 2), (0, 0), (1, 1), False),
    ((3, 4, 17), (3,), (2,), (1,), (1,), True),
    ((2, 2, 4, 5, 6), (2, 3, 2), (2, 1, 2), (1, 1, 0), (1, 1, 1), False),
]
MAX = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVG = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}


def windows(case):
    """For every output place its index and the slices of its window inside the input."""
    shape, window, stride, padding, dilation, ceil_mode = case
    sizes = []
    for n, k, s, p, d in zip(shape[2:], window, stride, padding, dilation, strict=True):
        room = n + 2 * p - d * (k - 1) - 1
        count = (-(-room // s) if ceil_mode else room // s) + 1
        sizes.append(count - (ceil_mode and (count - 1) * s >= n + p))
    for place in itertools.product(*map(range, sizes)):
        lies = zip(place, shape[2:], window, stride, padding, dilation, strict=True)
        yield place, [[i for i in range(a * s - p, a * s - p + d * (k - 1) + 1, d) if 0 <= i < n]
                      for a, n, k, s, p, d in lies]  # fmt: skip


def output_shape(case):
    return (*case[0][:2], *(1 + max(i) for i in zip(*[p for p, _ in windows(case)], strict=True)))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_largest(rng, case, dtype):
    x = rng.permutation(np.prod(case[0])).reshape(case[0]).astype(dtype)
    t = rl.tensor(x, requires_grad=True)
    y, index = MAX[len(case[1])](t, *case[1:], return_indices=True)
    g = rng.standard_normal(output_shape(case)).astype(dtype)
    expected, gx = np.zeros(g.shape), np.zeros(x.shape, dtype)
    for place, inside in windows(case):
        part = x[np.ix_(*map(range, x.shape[:2]), *inside)]
        expected[(..., *place)] = part.max(tuple(range(2, x.ndim)))
    np.testing.assert_array_equal(y.detach().numpy(), expected)
    flat, places = (a.reshape(-1, np.prod(a.shape[2:])) for a in (x, index.numpy()))
    found = np.take_along_axis(flat, places, 1)
    np.testing.assert_array_equal(found.reshape(g.shape), expected)
    y.backward(rl.tensor(g))
    for i in np.ndindex(*x.shape[:2]):
        np.add.at(gx[i].reshape(-1), index.numpy()[i].reshape(-1), g[i].reshape(-1))
    np.testing.assert_allclose(t.grad.numpy(), gx, rtol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("include", [True, False])
def test_mean(rng, case, include):
    shape, window, stride, padding, _, ceil_mode = case
    case = (shape, window, stride, padding, (1,) * len(window), ceil_mode)
    x = rl.tensor(rng.standard_normal(shape), requires_grad=True)
    options = stride, padding, ceil_mode, include
    y = AVG[len(window)](x, window, *options)
    g, gx = rng.standard_normal(output_shape(case)), np.zeros(shape)
    expected = np.zeros(g.shape)
    for place, inside in windows(case):
        lies = zip(place, shape[2:], window, stride, padding, strict=True)
        whole = [min(a * s - p + k, n + p) - (a * s - p) for a, n, k, s, p in lies]
        count = np.prod(whole if include else [len(i) for i in inside])
        at = np.ix_(*map(range, shape[:2]), *inside)
        expected[(..., *place)] = x.detach().numpy()[at].sum(tuple(range(2, len(shape)))) / count
        gx[at] += (g[(..., *place)] / count).reshape(*shape[:2], *(1,) * len(window))
    np.testing.assert_allclose(y.detach().numpy(), expected, rtol=0, atol=1e-14)
    y.backward(rl.tensor(g))
    np.testing.assert_allclose(x.grad.numpy(), gx, rtol=0, atol=1e-14)


@pytest.mark.filterwarnings("ignore:.*ceil_mode.*")
@pytest.mark.parametrize("case", [c for c in CASES if c[0][0]], ids=str)
def test_pytorch(torch, rng, case):
    x = rng.standard_normal(case[0])
    x.flat[[0, -1]] = np.nan
    axes = len(case[1])
    peer = getattr(torch.nn.functional, f"max_pool{axes}d")
    y, index = MAX[axes](rl.tensor(x), *case[1:], return_indices=True)
    z, places = peer(torch.tensor(x), *case[1:], return_indices=True)
    np.testing.assert_array_equal(y.numpy(), z.numpy())
    np.testing.assert_array_equal(index.numpy(), places.numpy())
    _, window, stride, padding, _, ceil_mode = case
    peer = getattr(torch.nn.functional, f"avg_pool{axes}d")
    for more in ([True], [False]) if axes == 1 else ([True, None], [False, None], [True, 5]):
        y = AVG[axes](rl.tensor(x), window, stride, padding, ceil_mode, *more)
        z = peer(torch.tensor(x), window, stride, padding, ceil_mode, *more)
        np.testing.assert_allclose(y.numpy(), z.numpy(), rtol=0, atol=1e-14)


def test_not_a_number_and_minus_infinity():
    x = rl.tensor([[[[-np.inf, -np.inf, 1, np.nan], [-np.inf, -np.inf, np.nan, 2]]]])
    y, index = F.max_pool2d(x, 2, return_indices=True)
    assert y[0, 0, 0, 0] == -np.inf
    assert np.isnan(y[0, 0, 0, 1].item())
    assert index.tolist() == [[[[0, 6]]]]
    border = F.max_pool2d(rl.full((1, 1, 2, 2), -np.inf), 2, padding=1, return_indices=True)
    assert border[1].tolist() == [[[[0, 1], [2, 3]]]]


@pytest.mark.parametrize("outputs", [1, 2, 3, 7, (2, 5), (None, 1), (9, 11)])
@pytest.mark.parametrize("kind", ["avg", "max"])
def test_adaptive(torch, rng, kind, outputs):
    x = rng.standard_normal((2, 3, 6, 11))
    t, u = rl.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y = getattr(F, f"adaptive_{kind}_pool2d")(t, outputs)
    z = getattr(torch.nn.functional, f"adaptive_{kind}_pool2d")(u, outputs)
    g = rng.standard_normal(tuple(z.shape))
    y.backward(rl.tensor(g))
    z.backward(torch.tensor(g))
    np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), rtol=0, atol=1e-14)
    np.testing.assert_allclose(t.grad.numpy(), u.grad.numpy(), rtol=0, atol=1e-14)
    single = getattr(F, f"adaptive_{kind}_pool2d")(t[0], outputs)
    np.testing.assert_array_equal(single.detach().numpy(), y[0].detach().numpy())


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
def test_second_derivatives(name):
    """The gradient of a pool is linear in what comes from behind, and that derivative is a pool."""
    x, g, u = (rl.randn(2, 3, 6, n, dtype=rl.float64, requires_grad=True) for n in (8, 8, 8))
    y = getattr(F, name)(x, 2)
    h = F.avg_pool2d(g, 2)
    (y * h).sum().backward(create_graph=True)
    first, x.grad, g.grad = x.grad, None, None
    (first * u).sum().backward()
    _, index = F.max_pool2d(x, 2, return_indices=True)
    along = F.avg_pool2d(u, 2)
    if name == "max_pool2d":
        flat = np.take_along_axis(
            u.detach().numpy().reshape(2, 3, -1), index.numpy().reshape(2, 3, -1), 2
        )
        along = rl.tensor(flat.reshape(index.shape))
    expected = along.detach().numpy().repeat(2, 2).repeat(2, 3) / 4
    np.testing.assert_allclose(g.grad.numpy(), expected, rtol=0, atol=1e-15)


REFUSED = [
    (
        F.max_pool2d,
        ((1, 1, 4, 4), 5),
        {},
        rl.ShapeError,
        "window of 5 is larger than the input of 4",
    ),
    (F.max_pool2d, ((1, 1, 4, 4), 0), {}, ValueError, "kernel_size must be 2 integers from 1 on"),
    (F.max_pool2d, ((1, 1, 4, 4), 2), {"stride": 0}, ValueError, "stride"),
    (F.max_pool2d, ((1, 1, 4, 4), 2), {"padding": 2}, ValueError, "more than half of 2"),
    (F.max_pool2d, ((4, 4), 2), {}, rl.ShapeError, "expected 3 or 4 axes"),
    (F.max_pool2d, ((1, 1, 0, 4), 1), {}, rl.ShapeError, "no places"),
    (F.avg_pool2d, ((1, 1, 4, 4), 2), {"divisor_override": 0}, ValueError, "must not be 0"),
    (F.adaptive_avg_pool2d, ((1, 1, 4, 4), (1, 2, 3)), {}, ValueError, "2 integers"),
    (F.adaptive_avg_pool2d, ((1, 1, 4, 4), 0), {}, ValueError, "from 1 on"),
]


@pytest.mark.parametrize(("function", "given", "options", "error", "text"), REFUSED)
def test_refused(function, given, options, error, text):
    with pytest.raises(error, match=text):
        function(rl.ones(*given[0]), given[1], **options)
    with pytest.raises(rl.DtypeError, match="int64"):
        function(rl.ones(1, 1, 4, 4, dtype=rl.int64), 1)


@pytest.mark.parametrize("name", [n for n in dir(nn) if "Pool" in n])
def test_layers_match_pytorch(torch, rng, name):
    axes = int(name[-2])
    x = rng.standard_normal((2, 3, *(6, 7, 8)[:axes]))
    arguments = (3,) if "Adaptive" in name else (3, 2, 1)
    mine, peer = getattr(nn, name)(*arguments), getattr(torch.nn, name)(*arguments)
    y, z = mine(rl.tensor(x)), peer(torch.tensor(x))
    np.testing.assert_allclose(y.numpy(), z.numpy(), rtol=0, atol=1e-14)
    assert mine.state_dict() == {}
