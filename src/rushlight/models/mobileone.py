"""MobileOne: many branches while training, one convolution per block afterwards.

`nn.utils.reparameterize` folds the branches. Names are those of Apple's code, before folding
(rbr_skip, rbr_scale, rbr_conv) and after it (reparam_conv).

Source: Vasu et al. 2022, arXiv:2206.04040; github.com/apple/ml-mobileone.
"""

from __future__ import annotations

from collections.abc import Sequence

from rushlight import nn
from rushlight.nn.reparameterize import Filters, with_activation
from rushlight.tensor import Tensor


class ConvNorm(nn.Module):
    """A convolution padded by half a window, and BatchNorm.

    (B, channels, Y, X) -> (B, out, Y / stride, X / stride).
    """

    conv_bn_pairs = ()  # on its own, as in FastViT's FFN, the published folded form keeps its norm
    extra_bn_pairs = (("conv", "bn"),)

    def __init__(
        self, channels: int, out: int, kernel_size: int, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        padding = kernel_size // 2
        self.conv = nn.Conv2d(
            channels, out, kernel_size, stride, padding, groups=groups, bias=False
        )
        self.bn = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return self.bn(self.conv(x))  # type: ignore[no-any-return]

    def filters(self) -> Filters:
        """Both as one convolution."""
        return Filters.of(self.conv).normalized(self.bn)


class MobileOneBlock(nn.Module):
    """activation(se(sum of branches)).  (B, channels, Y, X) -> (B, out, Y / stride, X / stride).

    Branches, each with a BatchNorm of its own: `branches` convolutions, a 1 x 1 convolution (if
    scale and the window is larger), and the input itself (if channels and size stay).
    Raises: ValueError for an even window, and if there is no branch at all.
    """

    rbr_skip: nn.BatchNorm2d | None
    rbr_scale: ConvNorm | None

    def __init__(
        self,
        channels: int,
        out: int,
        kernel_size: int,
        stride: int = 1,
        groups: int = 1,
        *,
        branches: int = 1,
        scale: bool = True,
        se: bool = False,
        activation: nn.Module | None = None,
    ) -> None:
        super().__init__()
        if kernel_size % 2 == 0:
            raise ValueError(f"MobileOneBlock: the window must be odd, got {kernel_size}")
        self.kernel_size, self.stride, self.groups = kernel_size, stride, groups
        skip, scale = channels == out and stride == 1, scale and kernel_size > 1
        if not (skip or scale or branches > 0):
            raise ValueError("MobileOneBlock: no branch is left")
        self.register_module("rbr_skip", nn.BatchNorm2d(channels) if skip else None)
        one = ConvNorm(channels, out, 1, stride, groups) if scale else None
        self.register_module("rbr_scale", one)
        self.rbr_conv = nn.ModuleList(
            ConvNorm(channels, out, kernel_size, stride, groups) for _ in range(branches)
        )
        self.se = nn.SqueezeExcite(out) if se else nn.Identity()
        self.activation = nn.Identity() if activation is None else activation

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        branches = [self.rbr_skip, self.rbr_scale, *self.rbr_conv]
        first, *others = [branch(x) for branch in branches if branch is not None]
        y = sum(others, start=first)
        return self.activation(self.se(y))  # type: ignore[no-any-return]

    def filters(self) -> Filters:
        """All branches as one convolution."""
        parts: list[Filters] = [branch.filters() for branch in self.rbr_conv]
        if self.rbr_scale is not None:
            parts.append(self.rbr_scale.filters())
        if self.rbr_skip is not None:
            window = (self.kernel_size, self.kernel_size)
            identity = Filters.identity(self.rbr_skip.num_features, self.groups, window)
            parts.append(identity.normalized(self.rbr_skip))
        first, *others = parts
        return sum(others, start=first)

    def reparameterized(self) -> nn.Sequential:
        """What computes the same in eval mode, with one convolution."""
        dtype = next(self.parameters()).dtype
        conv = self.filters().layer(dtype, stride=self.stride, groups=self.groups)
        behind: dict[str, nn.Module] = {"se": self.se, "activation": self.activation}
        if type(self.se) is nn.Identity:
            behind = with_activation(conv, self.activation)
        return nn.Sequential({"reparam_conv": conv, **behind})


class MobileOne(nn.Module):
    """Images in, logits out.  (B, in_channels, Y, X) -> (B, num_classes).

    widths: channels of the four stages.  depths: blocks in each, a block being a depthwise 3 x 3
    and a pointwise 1 x 1.  branches: convolutions of each of these.
    """

    def __init__(
        self,
        widths: Sequence[int],
        depths: Sequence[int],
        num_classes: int = 1000,
        in_channels: int = 3,
        *,
        branches: int = 1,
    ) -> None:
        super().__init__()
        channels = min(64, widths[0])
        self.stage0 = MobileOneBlock(in_channels, channels, 3, 2, activation=nn.ReLU())
        for number, (width, depth) in enumerate(zip(widths, depths, strict=True), 1):
            self.add_module(f"stage{number}", _stage(channels, width, depth, branches))
            channels = width
        self.gap = nn.AdaptiveAvgPool2d(1)
        self.linear = nn.Linear(channels, num_classes)

    def features(self, x: Tensor) -> dict[str, Tensor]:
        """What each stage gives: stage0 (B, C, Y / 2, X / 2), … stage4 (B, C, Y / 32, X / 32)."""
        outputs = {}
        for name in ("stage0", "stage1", "stage2", "stage3", "stage4"):
            outputs[name] = x = getattr(self, name)(x)
        return outputs

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        x = self.gap(self.features(x)["stage4"])  # (B, C, 1, 1)
        return self.linear(x.flatten(1))  # type: ignore[no-any-return]


def _stage(channels: int, width: int, depth: int, branches: int) -> nn.Sequential:
    blocks = []
    for i in range(depth):
        stride = 2 if i == 0 else 1
        for out, window, step, groups in ((channels, 3, stride, channels), (width, 1, 1, 1)):
            blocks.append(
                MobileOneBlock(
                    channels, out, window, step, groups, branches=branches, activation=nn.ReLU()
                )
            )
            channels = out
    return nn.Sequential(*blocks)


def mobileone_s0(num_classes: int = 1000, in_channels: int = 3, *, branches: int = 4) -> MobileOne:
    """The smallest: 5 293 272 parameters, 2 078 504 after folding."""
    return MobileOne(
        (48, 128, 256, 1024), (2, 8, 10, 1), num_classes, in_channels, branches=branches
    )
