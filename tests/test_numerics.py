"""Extreme and degenerate inputs of losses and attention; dropout; random numbers."""

import math

import numpy as np
import pytest

import rushlight as rl
import rushlight.nn.functional as F


def test_cross_entropy_of_extreme_logits():
    x = rl.tensor([[-500.0, 300.0, 450.0]], requires_grad=True)
    loss = F.cross_entropy(x, rl.tensor([0]))
    loss.backward()
    assert loss.item() == pytest.approx(950, rel=1e-6)
    np.testing.assert_allclose(x.grad.numpy(), [[-1, 0, 1]], atol=1e-6)


def test_cross_entropy_gradient_of_large_logits():
    x = np.float32([[1000.1, 1002.3, 999.7], [-3000.5, -3001, -3000.25]])
    logits = rl.tensor(x, requires_grad=True)
    F.cross_entropy(logits, rl.tensor([0, 2]), reduction="sum").backward()
    p = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    expected = p / p.sum(1, keepdims=True) - [[1, 0, 0], [0, 0, 1]]
    np.testing.assert_allclose(logits.grad.numpy(), expected, rtol=1e-6)


def test_logsumexp_of_minus_infinity():
    x = rl.full((2,), -math.inf).requires_grad_()
    y = rl.logsumexp(x, 0)
    y.backward()
    assert y.item() == -math.inf
    assert x.grad.tolist() == [0, 0]


def attend(mask, causal=False, queries=5, keys=5):
    q, k, v = (rl.randn(1, 2, n, 4, requires_grad=True) for n in (queries, keys, keys))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
    out.sum().backward()
    return out.detach().numpy(), [x.grad.numpy() for x in (q, k, v)], (q, k, v)


@pytest.mark.parametrize("kind", ["bool", "-inf", "float-min", "causal and padding"])
def test_fully_masked_row(kind):
    keep = np.ones((5, 5), bool)
    keep[2] = False
    if kind == "causal and padding":
        keep = np.tri(5, dtype=bool)
        keep[:, 0] = False  # the first query sees no key at all
    hidden = ~keep.any(1)
    mask = rl.from_numpy(keep)
    if kind in ("-inf", "float-min"):
        low = -math.inf if kind == "-inf" else np.finfo(np.float32).min
        mask = rl.from_numpy(np.where(keep, 0, low).astype(np.float32))
    out, gradients, (q, k, v) = attend(mask)
    if kind != "float-min":  # a finite number is a score like any other: such a row is uniform
        assert (out[:, :, hidden] == 0).all()
    assert np.isfinite(out).all()
    assert all(np.isfinite(g).all() for g in gradients)
    scores = (q @ k.transpose(-1, -2) / 2).detach().numpy()
    scores = np.where(keep, scores, -np.inf)[:, :, ~hidden]
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v.detach().numpy()
    np.testing.assert_allclose(out[:, :, ~hidden], expected, rtol=1e-5, atol=1e-6)


def test_attention_over_many_keys_and_queries():
    q, k, v = (rl.randn(1, 1, 1300, 16, dtype=rl.float64) for _ in range(3))
    for causal in (False, True):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=causal).numpy()
        scores = q.numpy() @ k.numpy().swapaxes(-1, -2) / 4
        scores = np.where(np.tri(1300, dtype=bool), scores, -np.inf) if causal else scores
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        np.testing.assert_allclose(
            out, weights / weights.sum(-1, keepdims=True) @ v.numpy(), rtol=1e-11, atol=1e-15
        )


def test_labels():
    x = rl.randn(3, 4, requires_grad=True)
    loss = F.cross_entropy(x, rl.tensor([-100, -100, -100]))
    loss.backward()
    assert loss.item() == 0
    assert (x.grad.numpy() == 0).all()
    for bad in (4, -1, 2**40):
        with pytest.raises(IndexError, match=rf"cross_entropy.*{bad}"):
            F.cross_entropy(x, rl.tensor([0, bad, 1]))
        with pytest.raises(IndexError, match="nll_loss"):
            F.nll_loss(x, rl.tensor([0, bad, 1]))
    for ignored in (-1, 255, 2):
        labels = rl.tensor([0, ignored, 1])
        assert F.cross_entropy(x, labels, ignore_index=ignored).item() == pytest.approx(
            F.cross_entropy(x[[0, 2]], rl.tensor([0, 1])).item(), rel=1e-6
        )


