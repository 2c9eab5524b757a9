"""Normalisation of channels, padding, windows, shuffles and dropped channels."""

import itertools

import numpy as np
import pytest

import rushlight as rl
import rushlight.nn.functional as F
from rushlight import nn

CLOSE = {"rtol": 0, "atol": 1e-13}


def agree(torch, rng, x, mine, peer):
    """Values and gradients of two functions at x."""
    t, u = rl.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    y, z = mine(t), peer(u)
    np.testing.assert_allclose(y.detach().numpy(), z.detach().numpy(), **CLOSE)
    g = rng.standard_normal(tuple(z.shape))
    y.backward(rl.tensor(g))
    z.backward(torch.tensor(g))
    np.testing.assert_allclose(t.grad.numpy(), u.grad.numpy(), **CLOSE)


# ---- normalisation ----


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_group_norm_far_from_zero(rng, dtype):
    x = (1000 + 0.01 * rng.standard_normal((2, 4, 9, 9))).astype(dtype)
    parts = x.astype(np.float64).reshape(2, 2, -1)
    d = parts - parts.mean(2, keepdims=True)
    expected = (d / np.sqrt((d * d).mean(2, keepdims=True) + 1e-5)).reshape(x.shape)
    y = F.group_norm(rl.tensor(x), 2)
    np.testing.assert_allclose(y.numpy(), expected, rtol=0, atol=2e-6)


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("track", [False, True])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_instance_norm(torch, rng, axes, affine, track):
    """Three batches in training, then evaluation, then a single sample; statistics included."""
    options = {"affine": affine, "track_running_stats": track, "momentum": 0.3}
    mine = getattr(nn, f"InstanceNorm{axes}d")(3, dtype=rl.float64, **options)
    peer = getattr(torch.nn, f"InstanceNorm{axes}d")(3, dtype=torch.float64, **options)
    assert list(mine.state_dict()) == list(peer.state_dict())
    if affine:
        for name in ("weight", "bias"):
            values = rng.standard_normal(3)
            getattr(mine, name).detach().copy_(rl.tensor(values))
            getattr(peer, name).data.copy_(torch.tensor(values))
    shape = (4, 3, *(5, 3, 2)[:axes])
    for step in range(4):
        if step == 3:
            mine.eval()
            peer.eval()
        agree(torch, rng, rng.standard_normal(shape), mine, peer)
        agree(torch, rng, rng.standard_normal(shape[1:]), mine, peer)
    for name, value in peer.state_dict().items():
        np.testing.assert_allclose(mine.state_dict()[name].numpy(), value.numpy(), rtol=1e-14)
    if affine:
        for ours, theirs in zip(mine.parameters(), peer.parameters(), strict=True):
            np.testing.assert_allclose(ours.grad.numpy(), theirs.grad.numpy(), rtol=1e-12)


def test_group_norm_layer(torch, rng):
    mine, peer = nn.GroupNorm(2, 4, dtype=rl.float64), torch.nn.GroupNorm(2, 4, dtype=torch.float64)
    assert list(mine.state_dict()) == list(peer.state_dict())
    agree(torch, rng, rng.standard_normal((2, 4, 3, 5)), mine, peer)
    assert [*nn.GroupNorm(2, 4, affine=False).parameters()] == []
    assert [n for n, _ in nn.GroupNorm(2, 4, bias=False).named_parameters()] == ["weight"]
    assert repr(mine) == "GroupNorm(2, 4, eps=1e-05, affine=True)"


def test_group_norm_of_nothing():
    x = rl.zeros(0, 4, 3, requires_grad=True)
    y = F.group_norm(x, 2, rl.ones(4), rl.zeros(4))
    y.sum().backward()
    assert y.shape == x.grad.shape == (0, 4, 3)


