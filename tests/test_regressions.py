"""Faults that were found by using it, each with others of its kind."""

import copy
import os
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

import rushlight as rl
import rushlight.nn.functional as F
from rushlight import CompileError, GraphError, _core, kernels


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
    out = rl.randn(3, 2, requires_grad=True).amax(0, keepdim=True)
    out += 1
    with pytest.raises(GraphError, match="changed in place"):
        out.sum().backward()
    out = rl.randn(3, 2, requires_grad=True).amax(0)  # a view of what is saved
    with pytest.raises(GraphError, match="shares memory"):
        out += 1


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


def test_sizes_of_zero_in_products_and_losses():
    for shape, a, b in (((2, 2, 0), 0, 3), ((2, 2, 3), 3, 0), ((3,), 3, 0), ((0,), 0, 0)):
        layer, x = rl.nn.Linear(a, b), rl.randn(*shape, requires_grad=True)
        y = layer(x)
        y.sum().backward()
        assert y.shape == (*shape[:-1], b)
        np.testing.assert_array_equal(x.grad.numpy(), np.zeros(shape))
    assert (rl.randn(2, 3, 0) @ rl.randn(0, 4)).tolist() == np.zeros((2, 3, 4)).tolist()
    empty = rl.zeros(2, 4, 0, dtype=rl.int64)
    assert F.cross_entropy(rl.randn(2, 5, 4, 0), empty).item() == 0
    assert rl.zeros(0, 3).argmax(-1).shape == (0,)
    assert np.isnan(rl.zeros(0).mean().item())
    assert np.isnan(rl.zeros(0, 3).mean(0).numpy()).all()
    assert F.softmax(rl.tensor(2.0, requires_grad=True), 0).item() == 1


@pytest.mark.parametrize("name", ["split", "chunk", "unbind", "narrow", "cat", "index_select"])
def test_cutting_needs_an_axis(name):
    x, i = rl.tensor(1.0), rl.tensor([0])
    calls = {
        "split": lambda: x.split(1),
        "chunk": lambda: x.chunk(1),
        "unbind": lambda: x.unbind(),
        "narrow": lambda: x.narrow(0, 0, 1),
        "cat": lambda: rl.cat([x, x]),
        "index_select": lambda: x.index_select(0, i),
    }
    with pytest.raises(rl.ShapeError, match=name):
        calls[name]()
    assert x.mean(0).item() == x.sum(-1).item() == 1


def test_values_and_names_as_in_pytorch():
    assert (rl.tensor([6]) & rl.tensor([3])).tolist() == [2]
    assert (rl.tensor([6]) | 1).tolist() == [7]
    assert (~rl.tensor([6])).tolist() == [-7]
    assert (~rl.tensor([True])).tolist() == [False]
    assert rl.ones(2, dtype=rl.bool).dtype is rl.bool_
    assert rl.ones(1).device.type == rl.device("cpu:0").type == "cpu"
    assert not rl.cuda.is_available()
    x = rl.zeros(2, requires_grad=True)
    x.norm().backward()
    assert x.grad.tolist() == [0, 0]
    y = rl.tensor([[3.0, 4.0]], dtype=rl.float64, requires_grad=True)
    (y.norm(dim=1) * 10).sum().backward()
    np.testing.assert_allclose(y.grad.numpy(), [[6, 8]], rtol=1e-15)


def test_wrong_arguments_are_refused():
    x = rl.ones(2, requires_grad=True)
    with pytest.raises(TypeError, match="dim"):
        F.softmax(x)
    with pytest.raises(ValueError, match="chunk_rows"):
        F.linear_cross_entropy(rl.ones(2, 3), rl.ones(4, 3), rl.tensor([0, 1]), chunk_rows=-1)
    with pytest.raises(rl.DtypeError, match="backward"):
        (x * 2).backward(rl.ones(2, dtype=rl.float64))
    i = rl.tensor([1, 2])
    with pytest.raises(rl.DtypeError, match="add_"):
        i += 0.5
    for wrong in (lambda: x.to(123), lambda: x.to(foo="cpu"), lambda: rl.nn.ReLU().to(3)):
        with pytest.raises(TypeError, match="to"):
            wrong()
    with pytest.raises(rl.DtypeError, match="bfloat16"):
        x.to(rl.bfloat16)
    with pytest.raises(rl.DtypeError, match="module"):
        rl.nn.Linear(1, 1).to(rl.int64)
    with pytest.raises(TypeError, match="complex"):
        rl.exp(np.array([1 + 2j]))
    with pytest.raises(ValueError, match="only float32 and float64"):
        rl.optim.SGD([rl.zeros(2, dtype=rl.float16)], lr=0.1)


