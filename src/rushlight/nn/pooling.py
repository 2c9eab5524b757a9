"""Layers of pooling."""

from __future__ import annotations

from typing import Any

from rushlight import ops
from rushlight.nn.module import Module
from rushlight.ops.conv import Size
from rushlight.tensor import Tensor


class _Pool(Module):
    """A function with options that are kept as attributes."""

    shown: tuple[str, ...] = ("kernel_size", "stride", "padding")

    def extra_repr(self) -> str:
        """The options."""
        return ", ".join(f"{name}={getattr(self, name)}" for name in self.shown)


class _MaxPool(_Pool):
    shown = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation
        self.return_indices, self.ceil_mode = return_indices, ceil_mode

    def options(self) -> Any:
        """What the function takes after its input."""
        names = "kernel_size stride padding dilation ceil_mode return_indices"
        return tuple(getattr(self, name) for name in names.split())


class MaxPool1d(_MaxPool):
    """The largest of each window.  (N, C, L) -> (N, C, L'): see `max_pool1d`."""

    def forward(self, x: Tensor) -> Any:
        """See `max_pool1d`."""
        return ops.max_pool1d(x, *self.options())


class MaxPool2d(_MaxPool):
    """The largest of each window.  (N, C, H, W) -> (N, C, H', W'): see `max_pool2d`."""

    def forward(self, x: Tensor) -> Any:
        """See `max_pool2d`."""
        return ops.max_pool2d(x, *self.options())


class MaxPool3d(_MaxPool):
    """The largest of each window.  (N, C, D, H, W) -> (N, C, D', H', W'): see `max_pool3d`."""

    def forward(self, x: Tensor) -> Any:
        """See `max_pool3d`."""
        return ops.max_pool3d(x, *self.options())


class AvgPool1d(_Pool):
    """The mean of each window.  (N, C, L) -> (N, C, L'): see `avg_pool1d`."""

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding
        self.ceil_mode, self.count_include_pad = ceil_mode, count_include_pad

    def options(self) -> Any:
        """What the function takes after its input."""
        names = "kernel_size stride padding ceil_mode count_include_pad"
        return tuple(getattr(self, name) for name in names.split())

    def forward(self, x: Tensor) -> Tensor:
        """See `avg_pool1d`."""
        return ops.avg_pool1d(x, *self.options())


class AvgPool2d(AvgPool1d):
    """The mean of each window.  (N, C, H, W) -> (N, C, H', W'): see `avg_pool2d`."""

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__(kernel_size, stride, padding, ceil_mode, count_include_pad)
        self.divisor_override = divisor_override

    def forward(self, x: Tensor) -> Tensor:
        """See `avg_pool2d`."""
        options: Any = (*self.options(), self.divisor_override)
        return ops.avg_pool2d(x, *options)


class AvgPool3d(AvgPool2d):
    """The mean of each window.  (N, C, D, H, W) -> (N, C, D', H', W'): see `avg_pool3d`."""

    def forward(self, x: Tensor) -> Tensor:
        """See `avg_pool3d`."""
        options: Any = (*self.options(), self.divisor_override)
        return ops.avg_pool3d(x, *options)


class _AdaptivePool(_Pool):
    shown = ("output_size",)

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size


class AdaptiveAvgPool1d(_AdaptivePool):
    """As many means as wanted.  (N, C, L) -> (N, C, output_size): see `adaptive_avg_pool2d`."""

    def forward(self, x: Tensor) -> Tensor:
        """See `adaptive_avg_pool1d`."""
        return ops.adaptive_avg_pool1d(x, self.output_size)


class AdaptiveAvgPool2d(_AdaptivePool):
    """As many means as wanted.  (N, C, H, W) -> (N, C, *output_size): see `adaptive_avg_pool2d`."""

    def forward(self, x: Tensor) -> Tensor:
        """See `adaptive_avg_pool2d`."""
        return ops.adaptive_avg_pool2d(x, self.output_size)


class AdaptiveAvgPool3d(_AdaptivePool):
    """As many means as wanted, over three axes: see `adaptive_avg_pool3d`."""

    def forward(self, x: Tensor) -> Tensor:
        """See `adaptive_avg_pool3d`."""
        return ops.adaptive_avg_pool3d(x, self.output_size)


class AdaptiveMaxPool1d(_AdaptivePool):
    """As many largest elements as wanted.  (N, C, L) -> (N, C, output_size)."""

    def forward(self, x: Tensor) -> Tensor:
        """See `adaptive_max_pool1d`."""
        return ops.adaptive_max_pool1d(x, self.output_size)


class AdaptiveMaxPool2d(_AdaptivePool):
    """As many largest elements as wanted.  (N, C, H, W) -> (N, C, *output_size)."""

    def forward(self, x: Tensor) -> Tensor:
        """See `adaptive_max_pool2d`."""
        return ops.adaptive_max_pool2d(x, self.output_size)


class AdaptiveMaxPool3d(_AdaptivePool):
    """As many largest elements as wanted, over three axes: see `adaptive_max_pool3d`."""

    def forward(self, x: Tensor) -> Tensor:
        """See `adaptive_max_pool3d`."""
        return ops.adaptive_max_pool3d(x, self.output_size)
