"""Activations as modules; each calls the function of its name.

inplace is taken for the sake of PyTorch's scripts and changes nothing.
"""

from __future__ import annotations

from typing import Any

from rushlight import ops
from rushlight.nn.function import FunctionLayer
from rushlight.tensor import Tensor


class Sigmoid(FunctionLayer):
    """1 / (1 + exp(-x))."""

    function = staticmethod(ops.sigmoid)


class Tanh(FunctionLayer):
    """Hyperbolic tangent."""

    function = staticmethod(ops.tanh)


class _Plain(FunctionLayer):
    """A function without options but `inplace`."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, x: Tensor) -> Any:
        """See the function."""
        return type(self).function(x)  # without the detour by way of options


class ReLU(_Plain):
    """max(x, 0)."""

    function = staticmethod(ops.relu)


class SiLU(_Plain):
    """X * sigmoid(x)."""

    function = staticmethod(ops.silu)


class ReLU6(_Plain):
    """X kept within [0, 6]."""

    function = staticmethod(ops.relu6)


class Hardsigmoid(_Plain):
    """relu6(x + 3) / 6."""

    function = staticmethod(ops.hardsigmoid)


class Hardswish(_Plain):
    """X * hardsigmoid(x)."""

    function = staticmethod(ops.hardswish)


class Mish(_Plain):
    """X * tanh(softplus(x))."""

    function = staticmethod(ops.mish)


class GELU(FunctionLayer):
    """X times the normal distribution function; approximate="tanh" for the tanh form."""

    function = staticmethod(ops.gelu)
    options = shown = ("approximate",)

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate


class Softmax(FunctionLayer):
    """Softmax along an axis."""

    function = staticmethod(ops.softmax)
    options = shown = ("dim",)

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim


class LogSoftmax(Softmax):
    """Logarithm of softmax along an axis."""

    function = staticmethod(ops.log_softmax)


class Hardtanh(FunctionLayer):
    """X kept within [min_val, max_val]."""

    function = staticmethod(ops.hardtanh)
    options = shown = ("min_val", "max_val")

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.min_val, self.max_val, self.inplace = min_val, max_val, inplace


class LeakyReLU(FunctionLayer):
    """X where it is positive, negative_slope * x elsewhere."""

    function = staticmethod(ops.leaky_relu)
    options = shown = ("negative_slope",)

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope, self.inplace = negative_slope, inplace


class ELU(FunctionLayer):
    """X where it is positive, alpha * (exp(x) - 1) elsewhere."""

    function = staticmethod(ops.elu)
    options = shown = ("alpha",)

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha, self.inplace = alpha, inplace


class Softplus(FunctionLayer):
    """log(1 + exp(beta * x)) / beta."""

    function = staticmethod(ops.softplus)
    options = shown = ("beta", "threshold")

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold
