"""Initial values, written in place and outside the graph.  Each function returns its tensor."""

from __future__ import annotations

import math
from typing import TypeVar

from rushlight.autograd import no_grad
from rushlight.errors import ShapeError
from rushlight.tensor import Tensor

T = TypeVar("T", bound=Tensor)

_GAINS = {
    "linear": 1.0,
    "sigmoid": 1.0,
    "tanh": 5 / 3,
    "relu": math.sqrt(2),
    "selu": 3 / 4,
}


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor that keeps the variance through a non-linearity; param: leaky_relu's slope."""
    if nonlinearity == "leaky_relu":
        slope = 0.01 if param is None else param
        return math.sqrt(2 / (1 + slope**2))
    if nonlinearity not in _GAINS:
        raise ValueError(
            f"calculate_gain: {nonlinearity!r} is not one of {[*_GAINS, 'leaky_relu']}"
        )
    return _GAINS[nonlinearity]


def _fans(tensor: Tensor) -> tuple[int, int]:
    """Inputs and outputs of one unit: (out, in, ...) with the rest a receptive field."""
    shape = tensor.array.shape
    if len(shape) < 2:
        raise ShapeError(f"fan in and fan out need at least two axes, shape is {shape}")
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


@no_grad()
def uniform_(tensor: T, a: float = 0.0, b: float = 1.0) -> T:
    """Uniform in [a, b)."""
    tensor.uniform_(a, b)
    return tensor


@no_grad()
def normal_(tensor: T, mean: float = 0.0, std: float = 1.0) -> T:
    """Normal."""
    tensor.normal_(mean, std)
    return tensor


@no_grad()
def constant_(tensor: T, val: float) -> T:
    """One value."""
    tensor.fill_(val)
    return tensor


def zeros_(tensor: T) -> T:
    """Zeros."""
    return constant_(tensor, 0.0)


def ones_(tensor: T) -> T:
    """Ones."""
    return constant_(tensor, 1.0)


def xavier_uniform_(tensor: T, gain: float = 1.0) -> T:
    """Uniform within ± gain sqrt(6 / (fan_in + fan_out)).  Source: Glorot & Bengio 2010."""
    fan_in, fan_out = _fans(tensor)
    bound = gain * math.sqrt(6 / max(fan_in + fan_out, 1))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: T, gain: float = 1.0) -> T:
    """Normal with deviation gain sqrt(2 / (fan_in + fan_out)).  Source: Glorot & Bengio 2010."""
    fan_in, fan_out = _fans(tensor)
    return normal_(tensor, 0.0, gain * math.sqrt(2 / max(fan_in + fan_out, 1)))


def _kaiming_std(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"kaiming: mode must be 'fan_in' or 'fan_out', got {mode!r}")
    fan = _fans(tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(max(fan, 1))


def kaiming_uniform_(
    tensor: T, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> T:
    """Uniform within ± gain sqrt(3 / fan).  Source: arXiv:1502.01852."""
    bound = math.sqrt(3) * _kaiming_std(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(
    tensor: T, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> T:
    """Normal with deviation gain / sqrt(fan).  Source: arXiv:1502.01852."""
    return normal_(tensor, 0.0, _kaiming_std(tensor, a, mode, nonlinearity))
