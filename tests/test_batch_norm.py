"""Batch normalisation: fault 27, running statistics, agreement with PyTorch, gradients."""

import copy

import numpy as np
import pytest

import rushlight as rl
import rushlight.nn.functional as F
from rushlight import DtypeError, GraphError, ShapeError, _core, nn
from rushlight.data import DataLoader, TensorDataset

SHAPES = {"BatchNorm1d": [(6, 4), (5, 4, 3)], "BatchNorm2d": [(2, 4, 3, 5)], "BatchNorm3d": [(2, 4, 2, 3, 2)]}  # fmt: skip
CASES = [(name, shape) for name, shapes in SHAPES.items() for shape in shapes]


def buffers(module):
    return {name: buffer.numpy().copy() for name, buffer in module.named_buffers()}


def same(before, after):
    return all(np.array_equal(before[name], after[name]) for name in before)


def finite(module):
    return all(np.isfinite(x).all() for x in buffers(module).values())


# ---- fault 27: the last batch of one ----


def network():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))


def train(net, loader):
    optimizer = rl.optim.SGD(net.parameters(), lr=0.1)
    for x, y in loader:
        optimizer.zero_grad()
        F.mse_loss(net(x), y).backward()
        optimizer.step()


@pytest.fixture
def nine(rng):
    x, y = (rng.standard_normal((9, n)).astype(np.float32) for n in (3, 1))
    return TensorDataset(rl.tensor(x), rl.tensor(y))


def test_last_batch_of_one_is_refused_clearly(nine):
    net = network()
    with pytest.raises(ValueError, match=r"more than 1 value per channel .* input size \(1, 4\)"):
        train(net, DataLoader(nine, batch_size=4))
    assert net[1].num_batches_tracked.item() == 2
    assert finite(net)
    before = buffers(net)
    for size in (0, 1):
        with pytest.raises(ValueError, match=rf"more than 1 value per channel .*\({size}, 4\)"):
            net(rl.zeros(size, 3))
    assert same(before, buffers(net))


def test_last_batch_of_one_dropped_or_evaluated(nine):
    net = network()
    train(net, DataLoader(nine, batch_size=4, drop_last=True))
    assert net[1].num_batches_tracked.item() == 2
    before = buffers(net)
    net.eval()
    outputs = [net(x) for x, _ in DataLoader(nine, batch_size=4)]
    assert [len(out) for out in outputs] == [4, 4, 1]
    assert all(np.isfinite(out.detach().numpy()).all() for out in outputs)
    assert net(rl.zeros(0, 3)).shape == (0, 1)
    assert same(before, buffers(net))
    assert finite(net)


def test_one_sample_with_several_values_per_channel_trains():
    norm = nn.BatchNorm2d(3)
    assert norm(rl.randn(1, 3, 1, 2)).shape == (1, 3, 1, 2)
    assert finite(norm)
    with pytest.raises(ValueError, match="more than 1 value"):
        norm(rl.randn(1, 3, 1, 1))
    assert norm.num_batches_tracked.item() == 1


@pytest.mark.parametrize("momentum", [0.1, 1.0, None])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e30])
def test_running_statistics_stay_finite(bad, momentum, rng):
    norm, twin = (nn.BatchNorm1d(3, momentum=momentum) for _ in range(2))
    for i in range(4):
        x = rng.standard_normal((5, 3)).astype(np.float32)
        norm(rl.tensor(x))
        twin(rl.tensor(x))
        if i == 1:
            before = buffers(norm)
            x[2, 1] = bad
            norm(rl.tensor(x))
            assert same(before, buffers(norm))
    assert finite(norm)
    assert same(buffers(twin), buffers(norm))


def test_unbiased_variance_out_of_range_is_not_taken_over():
    """The biased variance is still finite, the unbiased one is not."""
    norm = nn.BatchNorm1d(1, momentum=1.0)
    before = buffers(norm)
    norm(rl.tensor([[-1.5e19], [1.5e19]]))
    assert same(before, buffers(norm))


def test_constant_channel():
    norm = nn.BatchNorm1d(2)
    x = rl.full((4, 2), 3.0, requires_grad=True)
    out = norm(x)
    out.sum().backward()
    assert not out.detach().numpy().any()
    assert np.isfinite(x.grad.numpy()).all()
    assert finite(norm)


# ---- the operation ----


def test_graph_and_running_statistics_are_apart():
    mean, var = rl.zeros(3), rl.ones(3)
    x = rl.randn(4, 3, requires_grad=True)
    first = F.batch_norm(x, mean, var, training=True)
    evaluated = F.batch_norm(x, mean, var)
    F.batch_norm(x, mean, var, training=True)  # writes what the graphs above must not need
    (first + evaluated).sum().backward()
    assert not mean.requires_grad
    assert mean.node is None
    with rl.no_grad():
        before = mean.numpy().copy()
        F.batch_norm(x, mean, var, training=True)
        assert not np.array_equal(before, mean.numpy())


