"""What fresh looks found, and every case of its kind."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

import rushlight as rl
import rushlight.nn.functional as F
from rushlight import CompileError, GraphError, _core


def test_single_elements_are_views():
    x = rl.arange(4.0).requires_grad_()
    (x[0] * 3 + x[1] ** 2 + x[rl.tensor(2)]).backward()
    assert x.grad.tolist() == [3, 2, 1, 0]
    y = rl.zeros(3, 3, dtype=rl.int64)
    y[0, 1] += 1
    y[2, 2] += 5
    z = rl.zeros(2, 3)
    z[0, 1].fill_(2)
    z[1, 0] = 7
    part = z[1, 2]
    part += 4
    assert y.tolist() == [[0, 1, 0], [0, 0, 0], [0, 0, 5]]
    assert z.tolist() == [[0, 2, 0], [7, 0, 4]]
    assert rl.stack([x[3], x[1] * 2, (x * x).mean()]).tolist() == [3, 2, 3.5]


PARTS = {
    "slice": lambda x: x[0:1],
    "element": lambda x: x[0],
    "split": lambda x: x.split(1)[0],
    "both halves": lambda x: rl.cat(x.split(1)[::-1]),
    "embedding": lambda x: F.embedding(rl.tensor([0]), x.view(2, 1)),
    "gather": lambda x: x.gather(0, rl.tensor([0])),
    "array": lambda x: x[rl.tensor([0, 0])],
}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", PARTS)
def test_second_derivatives_of_parts_stop_by_name(name, first):
    x = rl.tensor([2.0, 3.0], requires_grad=True)
    a = PARTS[name](x) if first else None
    whole = (x * x).sum()
    a = PARTS[name](x) if a is None else a
    (whole + (a * a * a).sum()).backward(create_graph=True)
    gradient, x.grad = x.grad, None
    with pytest.raises(GraphError, match="no derivative of its own"):
        gradient.sum().backward()


def test_what_backward_reads_must_not_change():
    keep = rl.ones(4, 4, dtype=rl.bool_)
    q = rl.randn(1, 1, 4, 2, requires_grad=True)
    out = F.scaled_dot_product_attention(q, q, q, attn_mask=keep)
    keep[:, 0] = False
    with pytest.raises(GraphError, match="changed in place"):
        out.sum().backward()
    for pick in (lambda x, i: x[i], lambda x, i: x.gather(0, i)):
        x, i = rl.randn(3, requires_grad=True), rl.tensor([0, 0])
        out = pick(x, i)
        i += 1
        with pytest.raises(GraphError, match="changed in place"):
            out.sum().backward()
    for keepdim in (False, True):
        out = rl.randn(3, 2, requires_grad=True).amax(0, keepdim=keepdim)
        out += 1
        with pytest.raises(GraphError, match="changed in place"):
            out.sum().backward()


HOST_STEPS = {
    "cast": lambda x: rl.arange(3).float() * x,
    "labels": lambda x: F.cross_entropy(x.view(1, 3), rl.tensor([1])),
    "comparison": lambda x: rl.maximum(x, x * 2).sum().backward(),
    "array index": lambda x: x[rl.tensor([0, 1])],
    "assignment": lambda x: x.detach().__setitem__(rl.tensor([0]), 1.0),
    "item": lambda x: x.sum().item(),
    "numpy": lambda x: (x * 1).detach().numpy(),
    "randperm": lambda x: rl.randperm(3),
    "integers": lambda x: rl.zeros(3, dtype=rl.int64),
}


@pytest.mark.parametrize("name", HOST_STEPS)
def test_a_recording_refuses_what_it_cannot_repeat(name):
    x = rl.tensor([1.0, 2.0, 3.0], requires_grad=True)
    _core.record_start()
    try:
        with pytest.raises(CompileError):
            HOST_STEPS[name](x)
    finally:
        _core.record_stop()


def test_a_recording_is_of_one_thread_and_of_calls_that_worked():
    table, x = rl.randn(3, 2), rl.ones(4)
    _core.record_start()
    other = threading.Thread(target=lambda: rl.randn(8) + 1)
    other.start()
    other.join()
    with pytest.raises(IndexError):
        F.embedding(rl.from_numpy(np.array([9])), table)
    y = x * 3
    program = _core.record_stop()
    assert len(program) == 1
    x += 1
    program.run()
    assert y.tolist() == [6, 6, 6, 6]


def test_threads_leave_the_affinity_alone():
    code = """
import os, time
import rushlight as rl
before = os.sched_getaffinity(0)
x = rl.randn(300, 300)
rl.set_num_threads(2); x @ x; time.sleep(0.05)
rl.set_num_threads(8); x @ x; time.sleep(0.05); x @ x
assert os.sched_getaffinity(0) == before
child = os.fork()
if child == 0:
    for _ in range(5):
        x @ x
        time.sleep(0.01)
    os._exit(os.sched_getaffinity(0) != before)
assert os.waitpid(child, 0)[1] == 0
assert os.sched_getaffinity(0) == before
"""
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("no CPU affinity on this system")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_split_into_one_piece_does_not_alias_gradients():
    x, v = rl.zeros(4, requires_grad=True), rl.zeros(4, requires_grad=True)
    u, r = v.exp(), x * 5
    (a,) = x.split(4)
    z = rl.cat([a]) + u
    ((z * rl.ones(4)).sum() + r.sum()).backward()
    assert v.grad.tolist() == [1, 1, 1, 1]
    assert x.grad.tolist() == [6, 6, 6, 6]
    g = rl.ones(4)
    (a,) = x.split(4)
    y = rl.cat([a])
    y.backward(g, retain_graph=True)
    y.backward(g)
    assert g.tolist() == [1, 1, 1, 1]
