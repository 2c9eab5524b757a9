"""Results do not depend on threads; levels agree; a recorded step replays bit for bit; fork is safe."""

import os
import subprocess
import sys

import numpy as np
import pytest

import rushlight as rl
import rushlight.nn.functional as F
from rushlight import _core, kernels, nn, optim
from rushlight.random import default_generator


class Block(nn.Module):
    """A transformer block that uses every hot kernel."""

    def __init__(self, width=48, heads=4):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.RMSNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (
            z.view(b, t, self.heads, -1).transpose(1, 2)
            for z in self.qkv(self.norm1(x)).split(d, 2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x = x + self.drop(self.proj(y))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, vocab=65):
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(vocab, 48), Block(), nn.Linear(48, vocab)

    def forward(self, tokens, targets):
        return F.cross_entropy(
            self.head(self.block(self.embed(tokens))).flatten(0, 1), targets.flatten()
        )


def train(steps, dtype=rl.float32):
    rl.manual_seed(1)
    model = Model().to(dtype)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    tokens, targets = rl.randint(0, 65, (9, 61)), rl.randint(0, 65, (9, 61))
    losses = []
    for _ in range(steps):
        loss = model(tokens, targets)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, {k: v.numpy().copy() for k, v in model.state_dict().items()}


def test_any_number_of_threads_gives_the_same_bits():
    results = []
    for threads in (1, 2, 3):
        rl.set_num_threads(threads)
        results.append(train(3))
    for losses, state in results[1:]:
        assert losses == results[0][0]
        for key, value in state.items():
            np.testing.assert_array_equal(value, results[0][1][key])


@pytest.mark.parametrize(
    "shape", [(64, 784, 128), (1000, 65, 385), (37, 1, 700), (3, 5000, 7), (513, 300, 300)]
)
def test_products_and_reductions_over_threads(shape):
    m, k, n = shape
    results = []
    for threads in (1, 2, 3):
        rl.set_num_threads(threads)
        rl.manual_seed(3)
        a, b = rl.randn(m, k, requires_grad=True), rl.randn(n, k, requires_grad=True)
        bias = rl.randn(n, requires_grad=True)
        y = F.linear(a, b, bias)
        y.exp().clamp(max=3).sum().backward()
        results.append(
            [
                t.numpy()
                for t in (
                    y.detach(),
                    a.grad,
                    b.grad,
                    bias.grad,
                    a.detach().sum(0),
                    F.softmax(y, -1).detach().mean(),
                )
            ]
        )
    for other in results[1:]:
        for x, y in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(x, y)


def test_levels_agree():
    used = _core.level()
    try:
        losses = {}
        for level in _core.LEVELS:
            if _core.set_level(level):
                losses[level] = train(20)[0]
        for other in losses.values():
            np.testing.assert_allclose(other, losses["base"], rtol=1e-5)
    finally:
        _core.set_level(used)


def test_forced_level():
    code = "import rushlight; print(rushlight._core.level())"
    for level, word in (("base", "base"), ("nonsense", "not a level")):
        done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "RUSHLIGHT_ISA": level}, capture_output=True, text=True, check=False)  # fmt: skip
        assert word in done.stdout + done.stderr


def test_a_recorded_step_replays_bit_for_bit():
    """The contract of recorded programs: the mlp step as one list of kernel calls, equal to eager mode."""

    def build():
        rl.manual_seed(0)
        model = nn.Sequential(nn.Linear(784, 128), nn.SiLU(), nn.Dropout(0.1), nn.Linear(128, 10))
        optimizer = optim.AdamW(model.parameters(), lr=1e-3)
        x, y = rl.randn(64, 784), rl.randint(0, 10, (64,))

        def step():
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss

        return model, optimizer, x, step

    eager, _, x, step = build()
    losses = []
    for i in range(6):
        if i == 4:
            x *= 0.5
        losses.append(step().item())
    after = default_generator.state.copy()

    recorded, optimizer, x, step = build()
    assert step().item() == losses[0]
    _core.record_start()
    loss = step()
    program = _core.record_stop()
    assert loss.item() == losses[1]
    for i in range(2, 6):
        if i == 4:
            x *= 0.5  # inputs are read from their buffers, and so are counters and rates
        program.run()
        assert loss.item() == losses[i]
    for a, b in zip(eager.parameters(), recorded.parameters(), strict=True):
        np.testing.assert_array_equal(a.detach().numpy(), b.detach().numpy())
    np.testing.assert_array_equal(default_generator.state, after)
    assert len(program) > 10
    before = recorded[0].weight.detach().numpy().copy()
    optimizer.param_groups[0]["lr_arrays"][kernels.FLOAT32][0] = 0.0
    optimizer.param_groups[0]["weight_decay"] = 0.0
    program.run()
    np.testing.assert_array_equal(recorded[0].weight.detach().numpy(), before)


def test_programs_own_their_memory():
    x = rl.randn(1000)
    _core.record_start()
    y = (x * 2).exp()
    program = _core.record_stop()
    address = y.numpy().ctypes.data
    del x, y
    others = [rl.randn(1000) for _ in range(50)]
    before = [other.numpy().copy() for other in others]
    program.run()
    assert all(other.numpy().ctypes.data != address for other in others)
    for other, values in zip(others, before, strict=True):
        np.testing.assert_array_equal(other.numpy(), values)
    with pytest.raises(RuntimeError, match="record_stop"):
        _core.record_stop()
    del program


def test_fork_after_use():
    if not hasattr(os, "fork"):
        pytest.skip("no fork on this system")
    code = """
import os, rushlight as rl
a = rl.randn(300, 300)
expected = (a @ a).sum().item()
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if (a @ a).sum().item() == expected else 1)
    children.append(pid)
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
assert (a @ a).sum().item() == expected
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=60)


def test_many_python_threads():
    code = """
import threading, rushlight as rl
a = rl.randn(200, 200)
expected = (a @ a).exp().sum().item()
wrong = []
def work():
    for _ in range(50):
        if (a @ a).exp().sum().item() != expected:
            wrong.append(1)
def change():
    for i in range(2000):
        rl.set_num_threads(i % 5 + 1)
threads = [threading.Thread(target=f) for f in [work] * 8 + [change]]
[t.start() for t in threads]; [t.join() for t in threads]
assert not wrong
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("fused", [False, True])
def test_a_recorded_loss_counts_its_labels_anew(fused):
    """Ignored labels change from step to step: their number must not be frozen into the program."""
    w, h = rl.randn(50, 8, requires_grad=True), rl.randn(40, 8, requires_grad=True)
    y = rl.randint(0, 50, (40,))

    def step():
        w.grad = h.grad = None
        if fused:
            loss = F.linear_cross_entropy(h, w, y, chunk_rows=16)
        else:
            loss = F.cross_entropy(F.linear(h, w), y)
        loss.backward()
        return loss

    step()
    _core.record_start()
    loss = step()
    program = _core.record_stop()
    recorded = [w.grad, h.grad]
    y[5:30] = -100
    program.run()
    eager = step()
    assert loss.item() == eager.item()
    for replayed, fresh in zip(recorded, [w.grad, h.grad], strict=True):
        np.testing.assert_array_equal(replayed.numpy(), fresh.numpy())
