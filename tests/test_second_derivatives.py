"""Gradients of gradients: right where an operation has them, refused by name elsewhere."""

import numpy as np
import pytest

import rushlight as rl
import rushlight.nn.functional as F
from rushlight import GraphError

SECOND = {
    "exp": (lambda x: x.exp() * x, lambda x: np.exp(x) * (2 + x)),
    "sqrt": (lambda x: x.sqrt() * x, lambda x: 0.75 / np.sqrt(x)),
    "rsqrt": (lambda x: x.rsqrt(), lambda x: 0.75 * x**-2.5),
    "log": (lambda x: x.log() * x, lambda x: 1 / x),
    "pow": (lambda x: x**3, lambda x: 6 * x),
    "div": (lambda x: 1 / x, lambda x: 2 / x**3),
    "norm": (lambda x: x.norm(dim=1, keepdim=True) * x, lambda x: 2 + 0 * x),
    "tanh": (lambda x: x.tanh() + x**3, None),
    "sigmoid": (lambda x: x.sigmoid() + x**3, None),
    "softmax": (lambda x: x.softmax(0) * x, None),
    "log_softmax": (lambda x: x.log_softmax(0) * x, None),
    "logsumexp": (lambda x: x.logsumexp(0), None),
    "linear": (lambda x: F.linear(x, rl.ones(1, 1).double(), activation="gelu"), None),
    "attention": (lambda x: F.scaled_dot_product_attention(x, x, x), None),
    "layer_norm": (lambda x: F.layer_norm(x, (1,)) * x, None),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives_are_right_or_refused_by_name(name):
    function, second = SECOND[name]
    x = rl.tensor([[0.5], [1.5]], dtype=rl.float64, requires_grad=True)
    function(x).sum().backward(create_graph=True)
    first, x.grad = x.grad, None
    if second is None:
        with pytest.raises(GraphError, match="no derivative of its own"):
            first.sum().backward()
        return
    first.sum().backward(create_graph=True)
    np.testing.assert_allclose(x.grad.detach().numpy(), second(x.detach().numpy()), rtol=1e-12)


def test_third_derivative_of_an_output_that_is_kept():
    x = rl.tensor([0.5], dtype=rl.float64, requires_grad=True)
    y = x.exp()
    for _ in range(3):
        y.sum().backward(create_graph=True)
        y, x.grad = x.grad, None
    np.testing.assert_allclose(y.item(), np.exp(0.5), rtol=1e-12)


def test_gradients_under_create_graph_are_one_per_leaf():
    x, y = rl.ones(2, requires_grad=True), rl.ones(2, requires_grad=True)
    (x + y).sum().backward(create_graph=True)
    x.grad.detach().mul_(3)
    assert y.grad.tolist() == [1, 1]
