"""Composed activations at their corners and far out; losses with all their options."""

import itertools

import numpy as np
import pytest

import rushlight as rl
import rushlight.nn.functional as F
from rushlight import nn

CORNERS = [-np.inf, -1e30, -200, -88, -20, -6, -3, -1e-8, -0.0, 0.0, 1e-8, 0.5, 1, 3, 6, 20, 21, 88, 200, 1e30]  # fmt: skip
ACTIVATIONS = [
    ("relu6", {}),
    ("hardsigmoid", {}),
    ("hardswish", {}),
    ("hardtanh", {}),
    ("hardtanh", {"min_val": -3, "max_val": 0.5}),
    ("leaky_relu", {}),
    ("leaky_relu", {"negative_slope": -0.3}),
    ("elu", {}),
    ("elu", {"alpha": 0.3}),
    ("softplus", {}),
    ("softplus", {"beta": 3.0, "threshold": 2.0}),
    ("mish", {}),
]


@pytest.mark.filterwarnings("ignore:.*overflow.*", "ignore:.*invalid.*")
@pytest.mark.parametrize(("name", "options"), ACTIVATIONS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_corners_as_pytorch(torch, name, options, dtype):
    """Values and slopes where pieces meet, next to 0 and far out, to relative precision."""
    x = np.array(CORNERS[1:], dtype)
    t, u = rl.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, z = getattr(F, name)(t, **options), getattr(torch.nn.functional, name)(u, **options)
    y.sum().backward()
    z.sum().backward()
    rtol = 1e-6 if dtype == "float32" else 1e-14
    atol = 1e-37 if dtype == "float32" else 1e-300
    if name == "mish":  # PyTorch's own loses digits where tanh(softplus(x)) is small
        rtol, atol = 1e-5 if dtype == "float32" else 1e-13, 1e-6 if dtype == "float32" else 1e-14
    np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), rtol=rtol, atol=atol)
    if name == "hardsigmoid":  # PyTorch's slope is 1 / 6 of float32
        rtol = 1e-8
    np.testing.assert_allclose(t.grad.numpy(), u.grad.numpy(), rtol=10 * rtol, atol=atol)


@pytest.mark.parametrize(("name", "options"), ACTIVATIONS, ids=str)
def test_not_a_number_and_infinity(name, options):
    y = getattr(F, name)(rl.tensor([np.nan, np.inf]), **options)
    assert np.isnan(y[0].item())
    bounded = name in ("relu6", "hardsigmoid", "hardtanh")
    assert np.isfinite(y[1].item()) if bounded else y[1].item() == np.inf
    assert getattr(F, name)(rl.tensor([1, 2]), **options).dtype == rl.float32


LAYERS = [
    ("ReLU6", {}),
    ("Hardsigmoid", {}),
    ("Hardswish", {}),
    ("Hardtanh", {"min_val": -0.5}),
    ("LeakyReLU", {"negative_slope": 0.2}),
    ("ELU", {"alpha": 0.5}),
    ("Softplus", {"beta": 2}),
    ("Mish", {"inplace": True}),
]


@pytest.mark.parametrize(("name", "options"), LAYERS, ids=str)
def test_layers(torch, rng, name, options):
    x = 4 * rng.standard_normal((3, 20))
    y = getattr(nn, name)(**options)(rl.tensor(x))
    z = getattr(torch.nn, name)(**options)(torch.tensor(x))
    np.testing.assert_allclose(y.numpy(), z.numpy(), rtol=1e-12, atol=1e-14)


def test_refused_bounds():
    with pytest.raises(ValueError, match="must not exceed"):
        F.hardtanh(rl.ones(2), 1, 0)


# ---- cross-entropy ----


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("target", ["index", "ignored", "soft"])
@pytest.mark.parametrize("shape", [(6, 5), (5,), (2, 5, 3, 2)])
def test_cross_entropy(torch, rng, reduction, smoothing, weighted, target, shape):
    x = rng.standard_normal(shape)
    weight = rng.uniform(0.5, 2, 5) if weighted else None
    options = {"reduction": reduction, "label_smoothing": smoothing}
    if target == "soft":
        y = rng.dirichlet(np.ones(5), [n for i, n in enumerate(shape) if i != len(shape[1:2])])
        y = np.moveaxis(y, -1, len(shape[1:2]))
    else:
        y = np.asarray(rng.integers(0, 5, shape[:1] + shape[2:] if len(shape) > 1 else ()))
        if target == "ignored":
            options["ignore_index"] = int(y.flat[0])
    if target == "ignored" and y.ndim == 0:
        return  # PyTorch's mean over nothing is NaN
    t, u = rl.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    ours = F.cross_entropy(
        t, rl.tensor(y), None if weight is None else rl.tensor(weight), **options
    )
    theirs = torch.nn.functional.cross_entropy(
        u, torch.tensor(y), None if weight is None else torch.tensor(weight), **options
    )
    np.testing.assert_allclose(
        ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-12, atol=1e-14
    )
    g = rng.standard_normal(tuple(theirs.shape))
    ours.backward(rl.tensor(np.asarray(g)))
    theirs.backward(torch.tensor(g))
    np.testing.assert_allclose(t.grad.numpy(), u.grad.numpy(), rtol=1e-10, atol=1e-14)


