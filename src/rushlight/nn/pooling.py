"""Layers of pooling."""

from __future__ import annotations

from typing import Any

from rushlight import ops
from rushlight.nn.function import FunctionLayer
from rushlight.ops.conv import Size


class MaxPool1d(FunctionLayer):
    """The largest of each window.  (N, C, L) -> (N, C, L'): see `max_pool1d`."""

    function = staticmethod(ops.max_pool1d)
    shown = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")
    options = (*shown, "return_indices")

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


class MaxPool2d(MaxPool1d):
    """The largest of each window.  (N, C, H, W) -> (N, C, H', W'): see `max_pool2d`."""

    function = staticmethod(ops.max_pool2d)


class MaxPool3d(MaxPool1d):
    """The largest of each window.  (N, C, D, H, W) -> (N, C, D', H', W'): see `max_pool3d`."""

    function = staticmethod(ops.max_pool3d)


class AvgPool1d(FunctionLayer):
    """The mean of each window.  (N, C, L) -> (N, C, L'): see `avg_pool1d`."""

    function = staticmethod(ops.avg_pool1d)
    shown = ("kernel_size", "stride", "padding")
    options: tuple[str, ...] = (*shown, "ceil_mode", "count_include_pad")

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


class AvgPool2d(AvgPool1d):
    """The mean of each window.  (N, C, H, W) -> (N, C, H', W'): see `avg_pool2d`."""

    function = staticmethod(ops.avg_pool2d)
    options = (*AvgPool1d.options, "divisor_override")

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


class AvgPool3d(AvgPool2d):
    """The mean of each window.  (N, C, D, H, W) -> (N, C, D', H', W'): see `avg_pool3d`."""

    function = staticmethod(ops.avg_pool3d)


class AdaptiveAvgPool1d(FunctionLayer):
    """As many means as wanted.  (N, C, L) -> (N, C, output_size): see `adaptive_avg_pool2d`."""

    function = staticmethod(ops.adaptive_avg_pool1d)
    options = shown = ("output_size",)

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size


class AdaptiveAvgPool2d(AdaptiveAvgPool1d):
    """As many means as wanted.  (N, C, H, W) -> (N, C, *output_size): see `adaptive_avg_pool2d`."""

    function = staticmethod(ops.adaptive_avg_pool2d)


class AdaptiveAvgPool3d(AdaptiveAvgPool1d):
    """As many means as wanted, over three axes: see `adaptive_avg_pool3d`."""

    function = staticmethod(ops.adaptive_avg_pool3d)


class AdaptiveMaxPool1d(AdaptiveAvgPool1d):
    """As many largest elements as wanted.  (N, C, L) -> (N, C, output_size)."""

    function = staticmethod(ops.adaptive_max_pool1d)


class AdaptiveMaxPool2d(AdaptiveAvgPool1d):
    """As many largest elements as wanted.  (N, C, H, W) -> (N, C, *output_size)."""

    function = staticmethod(ops.adaptive_max_pool2d)


class AdaptiveMaxPool3d(AdaptiveAvgPool1d):
    """As many largest elements as wanted, over three axes: see `adaptive_max_pool3d`."""

    function = staticmethod(ops.adaptive_max_pool3d)
