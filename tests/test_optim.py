"""Optimizers: golden vectors, the fused form against the readable one, PyTorch, state, frozen parameters."""

import numpy as np
import pytest

import rushlight as rl
from rushlight import optim
from rushlight.nn import Parameter
from rushlight.nn.utils import clip_grad_norm_, clip_grad_value_
from vectors import vector


def run(make, start, gradients, **options):
    params = [Parameter(rl.tensor(p)) for p in start]
    optimizer = make(params, **options)
    history = [[p.detach().numpy().copy()] for p in params]
    for step in zip(*gradients, strict=True):
        for p, g in zip(params, step, strict=True):
            p.grad = rl.tensor(g)
        optimizer.step()
        for p, h in zip(params, history, strict=True):
            h.append(p.detach().numpy().copy())
    return [np.stack(h) for h in history], optimizer


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_adam_vectors_bit_for_bit(name):
    v = vector(name)
    betas = (float(v["meta_beta1"]), float(v["meta_beta2"]))
    options = {"lr": float(v["meta_lr"]), "betas": betas, "eps": float(v["meta_eps"])}
    for k in (0, 1):
        decay = 0.0 if v["meta_no_decay"][k] else float(v["meta_wd"])
        make = optim.AdamW if name == "adamw" else optim.Adam
        arguments = (make, [v[f"p{k}_hist"][0]], [v[f"g{k}"]])
        readable, optimizer = run(*arguments, **options, weight_decay=decay, foreach=False)
        np.testing.assert_array_equal(readable[0], v[f"p{k}_hist"])
        state = next(iter(optimizer.state.values()))
        np.testing.assert_array_equal(state["exp_avg"].numpy(), v[f"m{k}_hist"][-1])
        np.testing.assert_array_equal(state["exp_avg_sq"].numpy(), v[f"v{k}_hist"][-1])
        fused, _ = run(*arguments, **options, weight_decay=decay)
        np.testing.assert_allclose(fused[0], readable[0], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("momentum", "name"), [(0.0, "mom0"), (0.5, "mom05"), (0.9, "mom09")])
def test_sgd_vectors_bit_for_bit(momentum, name):
    v = vector("sgd_ref")
    arguments = (optim.SGD, [v["p"]], [v["g"]])
    readable, _ = run(*arguments, lr=float(v["meta_lr"]), momentum=momentum, foreach=False)
    np.testing.assert_array_equal(readable[0], v[f"{name}_hist"])
    fused, _ = run(*arguments, lr=float(v["meta_lr"]), momentum=momentum)
    np.testing.assert_allclose(fused[0], readable[0], rtol=1e-6, atol=1e-7)


