"""The moving average of a module's parameters."""

import numpy as np
import pytest

import rushlight as rl
from rushlight.io import load, save
from rushlight.optim import EMA


def model():
    net = rl.nn.Sequential(rl.nn.Linear(3, 4), rl.nn.Linear(4, 2).double())
    net.register_buffer("count", rl.zeros(1))
    return net


def move(net):
    with rl.no_grad():
        for p in net.parameters():
            p += rl.randn_like(p)


@pytest.mark.parametrize("warmup", [False, True])
def test_equals_the_formula(warmup):
    net = model()
    ema = EMA(net, 0.9, warmup=warmup)
    expected = {name: p.detach().numpy().astype(np.float64) for name, p in net.named_parameters()}
    for t in range(20):
        move(net)
        ema.update()
        decay = min(0.9, (1 + t) / (10 + t)) if warmup else 0.9
        for name, p in net.named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * p.detach().numpy()
    for name, average in ema.state_dict()["averages"].items():
        tolerance = 1e-5 if average.dtype is rl.float32 else 1e-12
        np.testing.assert_allclose(average.numpy(), expected[name], tolerance, tolerance)


def test_applied_swaps_and_restores():
    net = model()
    ema = EMA(net, 0.5)
    move(net)
    ema.update()
    own = {name: p.detach().clone().numpy() for name, p in net.named_parameters()}
    before = list(net.parameters())
    with pytest.raises(KeyError), ema.applied():  # noqa: PT012
        for name, p in net.named_parameters():
            assert (p.detach().numpy() == ema.averages[name].numpy()).all()
            assert (p.detach().numpy() != own[name]).any()
        net.count += 1
        raise KeyError
    assert all(a is b for a, b in zip(net.parameters(), before, strict=True))
    assert all((p.detach().numpy() == own[name]).all() for name, p in net.named_parameters())
    assert net.count.item() == 1  # buffers are the module's own
    z = (net[0].weight * net[0].weight).sum()
    with ema.applied(), pytest.raises(rl.GraphError):
        z.backward()  # it saved weights that have changed


def test_state(tmp_path):
    net = model()
    ema = EMA(net, 0.9, warmup=True)
    for _ in range(3):
        move(net)
        ema.update()
    save(ema.state_dict(), tmp_path / "ema")
    again = EMA(net, 0.9, warmup=True)
    again.load_state_dict(load(tmp_path / "ema"))
    move(net)
    ema.update()
    again.update()
    for name, average in ema.averages.items():
        assert (average == again.averages[name]).all()
    state = again.state_dict()
    before = {name: average.clone() for name, average in again.averages.items()}
    bad = {**state["averages"], "0.bias": rl.zeros(5), "extra": rl.zeros(1)}
    del bad["1.bias"]
    with pytest.raises(
        RuntimeError, match=r"(?s)missing: 1\.bias.*unexpected: extra.*0\.bias: \(5,\)"
    ):
        again.load_state_dict({**state, "averages": bad})
    with pytest.raises(RuntimeError, match="updates"):
        again.load_state_dict({"averages": state["averages"]})
    assert all((again.averages[name] == value).all() for name, value in before.items())


def test_refuses():
    for decay in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="decay"):
            EMA(model(), decay)
