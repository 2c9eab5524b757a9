"""Whole models, written with the public API only."""

from rushlight.models.cache import KVCache
from rushlight.models.efficientnet import EfficientNetLite, efficientnet_lite0
from rushlight.models.fastvit import (
    FastViT,
    fastvit_ma36,
    fastvit_s12,
    fastvit_sa12,
    fastvit_sa24,
    fastvit_sa36,
    fastvit_t8,
    fastvit_t12,
)
from rushlight.models.gpt import GPT
from rushlight.models.images import IMAGE_MODELS, image_model
from rushlight.models.lenet import LeNet, lenet
from rushlight.models.mobileone import MobileOne, MobileOneBlock, mobileone_s0
from rushlight.models.resnet import ResNet, resnet18, resnet34, resnet50
from rushlight.models.vit import ViT, vit_small, vit_tiny
