"""Squeeze-and-excite: channels weighed by what the image holds."""

from __future__ import annotations

from rushlight import ops
from rushlight.nn.conv import Conv2d
from rushlight.nn.module import Module
from rushlight.tensor import Tensor


class SqueezeExcite(Module):
    """Channels weighed by what the whole image has in them.  (B, C, Y, X) -> the same.

    x * sigmoid(expand(relu(reduce(mean of x)))), with C / 16 channels in between.
    Raises: ValueError for fewer than 16 channels.  Source: Hu et al. 2017, arXiv:1709.01507.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        if channels < 16:
            raise ValueError(f"SqueezeExcite: {channels} channels are fewer than 16")
        self.reduce = Conv2d(channels, channels // 16, 1)
        self.expand = Conv2d(channels // 16, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        weights = ops.relu(self.reduce(ops.adaptive_avg_pool2d(x, 1)))  # (B, C / 16, 1, 1)
        return x * ops.sigmoid(self.expand(weights))