def test_modules_keep_what_they_are():

    net = rl.nn.Linear(2, 2)
    net.register_buffer("c", rl.ones(2), persistent=False)
    net.b = rl.nn.Buffer(rl.ones(2), persistent=False)
    twin = copy.deepcopy(net)
    for module in (net, twin):
        assert list(module.state_dict()) == ["weight", "bias"]
        assert module.double().c.dtype is module.b.dtype is rl.float64
    weight = net.weight.array
    assert net.double().weight.array is weight  # nothing to convert
    del net.c
    net.c = rl.nn.Buffer(rl.ones(1))
    assert "c" in net.state_dict()
    other = copy.copy(net)
    other.extra = rl.nn.Parameter(rl.ones(1))
    assert "extra" not in net.state_dict()
    with pytest.raises(TypeError, match="Parameter"):
        net.register_parameter("w", 3)
    with pytest.raises(ValueError, match="own child"):
        net.a = net
    assert copy.deepcopy(rl.nn.Parameter(rl.tensor([1]), requires_grad=False)).tolist() == [1]
    assert rl.nn.Parameter(rl.ones(2, 3).t()).array.flags.c_contiguous


def test_clipping_leaves_gradients_without_a_finite_norm():
    p = rl.zeros(2, requires_grad=True)
    p.grad = rl.tensor([np.inf, 5.0])
    rl.nn.utils.clip_grad_norm_([p], 1.0)
    assert p.grad.tolist() == [np.inf, 5]


def test_in_place_products_die_at_once():
    import gc

    w = rl.ones(3, requires_grad=True)
    gc.collect()
    gc.disable()
    try:
        y = w * 2
        y.mul_(w)
        gone = weakref.ref(y)
        del y
        assert gone() is None
    finally:
        gc.enable()


def test_optimizers_refuse_as_a_whole():
    p, q = rl.nn.Parameter(rl.ones(1)), rl.nn.Parameter(rl.ones(1))
    optimizer = rl.optim.Adam([q])
    with pytest.raises(ValueError, match="twice"):
        optimizer.add_param_group({"params": [p, p]})
    optimizer.add_param_group({"params": [p]})
    with pytest.raises(ValueError, match="name"):
        rl.optim.Adam([("a", rl.ones(1)), ("a", rl.ones(1))])
    state = optimizer.state_dict()
    state["param_groups"][0]["lr_arrays"] = "x"
    optimizer.load_state_dict(state)
    assert isinstance(optimizer.param_groups[0]["lr_arrays"], dict)
    del state["state"]["0.0"]
    with pytest.raises(ValueError, match=r"0\.0"):
        optimizer.load_state_dict(state)


