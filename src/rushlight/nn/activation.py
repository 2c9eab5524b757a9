"""Activations as modules; each calls the function of its name.

inplace is taken for the sake of PyTorch's scripts and changes nothing.
"""

from __future__ import annotations

from rushlight import ops
from rushlight.nn.module import Module
from rushlight.tensor import Tensor


class ReLU(Module):
    """max(x, 0)."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        """See `relu`."""
        return ops.relu(x)


class SiLU(Module):
    """X * sigmoid(x)."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace

    def forward(self, x: Tensor) -> Tensor:
        """See `silu`."""
        return ops.silu(x)


class GELU(Module):
    """X times the normal distribution function; approximate="tanh" for the tanh form."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Tensor) -> Tensor:
        """See `gelu`."""
        return ops.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        """The form."""
        return f"approximate={self.approximate!r}"


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Tensor) -> Tensor:
        """See `sigmoid`."""
        return ops.sigmoid(x)


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, x: Tensor) -> Tensor:
        """See `tanh`."""
        return ops.tanh(x)


class Softmax(Module):
    """Softmax along an axis."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """See `softmax`."""
        return ops.softmax(x, self.dim)

    def extra_repr(self) -> str:
        """The axis."""
        return f"dim={self.dim}"


class LogSoftmax(Module):
    """Logarithm of softmax along an axis."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """See `log_softmax`."""
        return ops.log_softmax(x, self.dim)

    def extra_repr(self) -> str:
        """The axis."""
        return f"dim={self.dim}"


class _Plain(Module):
    """A function without options but `inplace`."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = inplace


class ReLU6(_Plain):
    """X kept within [0, 6]."""

    def forward(self, x: Tensor) -> Tensor:
        """See `relu6`."""
        return ops.relu6(x)


class Hardsigmoid(_Plain):
    """relu6(x + 3) / 6."""

    def forward(self, x: Tensor) -> Tensor:
        """See `hardsigmoid`."""
        return ops.hardsigmoid(x)


class Hardswish(_Plain):
    """X * hardsigmoid(x)."""

    def forward(self, x: Tensor) -> Tensor:
        """See `hardswish`."""
        return ops.hardswish(x)


class Mish(_Plain):
    """X * tanh(softplus(x))."""

    def forward(self, x: Tensor) -> Tensor:
        """See `mish`."""
        return ops.mish(x)


class Hardtanh(Module):
    """X kept within [min_val, max_val]."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.min_val, self.max_val, self.inplace = min_val, max_val, inplace

    def forward(self, x: Tensor) -> Tensor:
        """See `hardtanh`."""
        return ops.hardtanh(x, self.min_val, self.max_val)

    def extra_repr(self) -> str:
        """The bounds."""
        return f"min_val={self.min_val}, max_val={self.max_val}"


class LeakyReLU(Module):
    """X where it is positive, negative_slope * x elsewhere."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        self.negative_slope, self.inplace = negative_slope, inplace

    def forward(self, x: Tensor) -> Tensor:
        """See `leaky_relu`."""
        return ops.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        """The slope."""
        return f"negative_slope={self.negative_slope}"


class ELU(Module):
    """X where it is positive, alpha * (exp(x) - 1) elsewhere."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        self.alpha, self.inplace = alpha, inplace

    def forward(self, x: Tensor) -> Tensor:
        """See `elu`."""
        return ops.elu(x, self.alpha)

    def extra_repr(self) -> str:
        """Alpha."""
        return f"alpha={self.alpha}"


class Softplus(Module):
    """log(1 + exp(beta * x)) / beta."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        self.beta, self.threshold = beta, threshold

    def forward(self, x: Tensor) -> Tensor:
        """See `softplus`."""
        return ops.softplus(x, self.beta, self.threshold)

    def extra_repr(self) -> str:
        """Beta and threshold."""
        return f"beta={self.beta}, threshold={self.threshold}"
