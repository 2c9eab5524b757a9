"""Modules, layers, losses."""

from rushlight.nn import functional, init, utils
from rushlight.nn.activation import (
    ELU,
    GELU,
    Hardsigmoid,
    Hardswish,
    Hardtanh,
    LeakyReLU,
    LogSoftmax,
    Mish,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from rushlight.nn.batchnorm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from rushlight.nn.container import ModuleDict, ModuleList, Sequential
from rushlight.nn.conv import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from rushlight.nn.drop import Dropout1d, Dropout2d, Dropout3d, DropPath
from rushlight.nn.groupnorm import GroupNorm, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from rushlight.nn.layers import (
    Dropout,
    Embedding,
    Flatten,
    Identity,
    LayerNorm,
    Linear,
    RMSNorm,
)
from rushlight.nn.loss import (
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    L1Loss,
    MSELoss,
    NLLLoss,
    SmoothL1Loss,
)
from rushlight.nn.module import Buffer, Module, Parameter
from rushlight.nn.pooling import (
    AdaptiveAvgPool1d,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool3d,
    AdaptiveMaxPool1d,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool3d,
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
)
from rushlight.nn.space import (
    ConstantPad2d,
    Fold,
    PixelShuffle,
    PixelUnshuffle,
    ReflectionPad2d,
    ReplicationPad2d,
    Unfold,
    Upsample,
    ZeroPad2d,
)
from rushlight.nn.squeeze_excite import SqueezeExcite
