"""Losses as modules; each calls the function of its name."""

from __future__ import annotations

from rushlight import ops
from rushlight.nn.module import Module
from rushlight.tensor import Tensor


class CrossEntropyLoss(Module):
    """See `cross_entropy`."""

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.ignore_index, self.reduction = ignore_index, reduction
        self.label_smoothing = label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See `cross_entropy`."""
        return ops.cross_entropy(
            input, target, self.weight, self.ignore_index, self.reduction, self.label_smoothing
        )


class NLLLoss(Module):
    """See `nll_loss`."""

    weight: Tensor | None

    def __init__(
        self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.ignore_index, self.reduction = ignore_index, reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See `nll_loss`."""
        return ops.nll_loss(input, target, self.weight, self.ignore_index, self.reduction)


class MSELoss(Module):
    """See `mse_loss`."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See `mse_loss`."""
        return ops.mse_loss(input, target, self.reduction)


class L1Loss(Module):
    """See `l1_loss`."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See `l1_loss`."""
        return ops.l1_loss(input, target, self.reduction)


class SmoothL1Loss(Module):
    """See `smooth_l1_loss`."""

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__()
        self.reduction, self.beta = reduction, beta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See `smooth_l1_loss`."""
        return ops.smooth_l1_loss(input, target, self.reduction, self.beta)


class HuberLoss(Module):
    """See `huber_loss`."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__()
        self.reduction, self.delta = reduction, delta

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See `huber_loss`."""
        return ops.huber_loss(input, target, self.reduction, self.delta)


class BCEWithLogitsLoss(Module):
    """See `binary_cross_entropy_with_logits`."""

    weight: Tensor | None
    pos_weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See `binary_cross_entropy_with_logits`."""
        return ops.binary_cross_entropy_with_logits(
            input, target, self.weight, self.reduction, self.pos_weight
        )
