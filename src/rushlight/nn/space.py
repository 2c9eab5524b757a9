"""Layers that rearrange images: other sizes, borders, windows, channels as space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rushlight import ops
from rushlight.nn.module import Module
from rushlight.ops.conv import Size
from rushlight.tensor import Tensor


class _Options(Module):
    """A function with options that are kept as attributes."""

    shown: tuple[str, ...] = ()

    def extra_repr(self) -> str:
        """The options."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.shown)


class Upsample(_Options):
    """Another size, larger or smaller.  (N, C, ...) -> (N, C, ...): see `interpolate`."""

    shown = ("size", "scale_factor", "mode")

    def __init__(
        self,
        size: Size | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        self.align_corners = align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, x: Tensor) -> Tensor:
        """See `interpolate`."""
        return ops.interpolate(
            x,
            self.size,
            self.scale_factor,
            self.mode,
            self.align_corners,
            self.recompute_scale_factor,
        )


class PixelShuffle(_Options):
    """Channels become space.  (..., C r^2, H, W) -> (..., C, H r, W r): see `pixel_shuffle`."""

    shown = ("upscale_factor",)

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor

    def forward(self, x: Tensor) -> Tensor:
        """See `pixel_shuffle`."""
        return ops.pixel_shuffle(x, self.upscale_factor)


class PixelUnshuffle(_Options):
    """Space becomes channels.  (..., C, H r, W r) -> (..., C r^2, H, W): see `pixel_unshuffle`."""

    shown = ("downscale_factor",)

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor

    def forward(self, x: Tensor) -> Tensor:
        """See `pixel_unshuffle`."""
        return ops.pixel_unshuffle(x, self.downscale_factor)


class Unfold(_Options):
    """Every window as a column.  (N, C, H, W) -> (N, C * KH * KW, L): see `unfold`."""

    shown: tuple[str, ...] = ("kernel_size", "dilation", "padding", "stride")

    def __init__(
        self, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1
    ) -> None:
        super().__init__()
        self.kernel_size, self.dilation = kernel_size, dilation
        self.padding, self.stride = padding, stride

    def forward(self, x: Tensor) -> Tensor:
        """See `unfold`."""
        return ops.unfold(x, self.kernel_size, self.dilation, self.padding, self.stride)


class Fold(Unfold):
    """The sum of windows.  (N, C * KH * KW, L) -> (N, C, *output_size): see `fold`."""

    shown = ("output_size", *Unfold.shown)

    def __init__(
        self,
        output_size: Size,
        kernel_size: Size,
        dilation: Size = 1,
        padding: Size = 0,
        stride: Size = 1,
    ) -> None:
        super().__init__(kernel_size, dilation, padding, stride)
        self.output_size = output_size

    def forward(self, x: Tensor) -> Tensor:
        """See `fold`."""
        options = self.kernel_size, self.dilation, self.padding, self.stride
        return ops.fold(x, self.output_size, *options)


class _Pad(_Options):
    """See `pad`.  padding: one number for all sides, or (left, right, top, bottom)."""

    mode = "constant"
    value: float = 0.0
    shown: tuple[str, ...] = ("padding",)

    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__()
        sides: Any = (padding,) * 4 if isinstance(padding, int) else tuple(padding)
        if len(sides) != 4:
            raise ValueError(f"{type(self).__name__}: expected 1 or 4 numbers, got {padding!r}")
        self.padding: tuple[int, ...] = sides

    def forward(self, x: Tensor) -> Tensor:
        """See `pad`."""
        return ops.pad(x, self.padding, self.mode, self.value)


class ConstantPad2d(_Pad):
    """One value around the last two axes, see `pad`."""

    shown = ("padding", "value")

    def __init__(self, padding: int | Sequence[int], value: float) -> None:
        super().__init__(padding)
        self.value = value


class ZeroPad2d(_Pad):
    """Zeros around the last two axes, see `pad`."""


class ReflectionPad2d(_Pad):
    """The last two axes mirrored at their border elements, see `pad`."""

    mode = "reflect"


class ReplicationPad2d(_Pad):
    """The border elements of the last two axes repeated, see `pad`."""

    mode = "replicate"
