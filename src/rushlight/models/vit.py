"""Vision transformers: an image is a sequence of patches.  Names are timm's.

Shapes: B batch, T patches and the class token, D width, H heads, K head width.
Source: Dosovitskiy et al. 2020, arXiv:2010.11929; sizes of Touvron et al. 2020, arXiv:2012.12877.
"""

from __future__ import annotations

from typing import Any

import rushlight as rl
from rushlight import nn
from rushlight.errors import ShapeError
from rushlight.nn import functional as F
from rushlight.tensor import Tensor


class PatchEmbed(nn.Module):
    """A vector per patch.  (B, C, image, image) -> (B, patches, D)."""

    def __init__(self, image: int, patch: int, channels: int, width: int) -> None:
        super().__init__()
        self.image = image
        self.proj = nn.Conv2d(channels, width, patch, patch)

    def forward(self, x: Tensor) -> Tensor:
        """See the class.  Raises: ShapeError for another size, which has no positions."""
        if tuple(x.shape[2:]) != (self.image, self.image):
            raise ShapeError(
                f"ViT: image {tuple(x.shape)}, expected (B, C, {self.image}, {self.image})"
            )
        return self.proj(x).flatten(2).transpose(1, 2)  # type: ignore[no-any-return]


class Attention(nn.Module):
    """What each position gathers from all.  (B, T, D) -> the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        batch, time, width = x.shape
        parts = self.qkv(x).view(batch, time, 3 * self.heads, width // self.heads)
        q, k, v = parts.transpose(1, 2).split(self.heads, 1)  # (B, H, T, K)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(batch, time, width))  # type: ignore[no-any-return]


class MLP(nn.Module):
    """Each position transformed by itself.  (B, T, D) -> the same."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        hidden = F.linear(x, self.fc1.weight, self.fc1.bias, activation="gelu")
        return self.fc2(hidden)  # type: ignore[no-any-return]


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)).  (B, T, D) -> the same."""

    def __init__(self, width: int, heads: int, drop_path: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = MLP(width, 4 * width)
        self.drop_path = nn.DropPath(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        x = x + self.drop_path(self.attn(self.norm1(x)))
        return x + self.drop_path(self.mlp(self.norm2(x)))  # type: ignore[no-any-return]


class ViT(nn.Module):
    """Images in, logits out.  (B, in_channels, image, image) -> (B, num_classes).

    drop_path: how often the last block's additions are dropped while training; earlier blocks'
    less.
    Raises: ShapeError for a width that is no multiple of heads, or an image of patch.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        layers: int = 12,
        num_classes: int = 1000,
        in_channels: int = 3,
        *,
        image: int = 224,
        patch: int = 16,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        if width % heads or image % patch:
            raise ShapeError(
                f"ViT: width {width} must be a multiple of {heads} heads, "
                f"image {image} of patch {patch}"
            )
        if not 0 <= drop_path < 1:
            raise ValueError(f"ViT: drop_path must lie in [0, 1), got {drop_path}")
        self.patch_embed = PatchEmbed(image, patch, in_channels, width)
        self.cls_token = nn.Parameter(rl.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(rl.zeros(1, (image // patch) ** 2 + 1, width))
        rates = [drop_path * layer / max(layers - 1, 1) for layer in range(layers)]
        self.blocks = nn.Sequential(*(Block(width, heads, rate) for rate in rates))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Linear):  # timm's cut at ± 2, 100 deviations, cuts nothing
                nn.init.normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.normal_(self.pos_embed, std=0.02)
        nn.init.normal_(self.cls_token, std=1e-6)

    def features(self, x: Tensor) -> Tensor:
        """Normalised vectors of the class token and all patches.  -> (B, T, D)."""
        patches = self.patch_embed(x)
        first = self.cls_token.expand(x.shape[0], -1, -1)  # (B, 1, D)
        x = rl.cat([first, patches], 1) + self.pos_embed
        return self.norm(self.blocks(x))  # type: ignore[no-any-return]

    def forward(self, x: Tensor) -> Tensor:
        """See the class."""
        return self.head(self.features(x)[:, 0])  # type: ignore[no-any-return]


def vit_tiny(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> ViT:
    """Width 192, 5 717 416 parameters.  options: image, patch, drop_path of `ViT`."""
    return ViT(192, 3, 12, num_classes, in_channels, **options)


def vit_small(num_classes: int = 1000, in_channels: int = 3, **options: Any) -> ViT:
    """Width 384, 22 050 664 parameters.  options: image, patch, drop_path of `ViT`."""
    return ViT(384, 6, 12, num_classes, in_channels, **options)
