"""The GPT model: sizes, values and gradients against two other writings of it, cache, dropout."""

import math

import numpy as np
import pytest

import rushlight as rl
from rushlight.models import GPT
from rushlight.nn import functional as F

SMALL = {"vocabulary": 11, "context": 8, "layers": 2, "heads": 2, "width": 12}
NAMES = ["ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"]
both = pytest.mark.parametrize("bias", [True, False])


def small(*, bias=True, dropout=0.0, dtype=rl.float64):
    """A model whose every parameter takes part: gains and biases differ from 1 and 0."""
    model = GPT(**SMALL, bias=bias, dropout=dropout).to(dtype)
    with rl.no_grad():
        for parameter in model.parameters():
            parameter += rl.randn(parameter.shape, dtype=dtype) * 0.2
    return model


def batch(time=8, batch=3):
    return rl.randint(0, 11, (batch, time)), rl.randint(0, 11, (batch, time))


@pytest.mark.parametrize(
    ("sizes", "bias", "total", "without_positions"),
    [
        ((65, 256, 6, 6, 384), False, 10_745_088, 10_646_784),
        ((65, 64, 4, 4, 128), False, 804_096, 795_904),
        ((65, 64, 4, 4, 128), True, 804_096 + 4 * 11 * 128 + 128, 795_904 + 4 * 11 * 128 + 128),
    ],
)
def test_parameter_count(sizes, bias, total, without_positions):
    model = GPT(*sizes, bias=bias)
    assert model.parameter_count() == total
    assert model.parameter_count(positions=False) == without_positions
    _, context, layers, _, width = sizes
    assert model.flops_per_token() == 6 * without_positions + 12 * layers * width * context


@both
def test_names_are_those_of_hugging_face(bias):
    kinds = ["weight", "bias"] if bias else ["weight"]
    expected = ["wte.weight", "wpe.weight"]
    expected += [f"h.{i}.{name}.{kind}" for i in range(2) for name in NAMES for kind in kinds]
    expected += [f"ln_f.{kind}" for kind in kinds]
    assert sorted(GPT(**SMALL, bias=bias).state_dict()) == sorted(expected)


def test_initial_values():
    state = {n: p.numpy() for n, p in GPT(500, 200, 8, 4, 64).state_dict().items()}
    for name, value in state.items():
        if value.ndim == 2:
            std = 0.02 / math.sqrt(16) if name.endswith("c_proj.weight") else 0.02
            assert abs(value.mean()) < 5 * std / math.sqrt(value.size), name
            assert abs(value.std() / std - 1) < 5 / math.sqrt(2 * value.size), name
        else:
            assert (value == (1 if name.endswith("weight") else 0)).all(), name
    loss = GPT(500, 200, 8, 4, 64)(rl.randint(0, 500, (2, 50)), rl.randint(0, 500, (2, 50)))
    assert loss.item() == pytest.approx(math.log(500), abs=0.1)


# ---- the same model in NumPy ----

erf = np.vectorize(math.erf)


def normalised(p, name, x):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled * p[f"{name}.weight"] + p.get(f"{name}.bias", 0)


def projected(p, name, x):
    return x @ p[f"{name}.weight"].T + p.get(f"{name}.bias", 0)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def attended(p, name, x, heads):
    q, k, v = np.split(projected(p, f"{name}.c_attn", x), 3, -1)
    size = x.shape[-1] // heads
    out = np.zeros_like(x)
    for head in (slice(i * size, (i + 1) * size) for i in range(heads)):
        for t in range(x.shape[1]):
            scores = np.einsum("bd,bsd->bs", q[:, t, head], k[:, : t + 1, head]) / math.sqrt(size)
            out[:, t, head] = np.einsum("bs,bsd->bd", softmax(scores), v[:, : t + 1, head])
    return projected(p, f"{name}.c_proj", out)


def oracle(model, tokens):
    """Logits of every position, (B, T, V)."""
    p = {name: value.numpy() for name, value in model.state_dict().items()}
    x = p["wte.weight"][tokens] + p["wpe.weight"][: tokens.shape[1]]
    for i in range(model.layers):
        x = x + attended(p, f"h.{i}.attn", normalised(p, f"h.{i}.ln_1", x), model.heads)
        hidden = projected(p, f"h.{i}.mlp.c_fc", normalised(p, f"h.{i}.ln_2", x))
        hidden = hidden * (1 + erf(hidden / math.sqrt(2))) / 2
        x = x + projected(p, f"h.{i}.mlp.c_proj", hidden)
    return normalised(p, "ln_f", x) @ p["wte.weight"].T


