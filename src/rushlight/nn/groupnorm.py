"""Normalisation of the channels of each sample."""

from __future__ import annotations

from typing import Any

from rushlight import creation, ops
from rushlight.dtypes import dtype, float32
from rushlight.errors import ShapeError
from rushlight.nn import init
from rushlight.nn.batchnorm import _BatchNorm
from rushlight.nn.module import Module, Parameter
from rushlight.tensor import Tensor

Dtype = dtype


class GroupNorm(Module):
    """Group normalisation of (N, C, ...), see `group_norm`; weight 1, bias 0 at the start."""

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Dtype = float32,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(
                f"GroupNorm: {num_groups} groups do not divide {num_channels} channels"
            )
        kind: Any = {"device": device, "dtype": dtype}
        self.num_groups, self.num_channels = num_groups, num_channels
        self.eps, self.affine = eps, affine
        for name, wanted in (("weight", affine), ("bias", affine and bias)):
            parameter = Parameter(creation.empty(num_channels, **kind)) if wanted else None
            self.register_parameter(name, parameter)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Weight 1, bias 0."""
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """See `group_norm`."""
        return ops.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """Sizes and options."""
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class _InstanceNorm(_BatchNorm):
    """See `instance_norm`.  As in PyTorch, num_batches_tracked stays 0 and momentum None is 0."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Dtype = float32,
        *,
        bias: bool = True,
    ) -> None:
        options: Any = num_features, eps, momentum, affine, track_running_stats, device, dtype
        super().__init__(*options, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """See `instance_norm`.  Raises ShapeError for another number of axes or channels."""
        single = x.ndim == self.ranks[0]
        if x.ndim not in self.ranks or x.shape[0 if single else 1] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}: input {tuple(x.shape)}, expected {self.num_features} "
                f"channels and {self.ranks[0]} or {self.ranks[1]} axes"
            )
        out = ops.instance_norm(
            x.unsqueeze(0) if single else x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
        )
        return out.squeeze(0) if single else out


class InstanceNorm1d(_InstanceNorm):
    """Instance normalisation of (N, C, L) or (C, L), see `instance_norm`."""

    ranks = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Instance normalisation of (N, C, Y, X) or (C, Y, X), see `instance_norm`."""

    ranks = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Instance normalisation of (N, C, Z, Y, X) or (C, Z, Y, X), see `instance_norm`."""

    ranks = (4, 5)