def test_change_of_running_statistics_is_noticed():
    mean, var = rl.zeros(3), rl.ones(3)
    w = rl.randn(3, requires_grad=True)
    product = (w * mean).sum()
    F.batch_norm(rl.randn(4, 3), mean, var, training=True)
    with pytest.raises(GraphError):
        product.backward()


def test_no_channels():
    assert F.batch_norm(rl.zeros(4, 0), rl.zeros(0), rl.ones(0), training=True).shape == (4, 0)


A, M, V = rl.zeros(4, 3), rl.zeros(3), rl.ones(3)
WRONG = [
    (lambda: F.batch_norm(rl.zeros(3), M, V), ShapeError, r"\(N, C, \.\.\.\)"),
    (lambda: F.batch_norm(A, rl.zeros(2), V), ShapeError, r"\(2,\)"),
    (lambda: F.batch_norm(A, M, V, rl.ones(4)), ShapeError, r"\(4,\)"),
    (lambda: F.batch_norm(A, M, V, None, rl.ones(3, 1)), ShapeError, r"\(3, 1\)"),
    (lambda: F.batch_norm(rl.zeros(4, 3, dtype=rl.int64), M, V), DtypeError, "int64"),
    (lambda: F.batch_norm(A, M.double(), V), DtypeError, "float64"),
    (lambda: F.batch_norm(A, None, None), ValueError, "needed when not training"),
    (lambda: F.batch_norm(A, M, None, training=True), ValueError, "without the other"),
    (lambda: F.batch_norm(A, M, V, training=True, eps=0.0), ValueError, "eps"),
    (lambda: F.batch_norm(A, M, V, eps=-1.0), ValueError, "eps"),
    (lambda: nn.BatchNorm1d(3)(rl.zeros(4, 3, 1, 1)), ShapeError, "BatchNorm1d.*2 or 3"),
    (lambda: nn.BatchNorm2d(3)(A), ShapeError, "BatchNorm2d.*4"),
    (lambda: nn.BatchNorm3d(3)(A), ShapeError, "BatchNorm3d.*5"),
    (lambda: nn.BatchNorm1d(4)(A), ShapeError, r"\(4,\)"),
]


@pytest.mark.parametrize(("call", "error", "match"), WRONG)
def test_errors(call, error, match):
    with pytest.raises(error, match=match):
        call()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_gradients(name, shape, training, rng):
    """Every input's gradient against central differences along one random direction, in float64."""
    norm = getattr(nn, name)(4, dtype=rl.float64)
    norm(rl.tensor(rng.standard_normal(shape)))
    norm.train(training)
    weights = rl.tensor(rng.standard_normal(shape))
    inputs = [rng.standard_normal(s) for s in (shape, (4,), (4,))]

    def loss(x, w, b):
        m, v = (p.clone() for p in (norm.running_mean, norm.running_var))
        return (F.batch_norm(x, m, v, w, b, training) * weights).sum()

    leaves = [rl.tensor(a, requires_grad=True) for a in inputs]
    loss(*leaves).backward()
    eps = 1e-6
    for i, leaf in enumerate(leaves):
        u = rng.standard_normal(inputs[i].shape)
        sides = [
            loss(*(rl.tensor(a + s * eps * u if j == i else a) for j, a in enumerate(inputs)))
            for s in (1, -1)
        ]
        numeric = (sides[0].item() - sides[1].item()) / (2 * eps)
        size = np.abs(leaf.grad.numpy() * u).sum()
        assert abs((leaf.grad.numpy() * u).sum() - numeric) <= 1e-6 * size


# ---- the modules ----


def test_state():
    norm = nn.BatchNorm2d(4)
    names = ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    assert list(norm.state_dict()) == names
    assert norm.num_batches_tracked.dtype == rl.int64
    norm(rl.randn(2, 4, 3, 3))
    twin = copy.deepcopy(norm)
    assert same(buffers(norm), buffers(twin))
    norm.weight.detach().fill_(3)
    norm.reset_parameters()
    fresh = nn.BatchNorm2d(4)
    for name, value in fresh.state_dict().items():
        assert np.array_equal(value.numpy(), norm.state_dict()[name].numpy())
    assert twin.num_batches_tracked.item() == 1
    twin.reset_running_stats()
    assert same(buffers(fresh), buffers(twin))
    double = nn.BatchNorm2d(4).double()
    assert double(rl.randn(2, 4, 3, 3).double()).dtype == rl.float64
    assert double.num_batches_tracked.dtype == rl.int64