@both
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_forward_against_numpy(bias, dropout):
    model = small(bias=bias, dropout=dropout).eval()
    tokens, targets = batch(time=7)
    logits = oracle(model, tokens.numpy())
    assert np.allclose(model(tokens).detach().numpy(), logits[:, -1], rtol=1e-12, atol=1e-12)
    chosen = np.take_along_axis(softmax(logits), targets.numpy()[..., None], -1)
    losses = -np.log(chosen[..., 0])
    assert model(tokens, targets).item() == pytest.approx(losses.mean(), rel=1e-12)
    targets[0, 2:] = -1
    counted = losses[targets.numpy() != -1]
    assert model(tokens, targets).item() == pytest.approx(counted.mean(), rel=1e-12)


@both
def test_gradient_along_one_direction(bias):
    model = small(bias=bias)
    tokens, targets = batch()
    model(tokens, targets).backward()
    parameters = list(model.parameters())
    directions = [rl.randn(p.shape, dtype=rl.float64) for p in parameters]
    along = sum((p.grad * u).sum().item() for p, u in zip(parameters, directions, strict=True))

    def moved(by):
        with rl.no_grad():
            for p, u in zip(parameters, directions, strict=True):
                p += by * u
            return model(tokens, targets).item()

    step = 1e-6
    up, down = moved(step), moved(-2 * step)
    assert along == pytest.approx((up - down) / (2 * step), rel=1e-6)


# ---- the same model in PyTorch ----