CASES = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "maximize": True}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.01, "betas": (0.5, 0.7), "maximize": True}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.1, "eps": 1e-3}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("foreach", [None, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.peer
def test_against_pytorch(name, options, foreach, dtype, torch, rng):
    shapes = [(3, 4), (5,), (), (40_000,), (0, 3)]
    start = [np.asarray(rng.standard_normal(s), dtype) for s in shapes]
    gradients = [np.asarray(rng.standard_normal((7, *s)), dtype) for s in shapes]
    ours, _ = run(getattr(optim, name), start, gradients, **options, foreach=foreach)
    theirs = [torch.nn.Parameter(torch.from_numpy(p.copy())) for p in start]
    peer = getattr(torch.optim, name)(theirs, **options)
    for step in range(7):
        for p, g in zip(theirs, gradients, strict=True):
            p.grad = torch.from_numpy(np.array(g[step]))
        peer.step()
    rtol = 2e-6 if dtype is np.float32 else 1e-13
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a[-1], b.detach().numpy(), rtol=rtol, atol=rtol)


def test_clip_vectors():
    v = vector("clip_grads")
    for kind in ("active", "inactive"):
        params = [Parameter(rl.tensor(v[f"{kind}_g{k}"])) for k in (0, 1)]
        for p in params:
            p.grad = p.detach().clone()
        norm = clip_grad_norm_(params, float(v["meta_max_norm"]))
        assert norm.item() == pytest.approx(float(v[f"{kind}_norm"]), rel=1e-6)
        for k in (0, 1):
            np.testing.assert_allclose(params[k].grad.numpy(), v[f"{kind}_out{k}"], rtol=1e-6)


def test_clip_odd_cases():
    p = Parameter(rl.ones(3))
    assert clip_grad_norm_([p], 1.0).item() == 0
    p.grad = rl.tensor([float("nan"), 1.0, 2.0])
    assert np.isnan(clip_grad_norm_([p], 1.0).item())
    assert p.grad.tolist()[1:] == [1, 2]
    with pytest.raises(RuntimeError, match="nan"):
        clip_grad_norm_([p], 1.0, error_if_nonfinite=True)
    p.grad = rl.tensor([-3.0, 0.5, 3.0])
    clip_grad_value_([p], 1.0)
    assert p.grad.tolist() == [-1, 0.5, 1]


@pytest.mark.parametrize(("name", "options"), CASES)
@pytest.mark.parametrize("foreach", [None, False])
def test_parameters_without_gradient_stay(name, options, foreach):
    frozen, idle, moving = (Parameter(rl.randn(5)) for _ in range(3))
    frozen.requires_grad = False
    optimizer = getattr(optim, name)([frozen, idle, moving], **options, foreach=foreach)
    before = [p.detach().numpy().copy() for p in (frozen, idle, moving)]
    for step in range(4):
        idle.grad = rl.ones(5) if step < 2 else None
        moving.grad = rl.ones(5)
        if step == 2:
            before[1] = idle.detach().numpy().copy()
        optimizer.step()
    np.testing.assert_array_equal(frozen.detach().numpy(), before[0])
    np.testing.assert_array_equal(idle.detach().numpy(), before[1])
    assert optimizer.state[idle]["step"].item() == 2
    assert (moving.detach().numpy() != before[2]).all()


def named(names):
    return [(name, Parameter(rl.ones(2, 3))) for name in names]


def test_state_goes_by_name():
    source = named(["a", "b"])
    first = optim.AdamW(source)
    for value, (_, p) in enumerate(source, 1):
        p.grad = rl.full((2, 3), float(value))
    first.step()
    state = first.state_dict()
    assert set(state["state"]) == {"a", "b"}
    same = named(["a", "b"])
    second = optim.AdamW(same, lr=5.0)
    second.load_state_dict(state)
    assert second.param_groups[0]["lr"] == 1e-3
    assert (
        second.state[same[1][1]]["exp_avg"].tolist()
        == first.state[source[1][1]]["exp_avg"].tolist()
    )
    for names in (["b", "a"], ["a"], ["a", "c"]):
        other = optim.AdamW(named(names))
        with pytest.raises(ValueError, match="parameters differ"):
            other.load_state_dict(state)
    state["state"]["a"]["exp_avg"] = rl.zeros(4)
    with pytest.raises(ValueError, match=r"a\.exp_avg"):
        optim.AdamW(named(["a", "b"])).load_state_dict(state)


def test_groups_and_bad_options():
    a, b = Parameter(rl.ones(2)), Parameter(rl.ones(2))
    optimizer = optim.SGD([{"params": [a], "lr": 1.0}, {"params": b}], lr=0.5)
    a.grad, b.grad = rl.ones(2), rl.ones(2)
    optimizer.step()
    assert (a.tolist(), b.tolist()) == ([0, 0], [0.5, 0.5])
    optimizer.param_groups[1]["lr"] = 0.25
    optimizer.zero_grad()
    assert a.grad is None
    b.grad = rl.ones(2)
    assert optimizer.step(lambda: 7) == 7
    assert b.tolist() == [0.25, 0.25]
    for bad in ({"lr": -1}, {"betas": (1.0, 0.9)}, {"amsgrad": True}):
        with pytest.raises(ValueError, match=r".+"):
            optim.AdamW([a], **bad)
    with pytest.raises(ValueError, match="no parameters"):
        optim.SGD([])
    with pytest.raises(ValueError, match="twice"):
        optim.SGD([a, a])
    with pytest.raises(ValueError, match="did you mean 'momentum'"):
        optim.SGD([{"params": [a], "momentun": 1}])
    kept = optim.SGD([{"params": [a], "lr_scale": 3}])
    other = optim.SGD([a])
    other.load_state_dict(kept.state_dict())
    assert other.param_groups[0]["lr_scale"] == 3
    with pytest.raises(ValueError, match="contiguous"):
        optim.SGD([rl.ones(3, 2).t().requires_grad_()])
    with pytest.raises(ValueError, match="leaf"):
        optim.SGD([a * 2])


def test_gradients_of_any_layout_step():
    p = rl.nn.Parameter(rl.zeros(3, 2))
    p.grad = rl.arange(6.0).view(2, 3).t()
    rl.optim.SGD([p], lr=1.0).step()
    assert p.tolist() == [[0, -3], [-1, -4], [-2, -5]]


def test_a_momentum_set_late_is_refused_by_name():
    p = rl.nn.Parameter(rl.zeros(2))
    optimizer = rl.optim.SGD([p], lr=1.0)
    optimizer.param_groups[0]["momentum"] = 0.9
    p.grad = rl.ones(2)
    with pytest.raises(ValueError, match="momentum_buffer"):
        optimizer.step()


@pytest.mark.parametrize("foreach", [None, False])
def test_an_optimizer_says_that_its_model_was_converted(foreach):
    model = rl.nn.Linear(3, 2)
    optimizer = rl.optim.AdamW(model.parameters(), foreach=foreach)
    model.double()
    model(rl.ones(1, 3, dtype=rl.float64)).sum().backward()
    with pytest.raises(rl.DtypeError, match="convert a model before"):
        optimizer.step()


def test_one_group_steps_parameters_of_both_dtypes():
    p, q = rl.nn.Parameter(rl.ones(2)), rl.nn.Parameter(rl.ones(2, dtype=rl.float64))
    optimizer = rl.optim.SGD([{"params": [p, q], "name": "both"}], lr=0.5)
    rates = optimizer.param_groups[0]["lr_arrays"]
    before = {kind: id(array) for kind, array in rates.items()}
    (p.sum() + q.sum().float()).backward()
    optimizer.step()
    assert p.tolist() == q.tolist() == [0.5, 0.5]
    assert {kind: id(array) for kind, array in rates.items()} == before
