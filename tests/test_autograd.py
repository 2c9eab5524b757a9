"""The engine: what users of other engines ran into, and what ours promises."""

import gc
import threading
import weakref

import numpy as np
import pytest

import rushlight as rl
import rushlight.nn.functional as F
from rushlight import GraphError


def leaf(*shape):
    return rl.randn(*shape, requires_grad=True)


@pytest.mark.parametrize(("a", "b"), [((), (2,)), ((1,), (3, 4)), ((2, 1, 4, 8), (2, 1, 4, 1))])
def test_broadcast_gradients_have_the_operands_shape(a, b):
    x, y = leaf(*a), leaf(*b)
    (x * y).sum().backward()
    assert x.grad.shape == x.shape
    assert y.grad.shape == y.shape
    expected = np.broadcast_to(y.detach().numpy(), np.broadcast_shapes(a, b))
    axes = tuple(
        i
        for i, n in enumerate(expected.shape)
        if ([1] * 9 + list(a))[len(a) + 9 - expected.ndim + i] != n
    )
    np.testing.assert_allclose(
        x.grad.numpy(), expected.sum(axes, keepdims=True).reshape(a), rtol=1e-5
    )


def test_broadcast_against_an_empty_axis():
    x = leaf(4, 1)
    (x + rl.zeros(4, 0)).sum().backward()
    assert (x.grad.numpy() == np.zeros((4, 1))).all()


def test_reused_intermediate():
    a = rl.tensor(2.0, requires_grad=True)
    b = 3 * a
    (b * b + b).backward()
    assert a.grad.item() == 39


def test_aliased_gradients():
    a, b = leaf(3), leaf(3)
    ((a + b) + a).sum().backward()
    assert a.grad.tolist() == [2, 2, 2]
    assert b.grad.tolist() == [1, 1, 1]
    x = leaf(3)
    (x + x).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    assert a.grad is not b.grad
    a.grad.zero_()
    assert b.grad.tolist() == [1, 1, 1]


def test_expanded_gradients_are_not_accumulated_into():
    x = leaf(3, 4)
    y = x * 1.0
    (y.mean(1).sum() + y[:, [0, 0]].sum() + y.sum()).backward()
    expected = np.full((3, 4), 1.25)
    expected[:, 0] += 2
    np.testing.assert_allclose(x.grad.numpy(), expected)


QKV = {
    "thirds": lambda x: (x[0], x[1], x[2]),
    "overlapping": lambda x: (x[0], x[0], x[2]),
    "repeated": lambda x: (x[0, :, :1].expand(2, 5, 4), x[1], x[2]),
    "heads of a row": lambda x: x.view(2, 5, 3, 4).transpose(1, 2).split(1, 1),
    "columns of a row": lambda x: [z.transpose(0, 1) for z in x.view(5, 2, 12).split(4, 2)],
    "uneven": lambda x: x.view(1, 5, 6, 4).transpose(1, 2).split([2, 2, 2], 1),
    "in another order": lambda x: x.view(2, 5, 3, 4).transpose(1, 2).split(1, 1)[::-1],
}


@pytest.mark.parametrize("name", QKV)
def test_gradients_of_attention_meet_again(name):
    """Whether or not they lie side by side in one buffer, they are those of separate copies."""
    x = rl.randn(3, 2, 5, 4, dtype=rl.float64, requires_grad=True)
    gradients = []
    for separate in (False, True):
        x.grad = None
        q, k, v = (z.clone() if separate else z for z in QKV[name](x))
        weight = rl.arange(4, dtype=rl.float64) + 1
        (F.scaled_dot_product_attention(q, k, v) * weight).sum().backward()
        gradients.append(x.grad.numpy().copy())
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("length", [100_000])
def test_deep_graph(length):
    x = rl.tensor(1.0, requires_grad=True)
    y = x
    for _ in range(length):
        y = y + 1.0
    y.backward()
    assert x.grad.item() == 1
    z = x
    for _ in range(length):
        z = z + 1.0
    del z  # never run: the graph is freed without recursion