def test_linear_cross_entropy_equals_its_parts():
    for dtype in (rl.float32, rl.float64):
        x, w = rl.randn(2, 300, 8, dtype=dtype), rl.randn(50, 8, dtype=dtype)
        y = rl.randint(0, 50, (2, 300))
        y[0, 5] = -100
        results = []
        for fused in (True, False):
            a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
            loss = (
                F.linear_cross_entropy(a, b, y, chunk_rows=250)
                if fused
                else F.cross_entropy((a @ b.T).flatten(0, 1), y.flatten())
            )
            (loss * 3).backward()
            results.append([loss.detach().numpy(), a.grad.numpy(), b.grad.numpy()])
        rtol = 1e-5 if dtype is rl.float32 else 1e-12
        for ours, parts in zip(*results, strict=True):
            np.testing.assert_allclose(ours, parts, rtol=rtol, atol=rtol)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_fused_linear_equals_its_parts(activation):
    function = {
        "relu": F.relu,
        "silu": F.silu,
        "gelu": F.gelu,
        "gelu_tanh": lambda x: F.gelu(x, "tanh"),
    }[activation]
    data = [
        rl.randn(3, 5, 70, dtype=rl.float64),
        rl.randn(33, 70, dtype=rl.float64),
        rl.randn(33, dtype=rl.float64),
    ]
    data.append(rl.randn(3, 5, 33, dtype=rl.float64))
    results = []
    for fused in (True, False):
        x, w, b, r = (t.clone().requires_grad_() for t in data)
        y = (
            F.linear(x, w, b, activation=activation, residual=r)
            if fused
            else function(F.linear(x, w, b)) + r
        )
        (y * y).sum().backward()
        results.append([y.detach().numpy(), *(t.grad.numpy() for t in (x, w, b, r))])
    for ours, parts in zip(*results, strict=True):
        np.testing.assert_allclose(ours, parts, rtol=1e-11, atol=1e-12)


def test_dropout():
    x = rl.ones(100_000, requires_grad=True)
    y = F.dropout(x, 0.3)
    kept = y.detach().numpy() != 0
    assert abs(kept.mean() - 0.7) < 0.01
    np.testing.assert_allclose(y.detach().numpy()[kept], 1 / 0.7, rtol=1e-6)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.detach().numpy())
    zeros = rl.zeros(1000, requires_grad=True)  # a kept zero has a gradient all the same
    F.dropout(zeros, 0.5).sum().backward()
    assert set(zeros.grad.tolist()) == {0.0, 2.0}
    assert F.dropout(x, 0.3, training=False) is x
    assert (F.dropout(x, 1.0).detach().numpy() == 0).all()
    for bad in (-0.1, 1.1, math.nan):
        with pytest.raises(ValueError, match="dropout"):
            F.dropout(x, bad)


def test_random_numbers():
    for dtype in (rl.float32, rl.float64):
        u = rl.rand(200_001, dtype=dtype).numpy()
        assert 0 <= u.min() < 1e-4
        assert 1 - 1e-4 < u.max() < 1
        assert abs(u.mean() - 0.5) < 3e-3
        z = rl.randn(200_001, dtype=dtype).numpy()
        assert abs(z.mean()) < 0.01
        assert abs(z.std() - 1) < 0.01
        assert abs((z**4).mean() - 3) < 0.1
        assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 0.01
    i = rl.randint(-3, 4, (70_000,)).numpy()
    assert set(i) == set(range(-3, 4))
    assert abs(np.bincount(i + 3) / 70_000 - 1 / 7).max() < 0.01
    assert sorted(rl.randperm(100).tolist()) == list(range(100))
    rl.manual_seed(5)
    a, b = rl.randn(10).tolist(), rl.randn(10).tolist()
    state = rl.get_rng_state()
    c = rl.randn(3).tolist()
    rl.manual_seed(5)
    assert (rl.randn(10).tolist(), rl.randn(10).tolist()) == (a, b)
    assert a != b
    rl.set_rng_state(state)
    assert rl.randn(3).tolist() == c
    draws = rl.multinomial(rl.tensor([0.0, 1.0, 3.0]), 20_000, replacement=True).numpy()
    assert abs(np.bincount(draws) / 20_000 - [0, 0.25, 0.75]).max() < 0.02
    assert sorted(rl.multinomial(rl.ones(5), 5).tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "sqrt"])
def test_elementary_functions_at_the_edges(name):
    special = [
        0.0,
        -0.0,
        math.inf,
        -math.inf,
        math.nan,
        1e-45,
        -1e-45,
        1e-38,
        88.7,
        88.8,
        -87.3,
        -87.4,
        -104,
        1e10,
        -1e10,
        3e38,
    ]
    grid = np.concatenate(
        [special, np.linspace(-20, 20, 4001), np.geomspace(1e-30, 1e30, 2001)]
    ).astype(np.float32)
    ours = getattr(rl, name)(rl.from_numpy(grid)).numpy()
    with np.errstate(all="ignore"):
        table = {"sigmoid": lambda x: 1 / (1 + np.exp(-x)), "erf": np.vectorize(math.erf)}
        exact = table.get(name, getattr(np, name, None))(grid.astype(np.float64))
    if name in ("sin", "cos"):
        finite = np.isfinite(grid)
        np.testing.assert_allclose(ours[finite], exact[finite], rtol=0, atol=2e-7)
        assert np.isnan(ours[~finite]).all()
        return
    with np.errstate(over="ignore"):
        exact = exact.astype(np.float32)
    np.testing.assert_allclose(ours, exact, rtol=6e-7, atol=1.3e-38)
