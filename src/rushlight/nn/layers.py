"""Layers with parameters, and dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rushlight import creation, ops
from rushlight.dtypes import dtype, float32
from rushlight.errors import ShapeError
from rushlight.nn import init
from rushlight.nn.module import Module, Parameter
from rushlight.tensor import Tensor

Dtype = dtype


class Identity(Module):
    """Returns its input."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        """X."""
        return x


class Flatten(Module):
    """Joins axes: (N, ...) -> (N, D) by default."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor) -> Tensor:
        """See `flatten`."""
        return ops.flatten(x, self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        """The axes."""
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Linear(Module):
    """X W^T + b.  (..., in_features) -> (..., out_features).

    weight (out_features, in_features) and bias (out_features,) start uniform within
    ± 1 / sqrt(in_features).
    """

    bias: Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Dtype = float32,
    ) -> None:
        super().__init__()
        kind: Any = {"device": device, "dtype": dtype}
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(creation.empty(out_features, in_features, **kind))
        if bias:
            self.bias = Parameter(creation.empty(out_features, **kind))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.in_features) if self.in_features else 0.0
            init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """See `linear`."""
        return ops.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Sizes."""
        bias = self.bias is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}"


class Embedding(Module):
    """A vector per index.  (...) integers -> (..., embedding_dim).  Rows start as N(0, 1)."""

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        device: Any = None,
        dtype: Dtype = float32,
    ) -> None:
        super().__init__()
        kind: Any = {"device": device, "dtype": dtype}
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise IndexError(f"padding_idx {padding_idx} is outside {num_embeddings} embeddings")
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.weight = Parameter(creation.empty(num_embeddings, embedding_dim, **kind))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values; the padding row is zero."""
        init.normal_(self.weight)
        if self.padding_idx is not None:
            self.weight.detach()[self.padding_idx] = 0.0

    def forward(self, index: Tensor) -> Tensor:
        """See `embedding`."""
        return ops.embedding(index, self.weight, self.padding_idx)

    def extra_repr(self) -> str:
        """Sizes."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


def _sizes(normalized_shape: int | Sequence[int]) -> tuple[int, ...]:
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape:
        raise ShapeError("normalized_shape must name at least one axis")
    return shape


class LayerNorm(Module):
    """Layer normalisation over the last axes, see `layer_norm`; weight 1, bias 0 at the start."""

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Dtype = float32,
    ) -> None:
        super().__init__()
        kind: Any = {"device": device, "dtype": dtype}
        self.normalized_shape, self.eps = _sizes(normalized_shape), eps
        shape = self.normalized_shape
        affine = Parameter(creation.ones(shape, **kind)) if elementwise_affine else None
        self.register_parameter("weight", affine)
        shift = elementwise_affine and bias
        self.register_parameter("bias", Parameter(creation.zeros(shape, **kind)) if shift else None)

    def forward(self, x: Tensor) -> Tensor:
        """See `layer_norm`."""
        return ops.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Shape and eps."""
        return f"{self.normalized_shape}, eps={self.eps}"


class RMSNorm(Module):
    """Root-mean-square normalisation over the last axes, see `rms_norm`; weight 1 at the start."""

    weight: Parameter | None

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Dtype = float32,
    ) -> None:
        super().__init__()
        kind: Any = {"device": device, "dtype": dtype}
        self.normalized_shape, self.eps = _sizes(normalized_shape), eps
        affine = creation.ones(self.normalized_shape, **kind)
        self.register_parameter("weight", Parameter(affine) if elementwise_affine else None)

    def forward(self, x: Tensor) -> Tensor:
        """See `rms_norm`."""
        return ops.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """Shape and eps."""
        return f"{self.normalized_shape}, eps={self.eps}"


class Dropout(Module):
    """Zeroes elements with probability p while training, see `dropout`."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"{type(self).__name__}: p must lie in [0, 1], got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, x: Tensor) -> Tensor:
        """See `dropout`."""
        return ops.dropout(x, self.p, self.training, self.inplace)

    def extra_repr(self) -> str:
        """The probability."""
        return f"p={self.p}"