def test_plain_cross_entropy_stays_fused(rng):
    x = rl.tensor(rng.standard_normal((4, 3)), requires_grad=True)
    y = rl.tensor([0, 1, 2, 0])
    assert F.cross_entropy(x, y).node.name == "cross_entropy"
    fused, composed = F.cross_entropy(x, y), F.cross_entropy(x, y, rl.ones(3))
    assert fused.item() == pytest.approx(composed.item(), rel=1e-12)
    soft = rl.tensor(np.eye(3)[[0, 1, 2, 0]])
    assert F.cross_entropy(x, soft).item() == pytest.approx(fused.item(), rel=1e-12)


def test_cross_entropy_layer(torch, rng):
    x, y, w = rng.standard_normal((4, 3)), np.array([0, 1, 2, 0]), rng.uniform(0.5, 2, 3)
    options = {"ignore_index": 1, "label_smoothing": 0.1}
    mine = nn.CrossEntropyLoss(rl.tensor(w), **options)
    peer = torch.nn.CrossEntropyLoss(torch.tensor(w), **options)
    found = mine(rl.tensor(x), rl.tensor(y)).item()
    assert found == pytest.approx(peer(torch.tensor(x), torch.tensor(y)).item())


# ---- the others ----


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(("weighted", "positive"), [*itertools.product([False, True], repeat=2)])
def test_binary_cross_entropy(torch, rng, reduction, weighted, positive):
    x, y = 3 * rng.standard_normal((4, 3)), rng.integers(0, 2, (4, 3)).astype(float)
    y[0] = rng.random(3)
    factors = {
        "weight": rng.random((4, 1)) if weighted else None,
        "pos_weight": rng.random(3) if positive else None,
    }
    t, u = rl.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    ours, theirs = (
        {k: None if v is None else make(v) for k, v in factors.items()}
        for make in (rl.tensor, torch.tensor)
    )
    a = nn.BCEWithLogitsLoss(reduction=reduction, **ours)(t, rl.tensor(y))
    b = torch.nn.BCEWithLogitsLoss(reduction=reduction, **theirs)(u, torch.tensor(y))
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-13)
    a.sum().backward()
    b.sum().backward()
    np.testing.assert_allclose(t.grad.numpy(), u.grad.numpy(), rtol=1e-12, atol=1e-15)


def test_binary_cross_entropy_far_out():
    x = rl.tensor([-1000.0, -30.0, 30.0, 1000.0], requires_grad=True)
    right = rl.tensor([0.0, 0.0, 1.0, 1.0])
    loss = F.binary_cross_entropy_with_logits(x, right, reduction="none")
    np.testing.assert_allclose(loss.detach().numpy(), [0, 9.357623e-14, 9.357623e-14, 0], rtol=1e-6)
    wrong = F.binary_cross_entropy_with_logits(x, 1 - right, reduction="sum")
    wrong.backward()
    assert wrong.item() == 2060
    assert x.grad.tolist() == [-1, -1, 1, 1]
    x = rl.zeros(1, requires_grad=True)
    F.binary_cross_entropy_with_logits(x, rl.tensor([1])).backward()
    assert x.grad.tolist() == [-0.5]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("bound", [0.0, 0.5, 1.0, 10.0])
@pytest.mark.parametrize("name", ["SmoothL1Loss", "HuberLoss"])
def test_huber(torch, rng, name, bound, reduction):
    x, y = rng.standard_normal((5, 7)), rng.standard_normal((5, 7))
    x[0, :4] = y[0, :4] + [0.5, -0.5, 0, 1]  # on the corners
    if name == "HuberLoss" and bound == 0:
        with pytest.raises(ValueError, match="delta must be positive"):
            F.huber_loss(rl.tensor(x), rl.tensor(y), delta=0)
        return
    options = {"reduction": reduction, "beta" if name == "SmoothL1Loss" else "delta": bound}
    t, u = rl.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    a = getattr(nn, name)(**options)(t, rl.tensor(y))
    b = getattr(torch.nn, name)(**options)(u, torch.tensor(y))
    np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-13)
    a.sum().backward()
    b.sum().backward()
    np.testing.assert_allclose(t.grad.numpy(), u.grad.numpy(), rtol=1e-12, atol=1e-16)


def test_refused_losses():
    x = rl.ones(2, 3)
    with pytest.raises(rl.ShapeError, match="must be equal"):
        F.smooth_l1_loss(x, rl.ones(3))
    with pytest.raises(ValueError, match="must not be negative"):
        F.smooth_l1_loss(x, x, beta=-1)
    with pytest.raises(ValueError, match="reduction 'max'"):
        F.huber_loss(x, x, "max")
    with pytest.raises(rl.ShapeError, match="must be equal"):
        F.binary_cross_entropy_with_logits(x, rl.ones(2))
    with pytest.raises(rl.ShapeError, match="does not"):
        F.binary_cross_entropy_with_logits(x, x, weight=rl.ones(2, 1, 3))
