"""Modules, layers, losses."""

from rushlight.nn import functional, init, utils
from rushlight.nn.activation import GELU, LogSoftmax, ReLU, Sigmoid, SiLU, Softmax, Tanh
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
from rushlight.nn.layers import (
    Dropout,
    Embedding,
    Flatten,
    Identity,
    LayerNorm,
    Linear,
    RMSNorm,
)
from rushlight.nn.loss import CrossEntropyLoss, L1Loss, MSELoss, NLLLoss
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