OPTIONS = [
    {},
    {"eps": 0.01, "momentum": 0.3},
    {"momentum": None},
    {"momentum": 0.0},
    {"affine": False},
    {"bias": False},
    {"track_running_stats": False},
    {"affine": False, "track_running_stats": False, "momentum": None},
]


def compare_state(ours, theirs):
    state = theirs.state_dict()
    assert list(ours.state_dict()) == list(state)
    for name, value in ours.state_dict().items():
        assert str(value.dtype).split(".")[1] == str(state[name].dtype).split(".")[1]
        np.testing.assert_allclose(value.numpy(), state[name].numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.peer
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("name", "shape"), CASES)
def test_training_as_in_pytorch(name, shape, options, torch, rng):
    ours, theirs = getattr(nn, name)(4, **options), getattr(torch.nn, name)(4, **options)
    assert repr(ours) == repr(theirs)
    compare_state(ours, theirs)
    lr = 0.1
    for step in range(6):
        if step == 4:
            ours.eval()
            theirs.eval()
        x = (rng.standard_normal(shape) * 2 + 0.5).astype(np.float32)
        g = rng.standard_normal(shape).astype(np.float32)
        a, b = rl.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
        out, expected = ours(a), theirs(b)
        ours.zero_grad()
        theirs.zero_grad()
        out.backward(rl.tensor(g))
        expected.backward(torch.tensor(g))
        np.testing.assert_allclose(out.detach().numpy(), expected.detach().numpy(), atol=2e-5)
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), atol=2e-5)
        for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
            np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), rtol=1e-5, atol=2e-5)
            p.detach().sub_(lr * p.grad)
            q.data.sub_(lr * q.grad)
        compare_state(ours, theirs)


@pytest.mark.peer
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_state_dict_exchange(options, torch, rng):
    x = rng.standard_normal((6, 4)).astype(np.float32)
    ours, theirs = nn.BatchNorm1d(4, **options), torch.nn.BatchNorm1d(4, **options)
    theirs(torch.tensor(x))
    ours.load_state_dict({name: value.numpy() for name, value in theirs.state_dict().items()})
    compare_state(ours, theirs)
    ours(rl.tensor(x * 2))
    state = {name: torch.tensor(value.numpy()) for name, value in ours.state_dict().items()}
    theirs.load_state_dict(state)
    compare_state(ours, theirs)
    out, expected = ours.eval()(rl.tensor(x)), theirs.eval()(torch.tensor(x))
    np.testing.assert_allclose(out.detach().numpy(), expected.detach().numpy(), atol=1e-5)


@pytest.mark.peer
def test_tracking_switched_off_later(torch, rng):
    ours, theirs = nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4)
    ours.track_running_stats = theirs.track_running_stats = False
    x = rng.standard_normal((6, 4)).astype(np.float32)
    for mode in (True, False):
        out, expected = ours.train(mode)(rl.tensor(x)), theirs.train(mode)(torch.tensor(x))
        np.testing.assert_allclose(out.detach().numpy(), expected.detach().numpy(), atol=1e-5)
        compare_state(ours, theirs)


def test_a_recorded_step_repeats_convolution_normalisation_and_pooling(rng):
    images, labels = rng.standard_normal((6, 2, 8, 8)).astype(np.float32), rl.arange(6) % 3

    def build():
        rl.manual_seed(2)
        layers = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)
        net = nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 3))
        optimizer = rl.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

        def step():
            loss = F.cross_entropy(net(rl.tensor(images)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return net, step

    eager, step = build()
    losses = [step().item() for _ in range(5)]
    recorded, step = build()
    assert step().item() == losses[0]
    _core.record_start()
    loss = step()
    program = _core.record_stop()
    for expected in losses[2:]:
        program.run()
        assert loss.item() == expected
    for a, b in zip(eager.state_dict().values(), recorded.state_dict().values(), strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert recorded[1].num_batches_tracked.item() == 5


def test_a_large_mean_costs_no_digits(rng):
    """Around 1000, float32 numbers lie 6e-5 apart, and their mean between them."""
    x = (1000 + 0.01 * rng.standard_normal((8, 3, 5, 5))).astype(np.float32)
    y = F.batch_norm(rl.tensor(x), None, None, training=True, eps=1e-12).numpy()
    wide = x.astype(np.float64)
    center = wide.mean((0, 2, 3), keepdims=True)
    expected = (wide - center) / np.sqrt(
        ((wide - center) ** 2).mean((0, 2, 3), keepdims=True) + 1e-12
    )
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-6)
