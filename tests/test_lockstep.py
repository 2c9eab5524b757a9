"""Training side by side with PyTorch: same weights, batches and AdamW, same losses."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import rushlight as rl

WORKLOADS = Path(__file__).parent.parent / "bench" / "workloads.py"
IMPORTS = {
    "import torch\n": "import rushlight as torch\n",
    "import torch.nn as nn\n": "import rushlight.nn as nn\n",
    "import torch.nn.functional as F\n": "import rushlight.nn.functional as F\n",
}


def load(framework):
    """The workloads as a module of PyTorch, or of Rushlight with nothing but the imports changed."""
    source = WORKLOADS.read_text()
    if framework == "rushlight":
        for old, new in IMPORTS.items():
            assert old in source
            source = source.replace(old, new)
    name = f"workloads_{framework}"
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader=None))
    sys.modules[name] = module
    exec(compile(source, str(WORKLOADS), "exec"), module.__dict__)
    return module


def models(name):
    if name == "gpt":
        return lambda w: w.GPT(65, 32, 2, 4, 64), 65, (6, 32)
    return lambda w: w.Llama(88, 2, 4, 2, 64, 128, 32), 88, (4, 32)


@pytest.mark.peer
@pytest.mark.parametrize("name", ["gpt", "llama"])
@pytest.mark.parametrize(
    ("dtype", "steps", "tolerance"), [("float32", 200, 1e-3), ("float64", 20, 1e-6)]
)
def test_lockstep(name, dtype, steps, tolerance, torch):
    build, vocab, shape = models(name)
    torch.manual_seed(0)
    theirs = build(load("torch")).to(getattr(torch, dtype))
    ours = build(load("rushlight")).to(getattr(rl, dtype))
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    if name == "llama" and dtype == "float64":
        theirs.cos, theirs.sin = theirs.cos.double(), theirs.sin.double()
        ours.cos, ours.sin = (rl.from_numpy(x.numpy()) for x in (theirs.cos, theirs.sin))
    optimizers = [
        torch.optim.AdamW(theirs.parameters(), lr=1e-3),
        rl.optim.AdamW(ours.parameters(), lr=1e-3),
    ]
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(steps):
        tokens, targets = rng.integers(0, vocab, shape), rng.integers(0, vocab, shape)
        pair = []
        for t, model, optimizer in ((torch, theirs, optimizers[0]), (rl, ours, optimizers[1])):
            loss = model(t.from_numpy(tokens), t.from_numpy(targets))
            optimizer.zero_grad()
            loss.backward()
            t.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            pair.append(loss.item())
        losses.append(pair)
    losses = np.array(losses)
    np.testing.assert_allclose(losses[:, 1], losses[:, 0], rtol=tolerance)
    assert abs(losses[-1, 0] - losses[0, 0]) > 1e-2  # it has moved


@pytest.mark.parametrize("name", ["mlp", "gpt-nano"])
def test_the_script_runs_with_only_its_imports_changed(name):
    record = load("rushlight").measure(name, "float32", 0.02)
    assert record["workload"] == name
    assert record["parameters"] == {"mlp": 101770, "gpt-nano": 809856}[name]
    assert record["ms"] > 0
