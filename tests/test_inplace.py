"""Changing tensors in place: results, gradients, memory that is shared."""

import numpy as np
import pytest

import rushlight as rl
from rushlight import GraphError


def test_in_place_results_reach_every_source():
    p, q = rl.ones(3, requires_grad=True), rl.ones(3, dtype=rl.float64, requires_grad=True)
    b = rl.zeros(3)
    b.copy_(p)
    (b * 2).sum().backward()
    assert p.grad.tolist() == [2, 2, 2]
    b = rl.zeros(3)
    b += q
    b.sum().backward()
    assert q.grad.dtype == rl.float64
    whole = rl.zeros(3, dtype=rl.int64)
    whole.copy_(p * 2)
    assert not whole.requires_grad
    assert whole.tolist() == [2, 2, 2]
    for change in (
        lambda b: b[0].copy_(p * 2),
        lambda b: b.view(-1)[:3].add_(p),
        lambda b: (b.view(-1), b.add_(p)),
    ):
        with pytest.raises(GraphError, match="shares memory with a view"):
            change(rl.zeros(2, 3))


@pytest.mark.parametrize("name", ["mul_", "div_", "clamp_", "pow_", "remainder_"])
def test_in_place_operations_keep_what_their_gradient_needs(name):
    x = rl.tensor([0.5, -2.0, 3.0], requires_grad=True)
    y = rl.tensor([2.0, 3.0, 4.0], requires_grad=True)
    arguments = (-1.0, 1.0) if name == "clamp_" else (3,) if name == "pow_" else (y,)
    getattr(x, name[:-1])(*arguments).sum().backward()
    expected = [None if z.grad is None else z.grad.tolist() for z in (x, y)]
    x.grad = y.grad = None
    middle = x * 1
    getattr(middle, name)(*arguments).sum().backward()
    assert [None if z.grad is None else z.grad.tolist() for z in (x, y)] == expected


def test_augmented_assignment_changes_in_place():
    x = kept = rl.ones(3) * 3
    x **= 2
    x //= 2
    x %= 3
    mask = kept_mask = rl.ones(3, dtype=rl.bool)
    mask &= rl.tensor([True, False, True])
    mask |= rl.tensor([False, True, False])
    mask ^= rl.tensor([True, False, False])
    assert kept.tolist() == [1, 1, 1]
    assert kept_mask.tolist() == [False, True, True]


def test_overlapping_copies():
    x = rl.arange(100000).float()
    x[1:] = x[:-1]
    assert x.tolist() == [0.0, *range(99999)]
    y = rl.randn(300, 300)
    expected = y.numpy().T.copy()
    y.copy_(y.T)
    np.testing.assert_array_equal(y.numpy(), expected)


def test_a_tensor_changed_by_itself():
    x = rl.tensor([1.0, 2.0], requires_grad=True)
    y = x * 3
    y.mul_(y)
    y.sum().backward()
    assert x.grad.tolist() == [18, 36]


def test_what_cannot_be_written_is_left_as_it_is():
    x, w = rl.ones(1).expand(3), rl.ones(3, requires_grad=True)
    with pytest.raises((TypeError, GraphError)):
        x += w
    assert not x.requires_grad


def test_an_index_may_change_after_its_use():
    for index in ([0, 1], np.array([0, 1])):
        x = rl.arange(4.0).requires_grad_()
        y = x[index].sum()
        index[0] = 3
        y.backward()
        assert x.grad.tolist() == [1, 1, 0, 0]


def test_indices_of_any_kind_read_as_in_numpy():
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    nothing = np.zeros((0, 3), np.bool_)
    for index in (np.array(1), [1], [], [[0], [1]], np.array([True, False]), ([0, 1], [2, 0])):
        np.testing.assert_array_equal(rl.tensor(x)[index].numpy(), x[index])
    np.testing.assert_array_equal(rl.zeros(0, 3)[nothing].numpy(), np.zeros((0, 3))[nothing])