FUNCTIONS = {
    "mul": lambda x: x * 2,
    "exp": rl.exp,
    "softmax": lambda x: F.softmax(x, -1) * rl.arange(4.0),
    "norm": lambda x: F.layer_norm(x, (4,)) * rl.arange(4.0),
    "linear": lambda x: F.linear(x, rl.ones(2, 4)),
    "getitem": lambda x: x[1:],
    "index": lambda x: x[[0, 0, 1]],
    "embedding": lambda x: F.embedding(rl.tensor([0, 0, 2]), x),
    "split": lambda x: rl.cat(x.split(2, 1)[::-1], 1) * rl.arange(4.0),
    "half": lambda x: x.split(2, 1)[0],
    "transpose": lambda x: x.T * 3,
    "sum": lambda x: x.sum(0),
    "gather": lambda x: rl.gather(x, 1, rl.tensor([[0, 0], [1, 3], [2, 2]])),
    "attention": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    "cross_entropy": lambda x: F.cross_entropy(x, rl.tensor([0, 3, 1])),
    "stack": lambda x: rl.stack([x, x * 2]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("first", [True, False])
def test_every_operation_adds_to_a_gradient(name, first):
    f = FUNCTIONS[name]
    data = rl.randn(3, 4)

    def gradient(build):
        x = data.clone().requires_grad_()
        inner = x * 1.0
        build(inner).backward()
        return x.grad.numpy()

    alone = gradient(lambda x: f(x).sum())
    both = gradient(lambda x: f(x).sum() + x.sum() if first else x.sum() + f(x).sum())
    np.testing.assert_allclose(both, alone + 1, rtol=1e-5, atol=1e-5)
    x = data.clone().requires_grad_()
    f(x).sum().backward()
    x.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), alone + 1, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "read",
    [
        lambda t, i: t[i],
        lambda t, i: F.embedding(i, t),
        lambda t, i: rl.gather(t, 0, i.unsqueeze(1).expand(3, 4)),
        lambda t, i: rl.index_select(t, 0, i),
    ],
)
def test_repeated_indices_add_up(read):
    table = leaf(3, 4)
    read(table, rl.tensor([1, 1, 2])).sum().backward()
    assert table.grad.tolist() == [[0] * 4, [2] * 4, [1] * 4]


def test_saved_input_changed_in_place():
    x = leaf(3)
    y = x * 2
    z = (y * y).sum()
    with rl.no_grad():
        y.view(3, 1)[0] = 5.0
    with pytest.raises(GraphError, match=r"mul.*changed in place"):
        z.backward()


def test_saved_output_changed_in_place():
    x = leaf(3)
    y = x.exp()
    z = y.sum()
    y += 1
    with pytest.raises(GraphError, match="exp"):
        (z + y.sum()).backward()


def test_changing_what_nobody_saved_is_fine():
    x = leaf(3)
    y = x + 1
    z = (y + 2).sum()
    with rl.no_grad():
        y.zero_()
    z.backward()
    assert x.grad.tolist() == [1, 1, 1]


def test_in_place_operations_have_gradients():
    x = leaf(3)
    y = x * 2
    y += 1
    y *= 3
    y.sum().backward()
    assert x.grad.tolist() == [6, 6, 6]


def test_in_place_on_leaf_or_recorded_view_is_refused():
    x = leaf(3)
    with pytest.raises(GraphError, match="no_grad"):
        x += 1
    y = x * 2
    view = y[1:]
    with pytest.raises(GraphError, match="view"):
        y += 1
    with pytest.raises(GraphError, match="view"):
        view.mul_(2)


def test_partial_assignment_names_the_alternative():
    x = leaf(3) * 1
    with pytest.raises(GraphError, match="where"):
        x[0] = 1.0
    with pytest.raises(GraphError, match="where"):
        rl.zeros(3)[0] = x.sum()


def test_no_grad_in_every_form():
    x = leaf(2)
    with rl.no_grad():
        assert not (x * 2).requires_grad
        with rl.enable_grad():
            assert (x * 2).requires_grad
        assert not rl.is_grad_enabled()
    assert rl.is_grad_enabled()

    @rl.no_grad()
    def decorated():
        return x * 2

    @rl.no_grad
    def bare():
        return x * 2

    assert not decorated().requires_grad
    assert not bare().requires_grad
    with pytest.raises(ZeroDivisionError), rl.no_grad():
        raise ZeroDivisionError
    assert rl.is_grad_enabled()

    @rl.no_grad()
    def generator():
        for _ in range(2):
            yield rl.is_grad_enabled(), x * 2

    for inside, y in generator():
        assert not inside
        assert not y.requires_grad
        assert rl.is_grad_enabled()
    seen = []

    def other_thread():
        seen.append(rl.is_grad_enabled())

    with rl.no_grad():
        thread = threading.Thread(target=other_thread)
        thread.start()
        thread.join()
    assert seen == [True]
    with rl.set_grad_enabled(False):
        assert not (x * 2).requires_grad
    assert rl.is_grad_enabled()


