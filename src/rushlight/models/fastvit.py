"""FastViT: a hybrid of convolutions and attention that folds into a plain network.

    stem                  B C Y/4 X/4     MobileOne blocks 3x3 s2, depthwise 3x3 s2, 1x1
    stage 1, embed        widths C, 2C    RepMixer blocks; embed: large kernel s2, then 1x1
    stage 2, embed        widths 2C, 4C
    stage 3, embed        widths 4C, 8C
    [position], stage 4   width 8C        RepMixer blocks, or attention blocks
    head                  16C             depthwise 3x3 with squeeze-and-excite, mean, linear

`nn.utils.reparameterize` folds stem, mixers, embeds, position encoding and head. Names are those
of Apple's code, before folding and after it.

Shapes: B batch, C channels, Y rows, X columns, H heads, K head width.
Source: Vasu et al. 2023, arXiv:2303.14189; github.com/apple/ml-fastvit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import rushlight as rl
from rushlight import nn
from rushlight.errors import ShapeError
from rushlight.models.mobileone import ConvNorm, MobileOneBlock
from rushlight.nn import functional as F
from rushlight.nn.reparameterize import Filters, with_activation
from rushlight.tensor import Tensor

HEAD_WIDTH = 32


class RepMixer(nn.Module):
    """x + s (mixer(x) - norm(x)): channels stay apart, neighbours mix.  (B, C, Y, X) -> the same.

    s is a learned scale per channel; norm is BatchNorm alone, mixer a depthwise MobileOne block.
    """

    def __init__(self, width: int, layer_scale: float = 1e-5, *, branches: int = 1) -> None:
        super().__init__()
        self.norm = MobileOneBlock(width, width, 3, groups=width, scale=False, branches=0)
        self.mixer = MobileOneBlock(width, width, 3, groups=width, branches=branches)
        self.layer_scale = _layer_scale(width, layer_scale)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return x + self.layer_scale * (self.mixer(x) - self.norm(x))  # type: ignore[no-any-return]

    def reparameterized(self) -> nn.Sequential:
        """One depthwise 3 x 3 convolution: I + s (mixer - norm)."""
        width = self.layer_scale.shape[0]
        change = (self.mixer.filters() - self.norm.filters()).scaled(self.layer_scale)
        folded = Filters.identity(width, width, (3, 3)) + change
        return nn.Sequential({"reparam_conv": folded.layer(self.layer_scale.dtype, groups=width)})


class ReparamLargeKernelConv(nn.Module):
    """A 7 x 7 and a 3 x 3 convolution added.  (B, C, Y, X) -> (B, out, Y / stride, X / stride).

    Each output channel sees one input channel. The authors' code calls an activation here and
    loses its result, and the published weights expect that; act=True is what it meant, GELU.
    Source: Ding et al. 2022 (RepLKNet), arXiv:2203.06717.
    """

    def __init__(self, channels: int, out: int, stride: int = 2, *, act: bool = False) -> None:
        super().__init__()
        self.stride, self.channels = stride, channels
        self.lkb_origin = ConvNorm(channels, out, 7, stride, channels)
        self.small_conv = ConvNorm(channels, out, 3, stride, channels)
        self.activation = nn.GELU() if act else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return self.activation(self.lkb_origin(x) + self.small_conv(x))  # type: ignore[no-any-return]

    def reparameterized(self) -> nn.Sequential:
        """One 7 x 7 convolution."""
        folded = self.lkb_origin.filters() + self.small_conv.filters()
        dtype = self.lkb_origin.conv.weight.dtype
        conv = folded.layer(dtype, stride=self.stride, groups=self.channels)
        return nn.Sequential({"lkb_reparam": conv, **with_activation(conv, self.activation)})


class RepCPE(nn.Module):
    """x + depthwise 7 x 7 of x: where things are, read off the padding.  (B, C, Y, X) -> the same.

    Source: Chu et al. 2021, arXiv:2102.10882.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pe = nn.Conv2d(width, width, 7, padding=3, groups=width)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return self.pe(x) + x  # type: ignore[no-any-return]

    def reparameterized(self) -> nn.Sequential:
        """One depthwise 7 x 7 convolution."""
        width = self.pe.in_channels
        folded = Filters.identity(width, width, (7, 7)) + Filters.of(self.pe)
        return nn.Sequential({"reparam_conv": folded.layer(self.pe.weight.dtype, groups=width)})


class PatchEmbed(nn.Module):
    """Half the size, other channels.  (B, C, Y, X) -> (B, out, Y / 2, X / 2)."""

    def __init__(self, channels: int, out: int, *, branches: int = 1, act: bool = False) -> None:
        super().__init__()
        self.proj = nn.Sequential(
            ReparamLargeKernelConv(channels, out, act=act),
            MobileOneBlock(out, out, 1, branches=branches, activation=nn.GELU()),
        )

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return self.proj(x)  # type: ignore[no-any-return]


