"""Image classifiers by name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from rushlight.models import efficientnet, fastvit, mobileone, resnet, vit
from rushlight.models.lenet import lenet
from rushlight.nn import Module

_BUILDERS: tuple[Any, ...] = (
    lenet,
    resnet.resnet18,
    resnet.resnet34,
    resnet.resnet50,
    mobileone.mobileone_s0,
    fastvit.fastvit_t8,
    fastvit.fastvit_t12,
    fastvit.fastvit_s12,
    fastvit.fastvit_sa12,
    fastvit.fastvit_sa24,
    fastvit.fastvit_sa36,
    fastvit.fastvit_ma36,
    vit.vit_tiny,
    vit.vit_small,
    efficientnet.efficientnet_lite0,
)

IMAGE_MODELS: dict[str, Callable[..., Module]] = {build.__name__: build for build in _BUILDERS}


def image_model(
    name: str,
    num_classes: int = 1000,
    in_channels: int = 3,
    *,
    size: int | None = None,
    **options: Any,
) -> Module:
    """A network that gives num_classes numbers per image, by its name in IMAGE_MODELS.

    size: of the images, in pixels a side, for networks that are made for one (the ViTs).
    options: what its builder takes besides, such as drop_path.
    Raises: ValueError for a name that is not known, and for no classes or channels.
    """
    if name not in IMAGE_MODELS:
        near = difflib.get_close_matches(name, IMAGE_MODELS, 1, 0.5)
        known = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(IMAGE_MODELS)}"
        raise ValueError(f"image_model: unknown name {name!r}; {known}")
    for what, count in (("num_classes", num_classes), ("in_channels", in_channels)):
        if count < 1:
            raise ValueError(f"image_model: {what} must be at least 1, got {count}")
    if size is not None and name.startswith("vit"):
        options["image"] = size
    return IMAGE_MODELS[name](num_classes, in_channels, **options)
