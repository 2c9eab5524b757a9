"""Wrong input gives one clear error that names the operation, the shapes and what was expected."""

import numpy as np
import pytest

import rushlight as rl
import rushlight.nn.functional as F
from rushlight import DtypeError, ShapeError

A, B, LABELS = rl.ones(2, 3), rl.ones(4, 5), rl.tensor([0, 1])
Q = rl.ones(1, 2, 3, 4)

CASES = [
    (lambda: A + B, ShapeError, r"add.*\(2, 3\).*\(4, 5\)"),
    (lambda: A * B, ShapeError, "mul"),
    (lambda: A < B, ShapeError, "lt"),
    (lambda: rl.where(A > 0, B, 1.0), ShapeError, "where"),
    (lambda: rl.where(A, A, A), DtypeError, "where.*bool"),
    (lambda: A @ B, ShapeError, r"matmul.*\(2, 3\).*\(4, 5\)"),
    (lambda: A @ rl.tensor(1.0), ShapeError, "matmul"),
    (lambda: rl.ones(2, 3, 4) @ rl.ones(3, 4, 5), ShapeError, "matmul"),
    (lambda: F.linear(A, B), ShapeError, r"linear.*\(2, 3\).*\(4, 5\)"),
    (lambda: F.linear(A, rl.ones(4, 3), rl.ones(5)), ShapeError, "linear.*bias"),
    (lambda: F.linear(A, rl.ones(4, 3, dtype=rl.float64)), DtypeError, "float64"),
    (lambda: F.linear(A, rl.ones(4, 3), activation="swish"), ValueError, "swish"),
    (lambda: F.linear(LABELS, rl.ones(4, 2)), DtypeError, "int64"),
    (lambda: A.view(4), ShapeError, r"view.*\(2, 3\)"),
    (lambda: A.T.view(6), ShapeError, "reshape"),
    (lambda: A.reshape(-1, -1), ShapeError, "reshape"),
    (lambda: A.transpose(0, 2), IndexError, "transpose.*dim 2"),
    (lambda: A.sum(3), IndexError, "sum.*dim 3"),
    (lambda: A.sum((0, 0)), ValueError, "twice"),
    (lambda: rl.zeros(0, 3).amax(0), ValueError, "empty"),
    (lambda: rl.zeros(0).argmax(), IndexError, "argmax"),
    (lambda: rl.cat([A, B]), ShapeError, "cat"),
    (lambda: rl.stack([A, B]), ShapeError, "stack"),
    (lambda: A.split(0), ValueError, "split"),
    (lambda: A.split([1, 3], 1), ShapeError, "split"),
    (lambda: A.expand(3, 3), ShapeError, "expand"),
    (lambda: A[5], IndexError, r"\(2, 3\)"),
    (lambda: A[0, 0, 0], IndexError, "getitem"),
    (lambda: A[rl.tensor([7])], IndexError, "getitem"),
    (lambda: rl.gather(A, 1, rl.tensor([[3]])), IndexError, r"gather.*3"),
    (lambda: F.embedding(rl.tensor([0, 9]), A), IndexError, "embedding.*9"),
    (lambda: F.embedding(rl.tensor([0, -1]), A), IndexError, "embedding.*-1"),
    (lambda: F.embedding(A, A), DtypeError, "embedding"),
    (lambda: F.embedding(LABELS, rl.ones(3)), ShapeError, "embedding"),
    (lambda: F.layer_norm(A, (4,)), ShapeError, "layer_norm"),
    (lambda: F.layer_norm(A, (3,), rl.ones(2)), ShapeError, "layer_norm"),
    (lambda: F.rms_norm(A, (3,), rl.ones(1)), ShapeError, "rms_norm"),
    (lambda: F.cross_entropy(A, rl.tensor([0, 1, 2])), ShapeError, "cross_entropy"),
    (lambda: F.cross_entropy(A, rl.tensor([0, 3])), IndexError, "cross_entropy.*3"),
    (lambda: F.cross_entropy(A, LABELS, reduction="average"), ValueError, "average"),
    (lambda: F.cross_entropy(A, LABELS, weight=rl.ones(2)), ShapeError, "weight"),
    (lambda: F.mse_loss(A, B), ShapeError, "mse_loss"),
    (lambda: F.gelu(A, approximate="erf"), ValueError, "erf"),
    (lambda: F.scaled_dot_product_attention(Q, Q[:, :1], Q[:, :1]), ShapeError, "enable_gqa"),
    (lambda: F.scaled_dot_product_attention(Q, Q[..., :2], Q), ShapeError, "scaled_dot"),
    (lambda: F.scaled_dot_product_attention(rl.ones(1, 3, 2, 4), Q, Q, enable_gqa=True), ShapeError, "3 query heads"),
    (lambda: F.scaled_dot_product_attention(Q, Q, Q, attn_mask=rl.ones(5, 5)), ShapeError, "mask"),
    (lambda: F.scaled_dot_product_attention(Q, Q, Q, attn_mask=rl.ones(3, 3), is_causal=True), ValueError, "both"),
    (lambda: rl.tensor([[1, 2], [3]]), ShapeError, "ragged"),
    (lambda: rl.tensor(1j), TypeError, "complex"),
    (lambda: rl.tensor(["a"]), TypeError, "tensor"),
    (lambda: rl.zeros(-1), ValueError, "negative"),
    (lambda: rl.zeros(2**40, 2**40), MemoryError, "too large"),
    (lambda: rl.zeros(2**70), MemoryError, "too large"),
    (lambda: F.pad(A, (2**64, 0)), MemoryError, "too large"),
    (lambda: rl.randint(3, 3, (2,)), ValueError, "empty"),
    (lambda: rl.multinomial(rl.zeros(3), 1), ValueError, "multinomial"),
    (lambda: A.to("cuda"), rl.DeviceError, "cuda"),
    (lambda: A.cuda(), rl.DeviceError, "CPU"),
    (lambda: A.item(), ShapeError, "item"),
    (lambda: rl.ones(1, requires_grad=True).numpy(), rl.GraphError, "detach"),
    (lambda: rl.autocast("cpu"), NotImplementedError, "autocast"),
    (lambda: rl.set_num_threads(0), ValueError, "at least 1"),
    (lambda: bool(A), ShapeError, "one element"),
    (lambda: rl.from_numpy([1.0]), TypeError, "from_numpy"),
    (lambda: rl.exp(A.to(rl.float16)), DtypeError, "float16"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)))