NORMS = [
    (F.group_norm, (2, 4, 3), (3,), rl.ShapeError, "3 groups do not divide 4"),
    (F.group_norm, (2, 4, 3), (0,), ValueError, "positive integer"),
    (F.group_norm, (4,), (2,), rl.ShapeError, r"expected \(N, C, ...\)"),
    (F.group_norm, (1, 4), (4,), rl.ShapeError, "more than 1 value"),
    (F.group_norm, (2, 4, 3), (2, rl.ones(3)), rl.ShapeError, r"expected \(4,\)"),
    (F.group_norm, (2, 4, 3), (2, rl.ones(4).double()), rl.DtypeError, "float64"),
    (F.instance_norm, (2, 4, 1), (), rl.ShapeError, "more than 1 value"),
    (F.instance_norm, (2, 4, 3), (rl.ones(4),), ValueError, "without the other"),
    (nn.GroupNorm(2, 4), (2, 3, 4), (), rl.ShapeError, "expected"),
    (nn.InstanceNorm2d(4), (2, 3, 4, 4), (), rl.ShapeError, "expected 4 channels"),
    (nn.InstanceNorm2d(4), (4, 4), (), rl.ShapeError, "3 or 4 axes"),
]


@pytest.mark.parametrize(("function", "shape", "rest", "error", "text"), NORMS)
def test_refused_norms(function, shape, rest, error, text):
    with pytest.raises(error, match=text):
        function(rl.ones(*shape), *rest)
    with pytest.raises(ValueError, match="do not divide"):
        nn.GroupNorm(3, 4)