def test_threads_share_a_leaf():
    x = rl.ones(5, requires_grad=True)

    def work():
        for _ in range(1000):
            (x * 2).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert x.grad.tolist() == [8000] * 5


def test_integers_have_no_gradient():
    with pytest.raises(rl.DtypeError):
        rl.tensor([1, 2], requires_grad=True)
    with pytest.raises(rl.DtypeError):
        rl.tensor([1, 2]).requires_grad_()
    assert not leaf(3).argmax().requires_grad
    assert not (leaf(3) > 0).requires_grad


def test_float32_stays():
    x = rl.ones(3)
    for y in (
        x * 2.0, x + np.float64(1), 1 / x, x ** np.float64(2), x - 1, rl.where(x > 0, x, 0.0), x.sum() + x.mean(),
        x * rl.tensor(2.0, dtype=rl.float64), rl.tensor(1.0) + rl.tensor(1.0), x + np.int64(3), x * True, rl.maximum(x, 0.0),
    ):  # fmt: skip
        assert y.dtype == rl.float32
    assert (rl.tensor([1, 2]) * 0.5).dtype == rl.float32
    assert (rl.tensor([1, 2]) + 1).dtype == rl.int64
    assert (x * rl.ones(3, dtype=rl.float64)).dtype == rl.float64


def test_graphs_die_with_their_loss():
    gc.collect()
    gc.disable()
    try:
        x = leaf(4)
        y = x.exp()
        watch = [
            weakref.ref(y),
            weakref.ref(y.grad_fn),
            weakref.ref(F.softmax(y, -1).tanh().grad_fn),
        ]
        loss = (y * 2).sum()
        del y
        assert watch[0]() is None or watch[1]() is not None
        assert watch[2]() is None
        total = 0.0
        for _ in range(3):
            loss = F.linear(F.silu(x.exp()), rl.ones(2, 4)).sum()
            total = total + loss.detach()
            loss.backward()
        del loss
        assert watch[1]() is None
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_adding_up_losses_keeps_memory_flat():
    x = leaf(1000, 100)
    total = 0.0
    sizes = []
    for _ in range(5):
        loss = (x * 2).sum()
        loss.backward()
        total += loss  # the graph of a loss that was run backward is gone
        sizes.append(rl.memory_stats()["in_use"])
    assert sizes[-1] - sizes[1] < 100_000


def test_intermediates_nobody_saved_are_freed():
    before = rl.memory_stats()["in_use"]
    x = leaf(256, 1024)
    y = ((x + 1) + 2) + 3
    assert rl.memory_stats()["in_use"] - before < 2.5 * 4 * 256 * 1024
    del y


def test_backward_twice():
    x = leaf(3)
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    np.testing.assert_allclose(x.grad.numpy(), 4 * x.detach().numpy(), rtol=1e-6)
    with pytest.raises(GraphError, match="retain_graph"):
        y.backward()


def test_backward_needs_a_graph_and_a_scalar():
    with pytest.raises(GraphError, match="require grad"):
        rl.ones(1).backward()
    with pytest.raises(GraphError, match="scalar"):
        leaf(3).exp().backward()
    with pytest.raises(rl.ShapeError):
        leaf(3).exp().backward(rl.ones(4))
    x = leaf(3)
    (x * 2).backward(rl.tensor([1.0, 2.0, 3.0]))
    assert x.grad.tolist() == [2, 4, 6]
    x = rl.ones(1, requires_grad=True)
    x.backward()
    assert x.grad.tolist() == [1]


def test_second_derivatives_or_a_clear_word():
    x = rl.tensor([0.5, 2.0], requires_grad=True)
    (x * x * x).sum().backward(create_graph=True)
    first = x.grad
    np.testing.assert_allclose(first.detach().numpy(), 3 * x.detach().numpy() ** 2, rtol=1e-6)
    x.grad = None
    first.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 6 * x.detach().numpy(), rtol=1e-6)
    x.grad = None
    F.gelu(x).sum().backward(create_graph=True)
    with pytest.raises(GraphError, match="gelu_backward"):
        x.grad.sum().backward()


def test_tensors_take_attributes_and_weak_references():
    x = rl.ones(2)
    x.note = "here"
    assert x.note == "here"
    assert weakref.ref(x)() is x
    assert x in {x: 1}