def test_error(number):
    call, kind, text = CASES[number]
    with pytest.raises(kind, match=f"(?s){text}"):
        call()


def test_the_door_refuses_what_it_cannot_read():
    from rushlight import _core, kernels

    x = np.ones(3, np.float32)
    with pytest.raises(TypeError, match="arguments expected"):
        _core.call(kernels.K.exp, x)
    with pytest.raises(ValueError, match="no such kernel"):
        _core.call(10_000)
    frozen = np.ones(3, np.float32)
    frozen.setflags(write=False)
    with pytest.raises(TypeError, match=r"exp: .*cannot be written"):
        _core.call(kernels.K.exp, frozen, x)
    with pytest.raises(TypeError, match="exp"):
        _core.call(kernels.K.exp, x, "text")
    with pytest.raises(TypeError, match="misaligned"):
        _core.call(kernels.K.exp, x, np.frombuffer(b"\0" * 13, np.uint8)[1:].view(np.float32))
    with pytest.raises(ValueError, match="missing"):
        _core.call(kernels.K.exp, x, None)
    with pytest.raises(TypeError, match="axes"):
        _core.call(kernels.K.neg, np.ones((1,) * 9, np.float32), np.ones((1,) * 9, np.float32))
    with pytest.raises(ShapeError):
        _core.call(kernels.K.exp, np.ones(4, np.float32), x)


def test_both_ways_through_the_door_agree():
    """A plain array's fields are read as they are, another type goes by the buffer protocol."""
    from rushlight import _core, kernels

    class Other(np.ndarray):
        pass

    grid = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for x in (grid, grid.T, grid[:, ::-1], grid[:, 1:2], grid[0, 0, 0], grid[:0], grid.T[:, :0]):
        for kind in (np.ndarray, Other):
            y, z = np.empty(x.shape, np.float32), np.empty(x.shape, np.float32)
            _core.call(kernels.K.add, y.view(kind), x.view(kind), x)
            _core.call(kernels.K.neg, z, x.view(kind))
            np.testing.assert_array_equal(y, x + x)
            np.testing.assert_array_equal(z, -x)
    with pytest.raises(TypeError, match="neg"):
        _core.call(kernels.K.neg, grid, grid.astype(">f4"))


def test_sizes_zero_and_one():
    for n in (0, 1):
        x = rl.randn(n, n, requires_grad=True)
        w = rl.randn(n, n, requires_grad=True)
        y = F.layer_norm(F.softmax(F.gelu(F.linear(x, w)), -1), (n,))
        y = F.dropout(F.rms_norm(y, (n,)) + rl.cat([x, x])[:n].tanh(), 0.5)
        (y @ y.T).sum().backward()
        assert x.grad.shape == (n, n)
        q = rl.randn(n, 1, n, n, requires_grad=True)
        F.scaled_dot_product_attention(q, q, q, is_causal=True).sum().backward()
        assert q.grad.shape == q.shape
        loss = F.cross_entropy(rl.randn(n, 3, requires_grad=True), rl.zeros(n, dtype=rl.int64))
        loss.backward()
        assert np.isfinite(loss.item())
        assert rl.randn(n).sum().item() == pytest.approx(rl.zeros(1).item(), abs=10)
