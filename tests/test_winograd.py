"""3 x 3 convolutions large enough for Winograd's algorithm, against the formula in float64."""

import numpy as np
import pytest

import rushlight as rl
import rushlight.nn.functional as F
from rushlight import _core

# images, channels, filters, height, width, padding
CASES = [
    (1, 64, 64, 31, 33, 1),
    (3, 45, 61, 23, 18, 0),  # nothing a multiple of anything
    (2, 100, 43, 40, 37, 2),
    (1, 44, 60, 21, 91, 3),  # borders without a pixel in them
    (16, 130, 131, 4, 4, 1),  # transformed inputs shared
    (33, 150, 140, 2, 2, 1),
    (40, 128, 130, 1, 3, 1),
    (1, 3, 300, 70, 50, 1),
    (1, 512, 20, 20, 20, 1),
]


@pytest.fixture(params=_core.LEVELS)
def level(request):
    used = _core.level()
    if not _core.set_level(request.param):
        pytest.skip("not of this CPU")
    yield request.param
    _core.set_level(used)


def formula(x, w, padding):
    """By the nine taps, in float64; borders are left out, not multiplied by 0."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    height, width = (size + 2 * padding - 2 for size in x.shape[2:])
    y = np.zeros((len(x), len(w), height, width))
    for tap in np.ndindex(3, 3):
        out, seen = [], []
        for t, size, count in zip(tap, x.shape[2:], (height, width), strict=True):
            first, last = max(0, padding - t), min(count, size + padding - t)
            out.append(slice(first, max(first, last)))
            seen.append(slice(first + t - padding, max(first, last) + t - padding))
        part = np.einsum("nchw,oc->nohw", x[:, :, *seen], w[:, :, *tap], optimize=True)
        y[:, :, *out] += part
    return y


def gradient(g, w, padding):
    """Of the input: the same, with the filters of each channel turned round."""
    if padding > 2:  # nobody saw the border
        g, padding = g[:, :, padding - 2 : 2 - padding, padding - 2 : 2 - padding], 2
    return formula(g, w[:, :, ::-1, ::-1].swapaxes(0, 1), 2 - padding)


def drawn(rng, case):
    images, channels, filters, height, width, p = case
    x = rng.standard_normal((images, channels, height, width), dtype=np.float32)
    w = rng.standard_normal((filters, channels, 3, 3), dtype=np.float32)
    g_shape = (images, filters, height + 2 * p - 2, width + 2 * p - 2)
    return x, w, rng.standard_normal(g_shape, dtype=np.float32)


def both(x, w, bias, g, padding):
    """The output and the input's gradient."""
    x = rl.tensor(x, requires_grad=True)
    y = F.conv2d(x, rl.tensor(w), None if bias is None else rl.tensor(bias), padding=padding)
    y.backward(rl.tensor(g))
    return y.detach().numpy(), x.grad.numpy()


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("with_bias", [False, True])
def test_values_and_gradients(rng, level, case, with_bias):
    x, w, g = drawn(rng, case)
    bias = rng.standard_normal(len(w), dtype=np.float32) if with_bias else None
    y, gx = both(x, w, bias, g, case[-1])
    expected = formula(x, w, case[-1]) + (0 if bias is None else bias[:, None, None])
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-7 * max(9 * x.shape[1], 100))
    expected = gradient(g, w, case[-1])
    np.testing.assert_allclose(gx, expected, rtol=0, atol=2e-7 * max(9 * len(w), 100))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_number_of_threads_gives_the_same_bits(rng, level, case):
    x, w, g = drawn(rng, case)
    results = []
    for threads in (1, 2, 3):
        rl.set_num_threads(threads)
        results.append(both(x, w, None, g, case[-1]))
    for other in results[1:]:
        for mine, theirs in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_is_used_and_nearly_as_exact_as_the_direct_sum(rng, level):
    x, w, _ = drawn(rng, (1, 64, 64, 32, 32, 1))
    fast = F.conv2d(rl.tensor(x), rl.tensor(w), padding=1).numpy()
    few = [F.conv2d(rl.tensor(x), rl.tensor(w[i : i + 1]), padding=1).numpy() for i in range(64)]
    direct, exact = np.concatenate(few, 1), formula(x, w, 1)
    assert (fast != direct).any()
    assert np.abs(fast - exact).max() < 3 * np.abs(direct - exact).max()
    double = F.conv2d(rl.tensor(x.astype(np.float64)), rl.tensor(w.astype(np.float64)), padding=1)
    np.testing.assert_allclose(double.numpy(), exact, rtol=0, atol=1e-12)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [(0, 0, 0, 0), (0, 5, 12, 13), (0, 63, 29, 30)])
