"""Attention that drops weights: which ones, what comes out, gradients, threads, levels, recorded programs."""

import numpy as np
import pytest

import rushlight as rl
import rushlight.nn.functional as F
from op_table import softmax
from rushlight import GraphError, _core, kernels
from rushlight.random import default_generator

P = 0.3


def philox(seed, blocks):
    """Words (..., 4) of Philox 4x32-10 blocks.  Source: Salmon et al. 2011."""
    low = np.uint64(0xFFFFFFFF)
    x = [blocks & low, blocks >> np.uint64(32), np.zeros_like(blocks), np.zeros_like(blocks)]
    key = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        first, second = x[0] * np.uint64(0xD2511F53), x[2] * np.uint64(0xCD9E8D57)
        x = [
            (second >> np.uint64(32)) ^ x[1] ^ np.uint64(key[0]),
            second & low,
            (first >> np.uint64(32)) ^ x[3] ^ np.uint64(key[1]),
            first & low,
        ]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return np.stack(x, -1)


def kept(state, shape, p):
    """The contract: weight (b, h, t, s) is kept by word s of row (b, h, t), ceil(S / 64) * 16 blocks a row."""
    b, h, t, s = shape
    per_row = -(-s // 64) * 16
    blocks = np.uint64(state[1]) + np.arange(b * h * t * per_row, dtype=np.uint64)
    words = philox(int(state[0]), blocks).reshape(b, h, t, per_row * 4)
    return words[..., :s] >= np.ceil(p * 2**32)


def weights_of(q, k, mask, causal):
    """Softmax weights (B, H, T, S) in float64."""
    q, k = q.astype(np.float64), np.repeat(k.astype(np.float64), q.shape[1] // k.shape[1], 1)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=bool), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    return softmax(scores)


def unit_values(b, g, s, dtype):
    """With these as values the result is the weights themselves."""
    return np.ascontiguousarray(np.broadcast_to(np.eye(s, dtype=dtype), (b, g, s, s)))


def attend(q, k, v, mask=None, p=P, causal=False):
    mask = mask if mask is None or isinstance(mask, rl.Tensor) else rl.from_numpy(mask)
    return F.scaled_dot_product_attention(
        q, k, v, mask, dropout_p=p, is_causal=causal, enable_gqa=True
    )


def uniform_weights(b=2, h=3, t=50, s=70, dtype=np.float32):
    """One call on weights of 1 / S: the mask it drew."""
    q, k = (rl.from_numpy(np.zeros((b, h, n, 4), dtype)) for n in (t, s))
    return attend(q, k, rl.from_numpy(unit_values(b, h, s, dtype))).numpy() > 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["plain", "causal", "bool", "bias"])
@pytest.mark.parametrize(
    ("b", "h", "g", "t", "s"),
    [(1, 1, 1, 1, 1), (2, 4, 2, 5, 65), (2, 2, 1, 65, 64), (1, 2, 2, 1, 513), (1, 3, 3, 130, 130)],
)
def test_values(b, h, g, t, s, kind, dtype, rng):
    q, k = (rng.standard_normal((b, *n, 8)).astype(dtype) for n in ((h, t), (g, s)))
    mask, causal = None, kind == "causal"
    if kind == "bool":
        mask = rng.random((b, 1, t, s)) > 0.3
        mask[..., 0] = True
    if kind == "bias":
        mask = rng.standard_normal((h, t, s)).astype(dtype)
    expected = weights_of(q, k, mask, causal)
    for p in (P, 0.9):
        keep = kept(default_generator.state.copy(), (b, h, t, s), p)
        v = unit_values(b, g, s, dtype)
        out = attend(*map(rl.from_numpy, (q, k, v)), mask, p, causal).numpy()
        np.testing.assert_array_equal(out != 0, keep & (expected > 0))
        atol = 1e-5 if dtype == np.float32 else 1e-13
        np.testing.assert_allclose(out, expected * keep / (1 - p), rtol=atol, atol=atol)


def test_masks():
    n = 2 * 3 * 50 * 70
    first, second = uniform_weights(), uniform_weights()
    for mask in (first, second):
        assert abs(mask.mean() - (1 - P)) < 5 * np.sqrt(P * (1 - P) / n)
    unlike = 2 * P * (1 - P)  # how often two independent masks differ
    for x, y in (
        (first, second),  # calls
        (first[0], first[1]),  # samples
        (first[:, 0], first[:, 1]),  # heads
        (first[:, :, 1:], first[:, :, :-1]),  # queries
        (first[..., 1:], first[..., :-1]),  # keys
    ):
        assert abs((x != y).mean() - unlike) < 5 * np.sqrt(unlike / x.size)
    rl.manual_seed(0)
    np.testing.assert_array_equal(uniform_weights(), first)
    rl.manual_seed(1)
    assert (uniform_weights() != first).any()


@pytest.mark.parametrize("kind", ["plain", "causal", "bool", "bias", "bias with gradient"])
@pytest.mark.parametrize(
    ("b", "h", "g", "t", "s"),
    [(1, 1, 1, 1, 1), (2, 4, 2, 5, 65), (2, 2, 1, 65, 66), (1, 2, 1, 3, 513), (1, 2, 2, 60, 5)],
)
def test_gradients(b, h, g, t, s, kind, rng):
    """Central differences under one mask: the state is set back before each call."""
    arrays = [rng.standard_normal((b, *n, 6)) for n in ((h, t), (g, s), (g, s))]
    mask, causal = None, kind == "causal"
    if kind == "bool":
        mask = rl.from_numpy(rng.random((b, 1, t, s)) > 0.3)
    if kind.startswith("bias"):
        mask = rl.from_numpy(rng.standard_normal((t, s)))
        mask.requires_grad = kind != "bias"
    weights, state = rl.from_numpy(rng.standard_normal((b, h, t, 6))), rl.get_rng_state()

    def loss(tensors):
        rl.set_rng_state(state)
        return (attend(*tensors, mask, P, causal) * weights).sum()

    x = [rl.from_numpy(a.copy()).requires_grad_() for a in arrays]
    loss(x).backward()
    for i, a in enumerate(arrays):
        direction, sides = rng.standard_normal(a.shape), []
        for eps in (1e-6, -1e-6):
            moved = [
                rl.from_numpy(a + eps * direction if i == j else y) for j, y in enumerate(arrays)
            ]
            sides.append(loss(moved).item())
        terms = x[i].grad.numpy() * direction
        numeric = (sides[0] - sides[1]) / 2e-6
        assert abs(terms.sum() - numeric) <= 1e-6 * max(1.0, np.abs(terms).sum())
    assert mask is None or not mask.requires_grad or mask.grad.shape == mask.shape


def everything(causal=True):
    """Output and gradients of one seeded call."""
    rl.manual_seed(4)
    q, k, v = (rl.randn(2, n, 150, 16).requires_grad_() for n in (4, 2, 2))
    out = attend(q, k, v, causal=causal)
    (out * out).sum().backward()
    return [out.detach().numpy(), *(x.grad.numpy() for x in (q, k, v))]


@pytest.mark.parametrize("causal", [True, False])
def test_any_number_of_threads_gives_the_same_bits(causal):
    rl.set_num_threads(1)
    expected = everything(causal)
    for threads in (2, 3):
        rl.set_num_threads(threads)
        for x, y in zip(everything(causal), expected, strict=True):
            np.testing.assert_array_equal(x, y)


def test_levels_and_dtypes_draw_the_same_mask():
    used, masks, results = _core.level(), [], []
    try:
        for _ in filter(_core.set_level, _core.LEVELS):
            results.append(everything())
            for dtype in (np.float32, np.float64):
                rl.manual_seed(0)
                masks.append(uniform_weights(dtype=dtype))
    finally:
        _core.set_level(used)
    for mask in masks[1:]:
        np.testing.assert_array_equal(mask, masks[0])
    for result in results[1:]:
        for x, y in zip(result, results[0], strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5)


def test_a_recorded_program_draws_anew_at_each_run():
    rl.manual_seed(6)
    x = rl.randn(2, 3, 70, 8).requires_grad_()
    state = rl.get_rng_state()

    def step():
        x.grad = None
        out = attend(x, x * 0.5, x + 1, causal=True)
        (out * out).sum().backward()
        return out

    eager = []
    for _ in range(5):
        out = step().detach().numpy().copy()
        eager.append((out, x.grad.numpy().copy()))
    after = default_generator.state.copy()
    rl.set_rng_state(state)
    step()
    _core.record_start()
    out = step()
    program = _core.record_stop()
    gradient = x.grad
    for run, (value, expected) in enumerate(eager[1:]):
        if run > 0:
            program.run()
        np.testing.assert_array_equal(out.detach().numpy(), value)
        np.testing.assert_array_equal(gradient.numpy(), expected)
    np.testing.assert_array_equal(default_generator.state, after)
    assert (eager[1][0] != eager[2][0]).any()


def test_a_state_that_moved_on_does_not_change_backward():
    def gradient(between):
        rl.manual_seed(2)
        x = rl.randn(1, 2, 20, 8).requires_grad_()
        out = attend(x, x, x)
        if between:
            rl.rand(1000)
        out.sum().backward()
        return x.grad.numpy()

    np.testing.assert_array_equal(gradient(True), gradient(False))


def test_probabilities_zero_and_one():
    q, k, v = (rl.randn(2, 2, 70, 8).requires_grad_() for _ in range(3))
    before = default_generator.state.copy()
    np.testing.assert_array_equal(
        attend(q, k, v, p=0.0).detach().numpy(),
        F.scaled_dot_product_attention(q, k, v).detach().numpy(),
    )
    np.testing.assert_array_equal(default_generator.state, before)
    out = attend(q, k, v, p=1.0)
    out.sum().backward()
    for x in (out.detach(), q.grad, k.grad, v.grad):
        assert (x.numpy() == 0).all()


def test_memory_is_linear_in_time():
    def kept_bytes(time):
        q = rl.randn(1, 1, time, 8).requires_grad_()
        before = rl.memory_stats()["in_use"]
        out = attend(q, q, q)
        used = rl.memory_stats()["in_use"] - before
        out.sum().backward()
        return used

    assert kept_bytes(4096) < 2.5 * kept_bytes(2048) < 2.5 * 6 * 2048 * 8 * 4


def test_second_derivatives_are_refused_by_name():
    x = rl.randn(1, 1, 3, 4).requires_grad_()
    attend(x, x, x).sum().backward(create_graph=True)
    with pytest.raises(GraphError, match="no derivative of its own"):
        x.grad.sum().backward()


def test_the_kernel_wants_a_generator():
    q = np.zeros((1, 1, 2, 4), np.float32)
    with pytest.raises(ValueError, match=r"attention: p = 0\.5 needs state"):
        kernels.attention(q, q, q, None, None, 1.0, False, None, 0.5)
    with pytest.raises(ValueError, match="attention: p must lie in"):
        kernels.attention(q, q, q, None, None, 1.0, False, default_generator.state, 1.5)