def their_loss(torch, p, model, tokens, targets):
    functional = torch.nn.functional

    def norm(name, x):
        weight, bias = p[f"{name}.weight"], p.get(f"{name}.bias")
        return functional.layer_norm(x, weight.shape, weight, bias, 1e-5)

    def linear(name, x):
        return functional.linear(x, p[f"{name}.weight"], p.get(f"{name}.bias"))

    batch, time = tokens.shape
    x = p["wte.weight"][tokens] + p["wpe.weight"][:time]
    for i in range(model.layers):
        parts = linear(f"h.{i}.attn.c_attn", norm(f"h.{i}.ln_1", x)).split(model.width, 2)
        q, k, v = (y.view(batch, time, model.heads, -1).transpose(1, 2) for y in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + linear(f"h.{i}.attn.c_proj", y.transpose(1, 2).reshape(x.shape))
        y = functional.gelu(linear(f"h.{i}.mlp.c_fc", norm(f"h.{i}.ln_2", x)))
        x = x + linear(f"h.{i}.mlp.c_proj", y)
    logits = functional.linear(norm("ln_f", x), p["wte.weight"])
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


@pytest.mark.peer
@both
def test_lockstep_with_pytorch(bias, torch):
    model = small(bias=bias)
    theirs = {
        name: torch.tensor(value.numpy().copy(), requires_grad=True)
        for name, value in model.state_dict().items()
    }
    ours = dict(model.named_parameters())
    our_optimizer = rl.optim.SGD(model.parameters(), lr=0.1)
    their_optimizer = torch.optim.SGD(theirs.values(), lr=0.1)
    for _ in range(5):
        tokens, targets = batch()
        targets[0, :2] = -1
        loss = model(tokens, targets)
        their = their_loss(
            torch, theirs, model, torch.tensor(tokens.numpy()), torch.tensor(targets.numpy())
        )
        assert loss.item() == pytest.approx(their.item(), rel=1e-12)
        for optimizer, value in ((our_optimizer, loss), (their_optimizer, their)):
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        for name, value in theirs.items():
            assert np.allclose(ours[name].grad.numpy(), value.grad.numpy(), 1e-10, 1e-12), name


# ---- cache ----


@pytest.mark.parametrize(("dtype", "tolerance"), [(rl.float32, 1e-5), (rl.float64, 1e-12)])
@pytest.mark.parametrize("cuts", [(5, 6, 7, 8), (1, 2, 3, 4), (3, 7, 8), (8,)])
def test_cache_changes_nothing(cuts, dtype, tolerance):
    model = small(dtype=dtype)
    cache = model.new_cache(batch=3)
    with rl.no_grad():
        for _ in range(2):  # the second text finds what the first one left
            cache.length = 0
            tokens, _ = batch()
            for start, stop in zip((0, *cuts), cuts, strict=False):
                cached = model(tokens[:, start:stop], cache=cache).numpy()
                assert cache.length == stop
                assert abs(cached - model(tokens[:, :stop]).numpy()).max() <= tolerance


def test_cached_loss_is_that_of_the_later_positions():
    model = small()
    tokens, targets = batch()
    cache = model.new_cache(batch=3)
    with rl.no_grad():
        model(tokens[:, :3], cache=cache)
        cached = model(tokens[:, 3:], targets[:, 3:], cache)
        targets[:, :3] = -1
        assert cached.item() == pytest.approx(model(tokens, targets).item(), rel=1e-12)


def test_cache_refuses_what_does_not_fit():
    model = small()
    cache = model.new_cache(batch=3)
    tokens, _ = batch()
    with pytest.raises(rl.GraphError, match="no_grad"):
        model(tokens, cache=cache)
    with rl.no_grad():
        model(tokens[:, :6], cache=cache)
        with pytest.raises(
            rl.ShapeError, match="3 positions after 6 in the cache exceed the context of 8"
        ):
            model(tokens[:, :3], cache=cache)
        with pytest.raises(rl.ShapeError, match="batch 2"):
            model(tokens[:2, :1], cache=cache)
        assert cache.length == 6


# ---- dropout and errors ----


def test_dropout_only_in_training():
    model = small(dropout=0.3)
    tokens, targets = batch()
    losses = {model(tokens, targets).item() for _ in range(3)}
    assert len(losses) == 3
    model.eval()
    plain = small(dropout=0.0)
    plain.load_state_dict(model.state_dict())
    still = {model(tokens, targets).item() for _ in range(3)}
    assert still == {plain(tokens, targets).item()}
    assert abs(np.mean(list(losses)) - still.pop()) < 2
    model.train()(tokens, targets).backward()
    assert all(np.isfinite(p.grad.numpy()).all() for p in model.parameters())


def test_where_dropout_is(monkeypatch):
    seen = []
    dropout, attention = F.dropout, F.scaled_dot_product_attention

    def watched_dropout(x, p=0.5, training=True):
        seen.append(("dropout", x.shape, p if training else 0))
        return dropout(x, p, training)

    def watched_attention(*args, dropout_p, **options):
        seen.append(("attention", args[0].shape, dropout_p))
        return attention(*args, dropout_p=dropout_p, **options)

    monkeypatch.setattr(F, "dropout", watched_dropout)
    monkeypatch.setattr(F, "scaled_dot_product_attention", watched_attention)
    model = small(dropout=0.25)
    model(*batch())
    stream = ("dropout", (3, 8, 12), 0.25)
    assert seen == [stream, *[("attention", (3, 2, 8, 6), 0.25), stream, stream] * 2]
    seen.clear()
    model.eval()(*batch())
    assert {p for _, _, p in seen} == {0}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"heads": 5}, rl.ShapeError, "width 12 is no multiple of 5 heads"),
        ({"layers": 0}, ValueError, "layers must be at least 1"),
        ({"dropout": 1.0}, ValueError, r"dropout must lie in \[0, 1\)"),
    ],
)
def test_wrong_sizes(change, error, message):
    with pytest.raises(error, match=message):
        GPT(**{**SMALL, **change})


def test_wrong_tokens():
    model = small()
    with pytest.raises(rl.ShapeError, match="9 positions exceed the context of 8"):
        model(rl.zeros(1, 9, dtype=rl.int64))
    with pytest.raises(rl.ShapeError, match=r"\(8,\), expected \(B, T\)"):
        model(rl.zeros(8, dtype=rl.int64))
    with pytest.raises(rl.ShapeError, match=r"\(1, 0\)"):
        model(rl.zeros(1, 0, dtype=rl.int64))
    with pytest.raises(IndexError):
        model(rl.full((1, 2), 11))
