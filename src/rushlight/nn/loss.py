"""Losses as modules; each calls the function of its name."""

from __future__ import annotations

from collections.abc import Callable

from rushlight import ops
from rushlight.nn.module import Module
from rushlight.tensor import Tensor


class _Loss(Module):
    """Calls a function with input, target and the options it names, attributes of the layer."""

    function: Callable[..., Tensor]
    options: tuple[str, ...] = ("reduction",)

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See the function."""
        return type(self).function(input, target, *[getattr(self, name) for name in self.options])


class MSELoss(_Loss):
    """See `mse_loss`."""

    function = staticmethod(ops.mse_loss)


class L1Loss(_Loss):
    """See `l1_loss`."""

    function = staticmethod(ops.l1_loss)


class SmoothL1Loss(_Loss):
    """See `smooth_l1_loss`."""

    function = staticmethod(ops.smooth_l1_loss)
    options = ("reduction", "beta")

    def __init__(self, reduction: str = "mean", beta: float = 1.0) -> None:
        super().__init__(reduction)
        self.beta = beta


class HuberLoss(_Loss):
    """See `huber_loss`."""

    function = staticmethod(ops.huber_loss)
    options = ("reduction", "delta")

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = delta


class NLLLoss(_Loss):
    """See `nll_loss`."""

    function = staticmethod(ops.nll_loss)
    options = ("weight", "ignore_index", "reduction")
    weight: Tensor | None

    def __init__(
        self, weight: Tensor | None = None, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.ignore_index = ignore_index


class CrossEntropyLoss(NLLLoss):
    """See `cross_entropy`."""

    def __init__(
        self,
        weight: Tensor | None = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(weight, ignore_index, reduction)
        self.label_smoothing = label_smoothing

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """See `cross_entropy`; without the detour by way of options, as it is in every step."""
        options = self.weight, self.ignore_index, self.reduction, self.label_smoothing
        return ops.cross_entropy(input, target, *options)


class BCEWithLogitsLoss(_Loss):
    """See `binary_cross_entropy_with_logits`."""

    function = staticmethod(ops.binary_cross_entropy_with_logits)
    options = ("weight", "reduction", "pos_weight")
    weight: Tensor | None
    pos_weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)
