"""Every row of the table: values, gradients, PyTorch, and that no operation is without a row."""

import ast
import gc
from pathlib import Path

import numpy as np
import pytest

import op_table_vision  # noqa: F401 - adds its rows
import rushlight as rl
import rushlight.nn.functional as F
from op_table import ROWS
from rushlight import autograd

IDS = [row[0] for row in ROWS]
SOURCE = Path(rl.__file__).parent / "ops"


def draw(inputs, dtype):
    rng = np.random.default_rng(7)
    arrays = [i.draw(rng) for i in inputs]
    return [a.astype(dtype, order="K") if a.dtype.kind == "f" else a for a in arrays]


def tensors(arrays, requires_grad=False):
    made = [rl.from_numpy(np.array(a, order="K")) for a in arrays]
    for x in made:
        if requires_grad and x.is_floating_point():
            x.requires_grad = True
    return made


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "call", "oracle", "inputs"), ROWS, ids=IDS)
def test_value(name, call, oracle, inputs, dtype):
    arrays = draw(inputs, dtype)
    out = call(rl, F, *tensors(arrays)).numpy()
    expected = oracle(*(a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays))
    assert out.shape == np.shape(expected)
    if not name.startswith("to"):
        assert out.dtype == dtype
    rtol, atol = (2e-6, 2e-6) if dtype is np.float32 else (1e-13, 1e-13)
    scale = max(1.0, np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(out, expected, rtol=rtol, atol=atol * scale)


@pytest.mark.parametrize(("name", "call", "oracle", "inputs"), ROWS, ids=IDS)
def test_gradient(name, call, oracle, inputs):
    """<grad, u> against (f(x + eps u) - f(x - eps u)) / (2 eps) in float64 for one random direction u."""
    arrays = draw(inputs, np.float64)
    rng = np.random.default_rng(3)
    x = tensors(arrays, requires_grad=True)
    out = call(rl, F, *x)
    weights = np.asarray(rng.standard_normal(out.shape))
    (out * rl.from_numpy(weights)).sum().backward()
    real = [i for i, a in enumerate(arrays) if a.dtype.kind == "f"]
    directions = {i: np.asarray(rng.standard_normal(arrays[i].shape)) for i in real}
    analytic = sum(
        float((x[i].grad.numpy() * directions[i]).sum()) for i in real if x[i].grad is not None
    )
    eps = 1e-6
    sides = []
    for sign in (1, -1):
        moved = [
            np.asarray(a + sign * eps * directions[i]) if i in directions else a
            for i, a in enumerate(arrays)
        ]
        sides.append((call(rl, F, *tensors(moved)).numpy() * weights).sum())
    numeric = (sides[0] - sides[1]) / (2 * eps)
    size = sum(
        float(np.abs(x[i].grad.numpy() * directions[i]).sum())
        for i in real
        if x[i].grad is not None
    )
    assert abs(analytic - numeric) <= 1e-6 * max(size, 1e-3)
    for i in real:
        assert x[i].grad is None or x[i].grad.shape == arrays[i].shape


@pytest.mark.peer
@pytest.mark.parametrize(("name", "call", "oracle", "inputs"), ROWS, ids=IDS)
def test_peer(name, call, oracle, inputs, torch):
    arrays = draw(inputs, np.float32)
    x = tensors(arrays, requires_grad=True)
    y = [torch.from_numpy(np.array(a, order="K")) for a in arrays]
    for tensor in y:
        if tensor.is_floating_point():
            tensor.requires_grad_()
    out = call(rl, F, *x)
    expected = call(torch, torch.nn.functional, *y)
    assert tuple(out.shape) == tuple(expected.shape)
    assert str(out.dtype).split(".")[1] == str(expected.dtype).split(".")[1]
    weights = np.asarray(
        np.random.default_rng(3).standard_normal(out.shape), out.detach().numpy().dtype
    )
    (out * rl.from_numpy(weights)).sum().backward()
    (expected * torch.from_numpy(weights)).sum().backward()
    np.testing.assert_allclose(
        out.detach().numpy(), expected.detach().numpy(), rtol=2e-5, atol=2e-5
    )
    for ours, theirs in zip(x, y, strict=True):
        if theirs.is_floating_point() and theirs.grad is not None:
            scale = max(1.0, float(theirs.grad.abs().max()) if theirs.numel() else 1.0)
            np.testing.assert_allclose(
                ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-4, atol=2e-5 * scale
            )


def recorded_names():
    """Names that the sources pass to record() and record_view() as literals."""
    names = set()
    for path in SOURCE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            recorded = isinstance(node, ast.Call) and getattr(node.func, "id", "").startswith(
                "record"
            )
            if recorded and isinstance(node.args[0], ast.Constant):
                names.add(node.args[0].value)
    return {name for name in names if not name.endswith("_backward")}


def test_graphs_of_all_operations_die_with_their_results():
    gc.collect()
    gc.disable()
    try:
        for _, call, _, inputs in ROWS:
            x = tensors(draw(inputs, np.float32), requires_grad=True)
            out = call(rl, F, *x)
            if out.requires_grad:
                out.sum().backward()
        F.dropout(rl.ones(3, requires_grad=True)).sum().backward()
        del x, out
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_every_operation_has_a_row(monkeypatch):
    seen = set()
    original = autograd.Node.__init__

    def note(self, name, *args):
        seen.add(name)
        original(self, name, *args)

    monkeypatch.setattr(autograd.Node, "__init__", note)
    for name, call, _, inputs in ROWS:
        x = tensors(draw(inputs, np.float32), requires_grad=True)
        out = call(rl, F, *x)
        if name.startswith("to-"):
            continue
        if out.requires_grad:
            out.sum().backward()
    x = rl.randn(4, 3, requires_grad=True)
    F.dropout(x, 0.5)
    F.linear_cross_entropy(x, rl.randn(5, 3, requires_grad=True), rl.tensor([0, 1, 2, 3]))
    (x * rl.randn(3, requires_grad=True)).sum().backward(create_graph=True)
    rl.randn(3).double().requires_grad_().float().sum()
    assert recorded_names() - seen == set()
