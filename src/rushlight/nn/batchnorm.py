"""Batch normalisation with running statistics."""

from __future__ import annotations

from typing import Any

from rushlight import creation, ops
from rushlight.dtypes import dtype, float32, int64
from rushlight.errors import ShapeError
from rushlight.nn import init
from rushlight.nn.module import Module, Parameter
from rushlight.tensor import Tensor

Dtype = dtype


class _BatchNorm(Module):
    """See `batch_norm`.  momentum None: running statistics are the mean over all batches."""

    weight: Parameter | None
    bias: Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    ranks: tuple[int, ...] = ()  # how many axes an input may have

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Dtype = float32,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        kind: Any = {"device": device, "dtype": dtype}
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        for name, wanted in (("weight", affine), ("bias", affine and bias)):
            parameter = Parameter(creation.empty(num_features, **kind)) if wanted else None
            self.register_parameter(name, parameter)
        for name in ("running_mean", "running_var"):
            statistic = creation.empty(num_features, **kind) if track_running_stats else None
            self.register_buffer(name, statistic)
        count = creation.zeros((), device=device, dtype=int64) if track_running_stats else None
        self.register_buffer("num_batches_tracked", count)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Mean 0, variance 1, no batch counted."""
        for statistic, value in (
            (self.running_mean, 0),
            (self.running_var, 1),
            (self.num_batches_tracked, 0),
        ):
            if statistic is not None:
                statistic.fill_(value)

    def reset_parameters(self) -> None:
        """Weight 1, bias 0, and `reset_running_stats`."""
        self.reset_running_stats()
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """See `batch_norm`.  Raises ShapeError for another number of axes."""
        if x.ndim not in self.ranks:
            expected = f"expected {' or '.join(map(str, self.ranks))} axes"
            raise ShapeError(f"{type(self).__name__}: input {tuple(x.shape)}, {expected}")
        mean, var, batches = self.running_mean, self.running_var, self.num_batches_tracked
        by_batch = self.training or mean is None
        if self.training and not self.track_running_stats:
            mean = var = batches = None
        factor = self.momentum
        if factor is None:
            factor = 0.0 if batches is None or not self.training else 1 / (batches.item() + 1)
        return ops.batch_norm(
            x, mean, var, self.weight, self.bias, by_batch, factor, self.eps, batches=batches
        )

    def extra_repr(self) -> str:
        """Size and options."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, bias={self.bias is not None}, "
            f"track_running_stats={self.track_running_stats}"
        )


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of (N, C) or (N, C, L), see `batch_norm`."""

    ranks = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of (N, C, Y, X), see `batch_norm`."""

    ranks = (4,)


class BatchNorm3d(_BatchNorm):
    """Batch normalisation of (N, C, Z, Y, X), see `batch_norm`."""

    ranks = (5,)