def test_operands_with_strides_are_taken_as_they_are():
    x, w, v = rl.randn(4, 6), rl.randn(8, 6), rl.randn(16)
    residual = rl.randn(8, 4).t()
    got = F.linear(x, w, v[::2], residual=residual)
    expected = x.numpy() @ w.numpy().T + v.numpy()[::2] + residual.numpy()
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-5)
    for norm in (F.layer_norm, F.rms_norm):
        plain = norm(x, (6,), v[:6].clone())
        assert norm(x, (6,), rl.stack([v[:6], v[6:12]], 1)[:, 0]).tolist() == plain.tolist()
    table = rl.randn(6, 4).t().requires_grad_()
    rows = F.embedding(rl.tensor([3, 0, 3]), table)
    rows.sum().backward()
    assert rows.tolist() == table.detach().numpy()[[3, 0, 3]].tolist()
    assert table.grad[:, 0].tolist() == [1, 0, 0, 2]


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda x: F.linear(x.long(), x), rl.DtypeError, "linear: input is int64"),
        (lambda x: F.linear(x, x, rl.ones(4).double()), rl.DtypeError, "linear: bias is float64"),
        (lambda x: x.__setitem__(9, 1.0), IndexError, "setitem"),
        (lambda x: x.__setitem__(0, rl.ones(2, 5)), rl.ShapeError, "setitem"),
        (lambda x: x.copy_(rl.ones(2, 4, 5)), rl.ShapeError, "copy_"),
        (lambda x: rl.zeros(2, dtype=rl.bfloat16), rl.DtypeError, "bfloat16"),
        (lambda x: rl.multinomial(rl.ones(3), -1), ValueError, "num_samples"),
        (lambda x: rl.set_rng_state(rl.ones(2)), ValueError, "int64"),
        (lambda x: F.scaled_dot_product_attention(x, x, x, dropout_p=-1), ValueError, "dropout_p"),
        (lambda x: F.cross_entropy(x, rl.arange(4), weight=rl.ones(3)), rl.ShapeError, "cross_ent"),
        (lambda x: F.cross_entropy(x, rl.arange(4) + 4, rl.ones(5)), IndexError, "cross_entropy"),
        (lambda x: rl.optim.SGD([x], lr=float("nan")), ValueError, "lr"),
        (lambda x: rl.optim.SGD([{"params": [x], "lr": -1.0}]), ValueError, "lr"),
        (lambda x: rl.optim.Adam([x], betas=(0.9,)), ValueError, "betas"),
        (lambda x: rl.nn.Linear(2, 3, device="cuda"), rl.DeviceError, "CPU"),
    ],
)
def test_errors_name_the_operation_called(call, error, says):
    with pytest.raises(error, match=says):
        call(rl.ones(4, 5))


def test_assignment_drops_surplus_axes_of_one():
    x = rl.zeros(2, 3)
    x[0] = rl.ones(1, 1, 3)
    x[1, 2] = rl.tensor([5.0])
    assert x.tolist() == [[1, 1, 1], [0, 0, 5]]


def test_inference_mode_takes_a_mode():
    x = rl.ones(1, requires_grad=True)
    with rl.inference_mode():
        assert not (x * 2).requires_grad
        with rl.inference_mode(False):
            assert (x * 2).requires_grad
    assert not rl.inference_mode(lambda: x * 2)().requires_grad
    assert not rl.inference_mode()(lambda: x * 2)().requires_grad


def test_what_no_gradient_needs_is_freed():
    frozen, x = rl.ones(3, 3), rl.ones(3, 3, requires_grad=True)
    for operation in (rl.mul, rl.div, rl.matmul):
        middle = x * 2
        gone = weakref.ref(middle)
        out = operation(middle, frozen)
        del middle
        assert gone() is None
        out.sum().backward()


def test_python_floats_keep_the_precision_of_their_place():
    assert rl.tensor([0.1], dtype=rl.float64).tolist() == [0.1]
    x = rl.zeros(2, dtype=rl.float64)
    x[0] = 0.1
    assert x[0].item() == 0.1
    assert x.copy_(0.1).tolist() == [0.1, 0.1]
    assert (rl.ones(1, dtype=rl.float64) * [0.1]).tolist() == [0.1]
    model = rl.nn.Linear(1, 1).double()
    model.load_state_dict({"weight": [[0.1]], "bias": [0.2]})
    assert (model.weight.item(), model.bias.item()) == (0.1, 0.2)


def test_numpy_numbers_stand_for_pythons():
    x = rl.tensor([[1.0, 5.0], [3.0, 2.0]], requires_grad=True)
    assert rl.max(x, np.int64(1)).values.tolist() == [5, 3]
    assert rl.sum(x, np.int64(0)).tolist() == [4, 7]
    assert rl.arange(np.int64(3)).dtype == rl.int64
    assert rl.full((2,), np.float32(3)).tolist() == [3, 3]
    for y in (np.float64(2) * x, np.float32(2) - x, np.ones(2) / x):
        assert isinstance(y, rl.Tensor)
        assert y.requires_grad
    assert (2 ** rl.arange(3)).tolist() == [1, 2, 4]
    assert rl.clamp(rl.arange(4), max=1.5).dtype == rl.float32


