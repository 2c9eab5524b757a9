"""Layers that rearrange images: other sizes, borders, windows, channels as space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rushlight import ops
from rushlight.nn.function import FunctionLayer
from rushlight.ops.conv import Size


class Upsample(FunctionLayer):
    """Another size, larger or smaller.  (N, C, ...) -> (N, C, ...): see `interpolate`."""

    function = staticmethod(ops.interpolate)
    shown = ("size", "scale_factor", "mode")
    options = (*shown, "align_corners", "recompute_scale_factor")

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


class PixelShuffle(FunctionLayer):
    """Channels become space.  (..., C r^2, H, W) -> (..., C, H r, W r): see `pixel_shuffle`."""

    function = staticmethod(ops.pixel_shuffle)
    options = shown = ("upscale_factor",)

    def __init__(self, upscale_factor: int) -> None:
        super().__init__()
        self.upscale_factor = upscale_factor


class PixelUnshuffle(FunctionLayer):
    """Space becomes channels.  (..., C, H r, W r) -> (..., C r^2, H, W): see `pixel_unshuffle`."""

    function = staticmethod(ops.pixel_unshuffle)
    options = shown = ("downscale_factor",)

    def __init__(self, downscale_factor: int) -> None:
        super().__init__()
        self.downscale_factor = downscale_factor


class Unfold(FunctionLayer):
    """Every window as a column.  (N, C, H, W) -> (N, C * KH * KW, L): see `unfold`."""

    function: Callable[..., Any] = staticmethod(ops.unfold)
    shown: tuple[str, ...] = ("kernel_size", "dilation", "padding", "stride")
    options = shown

    def __init__(
        self, kernel_size: Size, dilation: Size = 1, padding: Size = 0, stride: Size = 1
    ) -> None:
        super().__init__()
        self.kernel_size, self.dilation = kernel_size, dilation
        self.padding, self.stride = padding, stride


class Fold(Unfold):
    """The sum of windows.  (N, C * KH * KW, L) -> (N, C, *output_size): see `fold`."""

    function = staticmethod(ops.fold)
    options = shown = ("output_size", *Unfold.shown)

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


class _Pad(FunctionLayer):
    """See `pad`.  padding: one number for all sides, or (left, right, top, bottom)."""

    function = staticmethod(ops.pad)
    mode = "constant"
    value: float = 0.0
    options = ("padding", "mode", "value")
    shown: tuple[str, ...] = ("padding",)

    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__()
        sides: Any = (padding,) * 4 if isinstance(padding, int) else tuple(padding)
        if len(sides) != 4:
            raise ValueError(f"{type(self).__name__}: expected 1 or 4 numbers, got {padding!r}")
        self.padding: tuple[int, ...] = sides


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
