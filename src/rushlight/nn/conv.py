"""Layers of convolutions."""

from __future__ import annotations

import math
from typing import Any

from rushlight import creation, ops
from rushlight.dtypes import dtype, float32
from rushlight.nn import init
from rushlight.nn.function import FunctionLayer
from rushlight.nn.module import Parameter
from rushlight.ops.conv import Size, sizes
from rushlight.tensor import Tensor

Dtype = dtype


class _Conv(FunctionLayer):
    """What the layers share.

    weight and bias start uniform within ± 1 / sqrt(fan_in), fan_in being the number of weights
    that go into one output (of a transposed convolution, out of one channel).
    """

    axes: int
    transposed = False
    options: tuple[str, ...] = ("weight", "bias", "stride", "padding", "dilation", "groups")
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Dtype = float32,
    ) -> None:
        super().__init__()
        name, kind = type(self).__name__, {"device": device, "dtype": dtype}
        if padding_mode != "zeros":
            raise NotImplementedError(f"{name}: padding_mode {padding_mode!r}; pad the input first")
        for what, channels in (("in_channels", in_channels), ("out_channels", out_channels)):
            if groups < 1 or channels < 1 or channels % groups:
                raise ValueError(
                    f"{name}: {what}={channels} cannot be divided into {groups} groups"
                )
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = sizes(name, "kernel_size", kernel_size, self.axes, 1)
        self.stride = sizes(name, "stride", stride, self.axes, 1)
        self.dilation = sizes(name, "dilation", dilation, self.axes, 1)
        self.padding = padding
        if not isinstance(padding, str):
            self.padding = sizes(name, "padding", padding, self.axes, 0)
        self.padding_mode = padding_mode
        first, second = in_channels, out_channels
        if not self.transposed:
            first, second = second, first
        self.weight = Parameter(creation.empty(first, second // groups, *self.kernel_size, **kind))
        self.register_parameter("bias", None)
        if bias:
            self.bias = Parameter(creation.empty(out_channels, **kind))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new initial values."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(math.prod(self.weight.shape[1:]))
            init.uniform_(self.bias, -bound, bound)

    def extra_repr(self) -> str:
        """Channels, kernel size, and what is not the default."""
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        text += f", stride={self.stride}"
        if self.padding not in ("valid", (0,) * self.axes):
            text += f", padding={self.padding}"
        if max(self.dilation) > 1:
            text += f", dilation={self.dilation}"
        if self.groups > 1:
            text += f", groups={self.groups}"
        return text if self.bias is not None else text + ", bias=False"


class _Forward(_Conv):
    """Convolutions proper, which take more into the same pass."""

    activation: str | None = None  # behind each result; `reparameterize` puts it here

    def forward(
        self,
        x: Any,
        *,
        activation: str | None = None,
        scale: Tensor | None = None,
        residual: Tensor | None = None,
    ) -> Any:
        """See the function."""
        if activation is not None and self.activation is not None:
            raise ValueError(f"{activation} would follow this convolution's own {self.activation}")
        windows = self.stride, self.padding, self.dilation, self.groups
        return type(self).function(
            x,
            self.weight,
            self.bias,
            *windows,
            activation=activation or self.activation,
            scale=scale,
            residual=residual,
        )

    def extra_repr(self) -> str:
        """As of all convolutions, and the activation if there is one."""
        text = super().extra_repr()
        return text if self.activation is None else f"{text}, activation={self.activation!r}"


class Conv1d(_Forward):
    """Convolution over one axis.  (N, in_channels, L) -> (N, out_channels, L').

    weight (out_channels, in_channels / groups, K), bias (out_channels,): see `conv2d`.
    """

    axes = 1
    function = staticmethod(ops.conv1d)


class Conv2d(_Forward):
    """Convolution over images.  (N, in_channels, H, W) -> (N, out_channels, H', W').

    weight (out_channels, in_channels / groups, KH, KW), bias (out_channels,): see `conv2d`.
    """

    axes = 2
    function = staticmethod(ops.conv2d)


class Conv3d(_Forward):
    """Convolution over volumes.  (N, in_channels, D, H, W) -> (N, out_channels, D', H', W').

    weight (out_channels, in_channels / groups, KD, KH, KW), bias (out_channels,): see `conv2d`.
    """

    axes = 3
    function = staticmethod(ops.conv3d)


class _ConvTranspose(_Conv):
    """See `conv_transpose2d`: weight is (in_channels, out_channels / groups, ...)."""

    transposed = True
    options = ("weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size = 0,
        output_padding: Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Size = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Dtype = float32,
    ) -> None:
        options = stride, padding, dilation, groups, bias, padding_mode, device, dtype
        super().__init__(in_channels, out_channels, kernel_size, *options)
        name = type(self).__name__
        self.output_padding = sizes(name, "output_padding", output_padding, self.axes, 0)

    def extra_repr(self) -> str:
        """As of the convolution, and the output's padding."""
        text = super().extra_repr()
        return (
            text + f", output_padding={self.output_padding}" if any(self.output_padding) else text
        )


class ConvTranspose1d(_ConvTranspose):
    """Transposed convolution over one axis.  (N, in_channels, L) -> (N, out_channels, L')."""

    axes = 1
    function = staticmethod(ops.conv_transpose1d)


class ConvTranspose2d(_ConvTranspose):
    """Transposed convolution over images.  (N, in_channels, H, W) -> (N, out_channels, H', W')."""

    axes = 2
    function = staticmethod(ops.conv_transpose2d)


class ConvTranspose3d(_ConvTranspose):
    """Transposed convolution over volumes.  (N, in_channels, D, H, W) -> (N, out_channels, ...)."""

    axes = 3
    function = staticmethod(ops.conv_transpose3d)
