"""A model of Rushlight as PyTorch's: the same tree, weights and forward methods."""

from __future__ import annotations

import types

import torch
from torch import nn as tnn

import rushlight as rl
from rushlight import nn

NAMES = {"rl": torch, "nn": tnn, "F": tnn.functional, "ops": tnn.functional}
ACTIVATIONS = {
    None: lambda y: y,
    "relu": tnn.functional.relu,
    "gelu": tnn.functional.gelu,
    "gelu_tanh": lambda y: tnn.functional.gelu(y, approximate="tanh"),
    "silu": tnn.functional.silu,
}


class Conv2d(tnn.Conv2d):
    """With what Rushlight's does in the same pass."""

    def forward(self, x, activation=None, scale=None, residual=None):
        y = super().forward(x)
        y = y if scale is None else scale.view(-1, 1, 1) * y
        y = y if residual is None else residual + y
        return ACTIVATIONS[activation or self.activation](y)


def _conv(m: nn.Conv2d) -> Conv2d:
    peer = Conv2d(
        m.in_channels,
        m.out_channels,
        m.kernel_size,
        m.stride,
        m.padding,
        m.dilation,
        m.groups,
        m.bias is not None,
    )
    peer.activation = m.activation
    return peer


LAYERS = {
    nn.Conv2d: _conv,
    nn.BatchNorm2d: lambda m: tnn.BatchNorm2d(m.num_features, m.eps, m.momentum),
    nn.Linear: lambda m: tnn.Linear(m.in_features, m.out_features, m.bias is not None),
    nn.AdaptiveAvgPool2d: lambda m: tnn.AdaptiveAvgPool2d(m.output_size),
    nn.GELU: lambda m: tnn.GELU(m.approximate),
    nn.ReLU: lambda m: tnn.ReLU(),
    nn.MaxPool2d: lambda m: tnn.MaxPool2d(m.kernel_size, m.stride, m.padding),
    nn.Identity: lambda m: tnn.Identity(),
    nn.Dropout: lambda m: tnn.Dropout(m.p),
    nn.Dropout2d: lambda m: tnn.Dropout2d(m.p),
    nn.DropPath: lambda m: tnn.Identity(),
    nn.Sequential: lambda m: tnn.Sequential(),
    nn.ModuleList: lambda m: tnn.ModuleList(),
}


def twin(model: nn.Module) -> tnn.Module:
    """PyTorch's side of a model, which computes the same."""
    peer = _tree(model)
    peer.load_state_dict({k: torch.tensor(v.numpy()) for k, v in model.state_dict().items()})
    return peer.train(model.training)


def _tree(module: nn.Module) -> tnn.Module:
    kind = type(module)
    if kind in LAYERS:
        peer = LAYERS[kind](module)
    else:  # a class of its own: its methods, with PyTorch's functions
        own = {k: v for k, v in vars(kind).items() if isinstance(v, types.FunctionType)}
        methods = {k: _method(v) for k, v in own.items() if k != "__init__"}
        peer = type(kind.__name__, (tnn.Module,), methods)()
        tnn.Module.__init__(peer)
        for name, value in vars(module).items():
            if isinstance(value, nn.Parameter):
                peer.register_parameter(name, tnn.Parameter(torch.empty(value.shape)))
            elif not isinstance(value, nn.Module | rl.Tensor) and not name.startswith("_"):
                setattr(peer, name, value)
    for name, child in module.named_children():
        peer.add_module(name, _tree(child))
    return peer


def _method(function: types.FunctionType) -> types.FunctionType:
    names = {**function.__globals__, **NAMES}
    for name in function.__code__.co_names:  # what it calls of its own module
        helper = names.get(name)
        if isinstance(helper, types.FunctionType) and helper.__module__ == function.__module__:
            names[name] = _method(helper)
    return types.FunctionType(
        function.__code__,
        names,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