def test_what_is_no_number_is_not_equal():
    assert (rl.ones(2) == None) is False  # noqa: E711
    assert (rl.ones(2) != "a") is True
    assert None in [rl.ones(2), None]


def test_remainder_has_a_slope_and_refuses_zero():
    x = rl.tensor([5.5], requires_grad=True)
    (x % 2).backward()
    assert x.grad.tolist() == [1]
    for operation in (rl.remainder, rl.floor_divide):
        with pytest.raises(ZeroDivisionError, match=operation.__name__):
            operation(rl.arange(3), 0)


def test_conversions_on_request():
    x = rl.ones(2)
    assert x.to(rl.float32) is x
    assert x.to(rl.float32, copy=True) is not x
    assert rl.zeros(2, device="cpu:0").tolist() == [0, 0]
    assert rl.ones(2, dtype=rl.float16).zero_().tolist() == [0, 0]
    assert rl.eye(2, dtype=float).dtype == rl.float32


def test_a_mode_decorates():
    x = rl.ones(1, requires_grad=True)

    @rl.set_grad_enabled(False)
    def double():
        return x * 2

    assert not double().requires_grad
    assert (x * 2).requires_grad


def test_repeat_of_many_axes():
    x = rl.randn(1, 2, 1, 2, 1, 3, 1, requires_grad=True)
    times = (1, 2, 1, 2, 1, 1, 2)
    y = x.repeat(*times)
    np.testing.assert_array_equal(y.detach().numpy(), np.tile(x.detach().numpy(), times))
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), np.full(x.shape, 8.0))
    assert rl.ones(2).repeat(0).shape == (0,)
    for count in (1, 3):  # a copy, also where a view would do
        one = rl.ones(1)
        one.repeat(2, count)[0, 0].fill_(5)
        many = one.repeat(count)
        many[0] = 7
        assert (one.tolist(), many.tolist()) == ([1], [7, *[1] * (count - 1)])
    with pytest.raises(rl.ShapeError, match="repeat"):
        x.repeat(*[-1] * 7)


def test_losses_and_attention_without_heads_or_classes():
    q = rl.randn(1, 0, 3, 8)
    assert F.scaled_dot_product_attention(q, q, q, dropout_p=0.1).shape == (1, 0, 3, 8)
    none, ignored = rl.ones(2, 0), rl.tensor([-100, -100])
    assert F.cross_entropy(none, none, label_smoothing=0.1).item() == 0
    assert F.cross_entropy(none, ignored, weight=rl.ones(0)).item() == 0


def test_backward_within_backward():
    class Last:
        def __del__(self):
            with rl.enable_grad():
                (rl.ones(1, requires_grad=True) * 2).backward()

    x, g = rl.ones(3, requires_grad=True), rl.ones(3)
    g.last = Last()
    x.grad = g
    del g
    (x * 2).sum().backward(create_graph=True)
    assert x.grad.tolist() == [3, 3, 3]


def test_the_door_takes_no_array_without_strides():
    import ctypes

    with pytest.raises(TypeError, match="fill"):
        kernels.call(kernels.K.fill, (ctypes.c_float * 3)(), 2.0)


def test_integers_to_a_fraction_are_fractions():
    assert (rl.tensor([1, 2]) ** 2.0).dtype == rl.float32
    assert (rl.tensor([1, 2]) ** 2).dtype == rl.int64


def test_a_wrong_number_of_threads_is_refused():
    environment = {**os.environ, "RUSHLIGHT_NUM_THREADS": "many"}
    done = subprocess.run(
        [sys.executable, "-c", "import rushlight"], env=environment, capture_output=True, text=True
    )
    assert "RUSHLIGHT_NUM_THREADS=many" in done.stderr