class ConvFFN(nn.Module):
    """Depthwise 7 x 7 and BatchNorm, then the MLP of a transformer.  (B, C, Y, X) -> the same."""

    def __init__(self, width: int, hidden: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = ConvNorm(width, width, 7, groups=width)
        self.fc1 = nn.Conv2d(width, hidden, 1)
        self.fc2 = nn.Conv2d(hidden, width, 1)
        self.drop = nn.Dropout(dropout)
        for conv in (self.conv.conv, self.fc1, self.fc2):
            _start(conv)

    def forward(self, x: Tensor, **after: Tensor) -> Tensor:
        """See the class.  after: scale and residual as of `conv2d`, where nothing is dropped."""
        x = self.drop(self.fc1(self.conv(x), activation="gelu"))  # (B, hidden, Y, X)
        return self.drop(self.fc2(x, **after))  # type: ignore[no-any-return]


class MHSA(nn.Module):
    """Every place looks at every other.  (B, C, Y, X) -> the same, heads of 32 channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        if width % HEAD_WIDTH:
            raise ShapeError(f"MHSA: width {width} is no multiple of {HEAD_WIDTH}")
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width)
        for linear in (self.qkv, self.proj):
            _start(linear)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        batch, width, rows, columns = x.shape
        heads = width // HEAD_WIDTH
        places = x.flatten(2).transpose(1, 2)  # (B, Y X, C)
        parts = self.qkv(places).view(batch, rows * columns, 3 * heads, HEAD_WIDTH)
        q, k, v = parts.transpose(1, 2).split(heads, 1)  # (B, H, Y X, K)
        y = F.scaled_dot_product_attention(q, k, v)
        y = self.proj(y.transpose(1, 2).reshape(batch, rows * columns, width))
        return y.transpose(1, 2).reshape(batch, width, rows, columns)  # type: ignore[no-any-return]


class RepMixerBlock(nn.Module):
    """RepMixer, which has its own skip, then x + s ffn(x).  (B, C, Y, X) -> the same."""

    def __init__(
        self, width: int, ratio: float, layer_scale: float, drop_path: float, branches: int
    ) -> None:
        super().__init__()
        self.token_mixer = RepMixer(width, layer_scale, branches=branches)
        self.convffn = ConvFFN(width, int(width * ratio))
        self.drop_path = nn.DropPath(drop_path)
        self.layer_scale = _layer_scale(width, layer_scale)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return _plus_ffn(self, self.token_mixer(x), self.layer_scale)


class AttentionBlock(nn.Module):
    """x + s1 attention(norm(x)), then x + s2 ffn(x).  (B, C, Y, X) -> the same."""

    def __init__(self, width: int, ratio: float, layer_scale: float, drop_path: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(width)
        self.token_mixer = MHSA(width)
        self.convffn = ConvFFN(width, int(width * ratio))
        self.drop_path = nn.DropPath(drop_path)
        self.layer_scale_1 = _layer_scale(width, layer_scale)
        self.layer_scale_2 = _layer_scale(width, layer_scale)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        x = x + self.drop_path(self.layer_scale_1 * self.token_mixer(self.norm(x)))
        return _plus_ffn(self, x, self.layer_scale_2)


def _plus_ffn(block: RepMixerBlock | AttentionBlock, x: Tensor, scale: Tensor) -> Tensor:
    """Add s ffn(x) to x, within the last convolution where nothing is dropped."""
    if block.drop_path.training or block.convffn.drop.training:
        return x + block.drop_path(scale * block.convffn(x))  # type: ignore[no-any-return]
    return block.convffn(x, scale=scale, residual=x)  # type: ignore[no-any-return]


def _layer_scale(width: int, value: float) -> nn.Parameter:
    return nn.Parameter(rl.full((width, 1, 1), value))


def _start(layer: nn.Linear | nn.Conv2d) -> None:
    """The authors cut the normal distribution at ± 2: 100 deviations, where no draw comes."""
    nn.init.normal_(layer.weight, std=0.02)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


class Variant(NamedTuple):
    """What the seven published networks differ in; attention is that of stage 4."""

    depths: tuple[int, int, int, int]
    width: int
    ratio: float
    attention: bool = False
    layer_scale: float = 1e-5


VARIANTS = {
    "t8": Variant((2, 2, 4, 2), 48, 3),
    "t12": Variant((2, 2, 6, 2), 64, 3),
    "s12": Variant((2, 2, 6, 2), 64, 4),
    "sa12": Variant((2, 2, 6, 2), 64, 4, attention=True),
    "sa24": Variant((4, 4, 12, 4), 64, 4, attention=True),
    "sa36": Variant((6, 6, 18, 6), 64, 4, attention=True, layer_scale=1e-6),
    "ma36": Variant((6, 6, 18, 6), 76, 4, attention=True, layer_scale=1e-6),
}


class FastViT(nn.Module):
    """Images in, logits out.  (B, in_channels, Y, X) -> (B, num_classes).

    drop_path: how often the last block's additions are dropped while training; earlier blocks'
    less.  branches: convolutions per MobileOne block, the paper's over-parameterisation.
    stem_strides: (2, 2) for images of 224 or 256, (1, 1) for those of 32.  act: see
    `ReparamLargeKernelConv`.
    Raises: ValueError for drop_path outside [0, 1).
    """

    def __init__(
        self,
        variant: Variant,
        num_classes: int = 1000,
        in_channels: int = 3,
        *,
        drop_path: float = 0.0,
        branches: int = 1,
        stem_strides: tuple[int, int] = (2, 2),
        act: bool = False,
    ) -> None:
        super().__init__()
        if not 0 <= drop_path < 1:
            raise ValueError(f"FastViT: drop_path must lie in [0, 1), got {drop_path}")
        width, (first, second) = variant.width, stem_strides
        widths = [width, 2 * width, 4 * width, 8 * width]

        def block(*sizes: int, se: bool = False) -> MobileOneBlock:
            return MobileOneBlock(*sizes, branches=branches, se=se, activation=nn.GELU())

        self.patch_embed = nn.Sequential(
            block(in_channels, width, 3, first),
            block(width, width, 3, second, width),
            block(width, width, 1),
        )
        rates = iter(_rates(variant.depths, drop_path))
        self.network = nn.ModuleList()
        self.stage_at = {}  # of stages 1 to 4, where in network they are
        for number, width in enumerate(widths, 1):
            attention = variant.attention and number == 4
            if number > 1:
                self.network.append(PatchEmbed(width // 2, width, branches=branches, act=act))
            if attention:
                self.network.append(RepCPE(width))
            self.stage_at[f"stage{number}"] = len(self.network)
            blocks: list[nn.Module] = []
            for _ in range(variant.depths[number - 1]):
                options = width, variant.ratio, variant.layer_scale, next(rates)
                blocks.append(
                    AttentionBlock(*options) if attention else RepMixerBlock(*options, branches)
                )
            self.network.append(nn.Sequential(*blocks))
        self.conv_exp = block(width, 2 * width, 3, 1, width, se=True)
        self.gap = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(2 * width, num_classes)
        _start(self.head)

    def features(self, x: Tensor) -> dict[str, Tensor]:
        """What stem and stages give: stem (B, C, Y / 4, X / 4), stage1 the same, … Y / 32."""
        outputs = {"stem": self.patch_embed(x)}
        x = outputs["stem"]
        stages = {place: name for name, place in self.stage_at.items()}
        for place, part in enumerate(self.network):
            x = part(x)
            if place in stages:
                outputs[stages[place]] = x
        return outputs

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        x = self.gap(self.conv_exp(self.features(x)["stage4"]))  # (B, 16 C, 1, 1)
        return self.head(x.flatten(1))  # type: ignore[no-any-return]


def _rates(depths: tuple[int, ...], drop_path: float) -> Iterator[float]:
    """Of each block, rising from 0 to drop_path."""
    last = sum(depths) - 1
    return (drop_path * block / last for block in range(last + 1))


def fastvit_t8(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> FastViT:
    """4 026 232 parameters, 3 996 040 with blocks folded; options of `FastViT`."""
    return FastViT(VARIANTS["t8"], num_classes, in_channels, **options)


def fastvit_t12(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> FastViT:
    """7 553 704 parameters, 7 508 840 with blocks folded; options of `FastViT`."""
    return FastViT(VARIANTS["t12"], num_classes, in_channels, **options)


def fastvit_s12(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> FastViT:
    """9 473 576 parameters, 9 428 712 with blocks folded; options of `FastViT`."""
    return FastViT(VARIANTS["s12"], num_classes, in_channels, **options)


def fastvit_sa12(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> FastViT:
    """11 580 968 parameters, 11 545 320 with blocks folded; options of `FastViT`."""
    return FastViT(VARIANTS["sa12"], num_classes, in_channels, **options)


def fastvit_sa24(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> FastViT:
    """21 554 216 parameters, 21 501 288 with blocks folded; options of `FastViT`."""
    return FastViT(VARIANTS["sa24"], num_classes, in_channels, **options)


def fastvit_sa36(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> FastViT:
    """31 527 464 parameters, 31 457 256 with blocks folded; options of `FastViT`."""
    return FastViT(VARIANTS["sa36"], num_classes, in_channels, **options)


def fastvit_ma36(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> FastViT:
    """44 068 004 parameters, 43 984 632 with blocks folded; options of `FastViT`."""
    return FastViT(VARIANTS["ma36"], num_classes, in_channels, **options)
