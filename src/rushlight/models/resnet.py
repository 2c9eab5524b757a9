"""Residual networks under torchvision's names.

Source: He et al. 2015, arXiv:1512.03385; convolutions start as in arXiv:1502.01852. A bottleneck
has its stride in the 3 x 3 convolution, as torchvision has it and the paper has not.
"""

from __future__ import annotations

from typing import ClassVar

from rushlight import nn
from rushlight.nn import functional as F
from rushlight.tensor import Tensor


class BasicBlock(nn.Module):
    """relu(x + f(x)), f being two 3 x 3 convolutions.  (B, C, Y, X) -> (B, width, Y / s, X / s).

    downsample: what makes x fit where channels or stride s change.
    """

    expansion: ClassVar[int] = 1
    downsample: nn.Module | None
    conv_bn_pairs = (("conv1", "bn1"), ("conv2", "bn2"))

    def __init__(self, channels: int, width: int, stride: int, downsample: nn.Module | None):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.register_module("downsample", downsample)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        y = _layer(self.conv1, self.bn1, x)
        skip = x if self.downsample is None else self.downsample(x)
        return _layer(self.conv2, self.bn2, y, skip)


class Bottleneck(nn.Module):
    """relu(x + f(x)), f: 1 x 1 to width, 3 x 3, 1 x 1 to 4 width.  Otherwise like BasicBlock."""

    expansion: ClassVar[int] = 4
    downsample: nn.Module | None
    conv_bn_pairs = (("conv1", "bn1"), ("conv2", "bn2"), ("conv3", "bn3"))

    def __init__(self, channels: int, width: int, stride: int, downsample: nn.Module | None):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.register_module("downsample", downsample)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        y = _layer(self.conv1, self.bn1, x)
        y = _layer(self.conv2, self.bn2, y)
        skip = x if self.downsample is None else self.downsample(x)
        return _layer(self.conv3, self.bn3, y, skip)


class ResNet(nn.Module):
    """Images in, logits out.  (B, in_channels, Y, X) -> (B, num_classes).

    depths: blocks in each of the four stages, whose widths are 64, 128, 256, 512.
    """

    conv_bn_pairs = (("conv1", "bn1"),)

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        depths: tuple[int, int, int, int],
        num_classes: int = 1000,
        in_channels: int = 3,
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        self.layer1 = _stage(block, 64, 64, depths[0], stride=1)
        self.layer2 = _stage(block, 64 * block.expansion, 128, depths[1], stride=2)
        self.layer3 = _stage(block, 128 * block.expansion, 256, depths[2], stride=2)
        self.layer4 = _stage(block, 256 * block.expansion, 512, depths[3], stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512 * block.expansion, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> dict[str, Tensor]:
        """What each stage gives: stem (B, 64, Y / 4, X / 4), layer1 the same size, … Y / 32."""
        x = self.maxpool(_layer(self.conv1, self.bn1, x))
        outputs = {"stem": x}
        for name in ("layer1", "layer2", "layer3", "layer4"):
            outputs[name] = x = getattr(self, name)(x)
        return outputs

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        x = self.avgpool(self.features(x)["layer4"])  # (B, C, 1, 1)
        return self.fc(x.flatten(1))  # type: ignore[no-any-return]


def _layer(conv: nn.Conv2d, norm: nn.Module, x: Tensor, skip: Tensor | None = None) -> Tensor:
    """relu(norm(conv(x)) + skip), in one pass once the norm is folded."""
    if type(norm) is nn.Identity:
        return conv(x, activation="relu", residual=skip)  # type: ignore[no-any-return]
    y = norm(conv(x))
    return F.relu(y if skip is None else y + skip)


def _stage(
    block: type[BasicBlock] | type[Bottleneck], channels: int, width: int, depth: int, stride: int
) -> nn.Sequential:
    out, downsample = width * block.expansion, None
    if stride != 1 or channels != out:
        shortcut = nn.Conv2d(channels, out, 1, stride, bias=False)
        downsample = nn.Sequential(shortcut, nn.BatchNorm2d(out))
    first = block(channels, width, stride, downsample)
    return nn.Sequential(first, *(block(out, width, 1, None) for _ in range(depth - 1)))


def resnet18(num_classes: int = 1000, in_channels: int = 3) -> ResNet:
    """18 layers, 11 689 512 parameters."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes, in_channels)


def resnet34(num_classes: int = 1000, in_channels: int = 3) -> ResNet:
    """34 layers, 21 797 672 parameters."""
    return ResNet(BasicBlock, (3, 4, 6, 3), num_classes, in_channels)


def resnet50(num_classes: int = 1000, in_channels: int = 3) -> ResNet:
    """50 layers, 25 557 032 parameters."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes, in_channels)
