"""Layers that drop whole channels or whole samples while training."""

from __future__ import annotations

from rushlight import ops
from rushlight.nn.layers import Dropout
from rushlight.tensor import Tensor


class Dropout1d(Dropout):
    """Zeroes channels of (N, C, L) or (C, L) with probability p, see `dropout1d`."""

    def forward(self, x: Tensor) -> Tensor:
        """See `dropout1d`."""
        return ops.dropout1d(x, self.p, self.training)


class Dropout2d(Dropout):
    """Zeroes channels of (N, C, H, W) with probability p, see `dropout2d`."""

    def forward(self, x: Tensor) -> Tensor:
        """See `dropout2d`."""
        return ops.dropout2d(x, self.p, self.training)


class Dropout3d(Dropout):
    """Zeroes channels of (N, C, D, H, W) or (C, D, H, W) with probability p, see `dropout3d`."""

    def forward(self, x: Tensor) -> Tensor:
        """See `dropout3d`."""
        return ops.dropout3d(x, self.p, self.training)


class DropPath(Dropout):
    """Zeroes samples of (N, ...) with probability p, see `drop_path`."""

    def __init__(self, p: float = 0.0) -> None:
        super().__init__(p)

    def forward(self, x: Tensor) -> Tensor:
        """See `drop_path`."""
        return ops.drop_path(x, self.p, self.training)