def test_one_pixel_that_is_not_finite_touches_its_own_windows(rng, level, value, place):
    x, w, g = drawn(rng, (1, 64, 64, 30, 31, 1))
    x[place] = g[place] = value
    y, gx = both(x, w, None, g, 1)
    with np.errstate(invalid="ignore"):
        expected, expected_gx = formula(x, w, 1), gradient(g, w, 1)
    assert 0 < (~np.isfinite(expected)).sum() <= 9 * 64
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-4)
    np.testing.assert_allclose(gx, expected_gx, rtol=0, atol=1e-4)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_a_weight_that_is_not_finite_touches_its_own_filter_and_channel(rng, level, value):
    x, w, g = drawn(rng, (1, 64, 64, 30, 31, 1))
    w[7, 9, 0, 2] = value
    y, gx = both(x, w, None, g, 1)
    direct = F.conv2d(rl.tensor(x), rl.tensor(w[7:8]), padding=1).numpy()
    np.testing.assert_array_equal(y[:, 7:8], direct)
    assert np.isfinite(np.delete(y, 7, 1)).all()
    assert not np.isfinite(gx[:, 9, :-1, 1:]).any()
    assert np.isfinite(np.delete(gx, 9, 1)).all()


def test_a_bias_that_is_not_finite_touches_its_own_filter(rng, level):
    x, w, _ = drawn(rng, (1, 64, 64, 30, 31, 1))
    bias = np.zeros(64, np.float32)
    bias[3] = np.nan
    y = F.conv2d(rl.tensor(x), rl.tensor(w), rl.tensor(bias), padding=1).numpy()
    assert np.isnan(y[:, 3]).all()
    assert np.isfinite(np.delete(y, 3, 1)).all()


def test_sums_that_only_the_transforms_overflow(rng, level):
    x, w, g = drawn(rng, (1, 64, 64, 30, 31, 1))
    w *= 1e-3
    x = np.where(x > 0, np.float32(3e38), np.float32(-3e38))
    g = np.where(g > 0, np.float32(3e38), np.float32(-3e38))
    y, gx = both(x, w, None, g, 1)
    np.testing.assert_allclose(y, formula(x, w, 1), rtol=0, atol=1e33)
    np.testing.assert_allclose(gx, gradient(g, w, 1), rtol=0, atol=1e33)


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu"])
def test_what_comes_behind(rng, level, activation):
    x, w, _ = drawn(rng, (1, 64, 64, 31, 33, 1))
    bias, scale = (rng.standard_normal(64).astype(np.float32) for _ in range(2))
    residual = rng.standard_normal((1, 64, 31, 33)).astype(np.float32)
    wide = [rl.tensor(a.astype(np.float64)) for a in (x, w, bias, scale, residual)]
    behind = {"scale": wide[3], "residual": wide[4], "activation": activation}
    expected = F.conv2d(*wide[:3], padding=1, **behind).numpy()
    behind = {"scale": rl.tensor(scale), "residual": rl.tensor(residual), "activation": activation}
    y = F.conv2d(rl.tensor(x), rl.tensor(w), rl.tensor(bias), padding=1, **behind)
    np.testing.assert_allclose(y.numpy(), expected, rtol=0, atol=2e-4)