# ---- padding ----


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
@pytest.mark.parametrize(
    "amounts",
    [(1, 2), (2, 0, 0, 1), (-1, 2, 1, -1), (0, 0, 0, 0), (1, 1, 2, 0, 0, 1), (3, 3, 3, 3)],
)
def test_pad(torch, rng, mode, amounts):
    shape = (2, 3, 4, 4, 5)[: max(len(amounts) // 2 + 2, 3)]
    value = 0.5 if mode == "constant" else None
    agree(
        torch,
        rng,
        rng.standard_normal(shape),
        lambda x: F.pad(x, amounts, mode, value),
        lambda x: torch.nn.functional.pad(x, amounts, mode, value),
    )


def test_pad_is_linear_with_its_transpose_as_gradient(rng):
    u = rl.tensor(rng.standard_normal((2, 4, 5)))
    for mode in ("constant", "reflect", "replicate", "circular"):
        x = rl.tensor(rng.standard_normal((2, 4, 5)), requires_grad=True)
        y = F.pad(x, (2, -1, 1, 3), mode=mode)
        g = rl.tensor(rng.standard_normal(y.shape), requires_grad=True)
        (y * g).sum().backward(create_graph=True)
        assert (y * g).sum().item() == pytest.approx((x * x.grad).sum().item())
        first, g.grad = x.grad, None
        (first * u).sum().backward()
        np.testing.assert_array_equal(g.grad.numpy(), F.pad(u, (2, -1, 1, 3), mode=mode).numpy())


def test_pad_of_integers_truths_and_nothing():
    x = rl.tensor([[1, 2, 3]])
    assert F.pad(x, (1, 1), value=-100).tolist() == [[-100, 1, 2, 3, -100]]
    assert F.pad(x, (2, 0), mode="reflect").tolist() == [[3, 2, 1, 2, 3]]
    assert F.pad(x > 1, (0, 1)).tolist() == [[False, True, True, False]]
    assert F.pad(x, (-1, -2)).shape == (1, 0)
    assert F.pad(rl.zeros(2, 0), (1, 1), value=2.0).tolist() == [[2.0, 2.0]] * 2
    assert F.pad(rl.ones(2, 3), (1, -5 + 2)).tolist() == [[0.0]] * 2
    assert F.pad(rl.ones(3), (-4, 3)).tolist() == [0.0, 0.0]  # only what is new is left


PADS = [
    ((1, 2, 3), "constant", ValueError, "two numbers an axis"),
    ((1, 2.5), "constant", ValueError, "sequence of integers"),
    ((1,) * 10, "constant", rl.ShapeError, "10 numbers"),
    ((-3, -3), "constant", rl.ShapeError, "takes more than"),
    ((1, 1), "mirror", ValueError, "'mirror' is not"),
    ((5, 0), "reflect", rl.ShapeError, "got 5 for 5, 0"),
    ((6, 0), "circular", rl.ShapeError, "at most once"),
]


@pytest.mark.parametrize(("amounts", "mode", "error", "text"), PADS)
def test_refused_pads(amounts, mode, error, text):
    with pytest.raises(error, match=text):
        F.pad(rl.ones(1, 1, 5, 5), amounts, mode=mode)


def test_refused_values():
    with pytest.raises(ValueError, match="no meaning"):
        F.pad(rl.ones(3), (1, 1), mode="reflect", value=1.0)
    with pytest.raises(rl.ShapeError, match="no element"):
        F.pad(rl.ones(0), (1, 1), mode="replicate")
    with pytest.raises(ValueError, match="1 or 4 numbers"):
        nn.ZeroPad2d((1, 2))


@pytest.mark.parametrize("name", ["ZeroPad2d", "ConstantPad2d", "ReflectionPad2d", "ReplicationPad2d"])  # fmt: skip
@pytest.mark.parametrize("sides", [2, (1, 2, 0, 3)])
def test_pad_layers(torch, rng, name, sides):
    arguments = (sides, 1.5) if name == "ConstantPad2d" else (sides,)
    mine, peer = getattr(nn, name)(*arguments), getattr(torch.nn, name)(*arguments)
    agree(torch, rng, rng.standard_normal((2, 3, 4, 5)), mine, peer)
    agree(torch, rng, rng.standard_normal((3, 4, 5)), mine, peer)


# ---- windows and shuffles ----

WINDOWS = [
    ((2, 3, 6, 7), 2, {}),
    ((2, 3, 6, 7), (3, 2), {"stride": 2, "padding": 1}),
    ((1, 2, 9, 8), (2, 3), {"dilation": (3, 2), "stride": (1, 2), "padding": (0, 2)}),
    ((3, 5, 6), 3, {"padding": 2}),
    ((0, 2, 4, 4), 2, {}),
]


@pytest.mark.parametrize(("shape", "kernel", "options"), WINDOWS, ids=str)
def test_windows(torch, rng, shape, kernel, options):
    x = rng.standard_normal(shape)
    peer = torch.nn.functional
    if shape[0]:
        agree(
            torch,
            rng,
            x,
            lambda t: F.unfold(t, kernel, **options),
            lambda t: peer.unfold(t, kernel, **options),
        )
        columns = F.unfold(rl.tensor(x), kernel, **options).numpy()
        agree(
            torch,
            rng,
            rng.standard_normal(columns.shape),
            lambda t: F.fold(t, shape[-2:], kernel, **options),
            lambda t: peer.fold(t, shape[-2:], kernel, **options),
        )
    t = rl.tensor(x, requires_grad=True)
    y = F.unfold(t, kernel, **options)
    g = rl.tensor(rng.standard_normal(y.shape))
    y.backward(g)  # the gradient of one is the other
    np.testing.assert_array_equal(t.grad.numpy(), F.fold(g, shape[-2:], kernel, **options).numpy())


def test_convolution_is_a_product_with_windows(rng):
    x, w = (
        rl.tensor(rng.standard_normal((2, 3, 7, 6))),
        rl.tensor(rng.standard_normal((4, 3, 3, 2))),
    )
    columns = F.unfold(x, (3, 2), padding=1, stride=2)
    y = (w.reshape(4, -1) @ columns).reshape(2, 4, 4, 4)
    expected = F.conv2d(x, w, padding=1, stride=2)
    np.testing.assert_allclose(y.numpy(), expected.numpy(), **CLOSE)


def test_refused_windows():
    with pytest.raises(rl.ShapeError, match="no window"):
        F.unfold(rl.ones(1, 1, 2, 2), 3)
    with pytest.raises(rl.ShapeError, match="3 or 4 axes"):
        F.unfold(rl.ones(2, 2), 1)
    with pytest.raises(rl.DtypeError, match="int64"):
        F.unfold(rl.ones(1, 1, 2, 2, dtype=rl.int64), 1)
    with pytest.raises(rl.ShapeError, match=r"expected \(N, C \* 4, 3 \* 3\)"):
        F.fold(rl.ones(1, 4, 8), 4, 2)
    with pytest.raises(rl.ShapeError, match=r"C \* 4"):
        F.fold(rl.ones(1, 5, 9), 4, 2)


@pytest.mark.parametrize("shape", [(2, 12, 3, 4), (12, 2, 2), (2, 2, 4, 1, 3), (0, 4, 2, 2)])
def test_shuffles(torch, rng, shape):
    x = rng.standard_normal(shape)
    y = F.pixel_shuffle(rl.tensor(x), 2)
    assert np.array_equal(y.numpy(), torch.nn.functional.pixel_shuffle(torch.tensor(x), 2).numpy())
    assert np.array_equal(F.pixel_unshuffle(y, 2).numpy(), x)
    assert np.array_equal(nn.PixelUnshuffle(2)(nn.PixelShuffle(2)(rl.tensor(x))).numpy(), x)
    index = rl.tensor(np.arange(x.size).reshape(shape))
    assert F.pixel_unshuffle(F.pixel_shuffle(index, 2), 2).tolist() == index.tolist()


def test_refused_shuffles():
    with pytest.raises(rl.ShapeError, match="3 channels"):
        F.pixel_shuffle(rl.ones(1, 3, 2, 2), 2)
    with pytest.raises(rl.ShapeError, match="squares of 2"):
        F.pixel_unshuffle(rl.ones(1, 3, 3, 2), 2)
    with pytest.raises(rl.ShapeError, match=r"\(..., C, H, W\)"):
        F.pixel_shuffle(rl.ones(4, 2), 2)
    with pytest.raises(ValueError, match="positive integer"):
        F.pixel_shuffle(rl.ones(1, 4, 2, 2), 0)


def test_layers_of_windows(torch, rng):
    x = rng.standard_normal((2, 3, 6, 5))
    mine, peer = nn.Unfold(3, padding=1, stride=2), torch.nn.Unfold(3, padding=1, stride=2)
    agree(torch, rng, x, mine, peer)
    mine, peer = nn.Fold((6, 5), 2, 1, 1, 1), torch.nn.Fold((6, 5), 2, 1, 1, 1)
    agree(torch, rng, rng.standard_normal((2, 8, 42)), mine, peer)
    assert "output_size=(6, 5), kernel_size=2" in repr(mine)


# ---- dropping parts ----

DROPPED = [
    ("dropout1d", (40, 30, 5), 2),
    ("dropout1d", (900, 5), 1),
    ("dropout2d", (40, 30, 5, 2), 2),
    ("dropout2d", (40, 30, 5), 2),
    ("dropout3d", (40, 30, 2, 2, 2), 2),
    ("dropout3d", (900, 2, 2, 2), 1),
    ("drop_path", (900, 3, 2), 1),
    ("drop_path", (900,), 1),
]


@pytest.mark.parametrize(("name", "shape", "axes"), DROPPED)
@pytest.mark.parametrize("dtype", [rl.float32, rl.float64])
def test_whole_parts_are_dropped(name, shape, axes, dtype):
    x = rl.ones(*shape, dtype=dtype, requires_grad=True)
    y = getattr(F, name)(x, 0.25)
    parts = y.detach().numpy().reshape(np.prod(shape[:axes]), -1)
    assert y.dtype == dtype
    assert (parts == parts[:, :1]).all()
    np.testing.assert_allclose(np.unique(parts), [0, 1 / 0.75], rtol=1e-6)
    assert (parts[:, 0] == 0).mean() == pytest.approx(0.25, abs=0.06)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.detach().numpy())
    assert getattr(F, name)(x, 0.25, training=False) is x
    assert getattr(F, name)(x, 0.0) is x
    assert (getattr(F, name)(x, 1.0).detach().numpy() == 0).all()


@pytest.mark.parametrize("name", ["Dropout1d", "Dropout2d", "Dropout3d", "DropPath"])
def test_layers_that_drop(name):
    layer = getattr(nn, name)(0.5)
    x = rl.ones(*{"Dropout1d": (64, 8, 9), "Dropout3d": (64, 8, 9, 4, 4)}.get(name, (64, 8, 9, 4)))
    found = []
    for threads, seed in itertools.product((1, 2), (3, 4)):
        rl.set_num_threads(threads)
        rl.manual_seed(seed)
        found.append(layer(x).numpy())
    assert np.array_equal(found[0], found[2])
    assert np.array_equal(found[1], found[3])
    assert not np.array_equal(found[0], found[1])
    layer.eval()
    assert layer(x) is x
    with pytest.raises(ValueError, match=f"{name}: p must lie"):
        getattr(nn, name)(1.5)


def test_refused_drops():
    with pytest.raises(ValueError, match="p must lie"):
        F.dropout2d(rl.ones(1, 1, 1, 1), -0.1)
    for name in ("dropout1d", "dropout2d", "dropout3d"):
        with pytest.raises(rl.ShapeError, match=f"{name}: input"):
            getattr(F, name)(rl.ones(1))
    with pytest.raises(rl.ShapeError, match="without axes"):
        F.drop_path(rl.ones(()), 0.1)
