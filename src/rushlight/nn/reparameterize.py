"""Folding for inference: branches and batch normalisation become one convolution.

In eval mode a BatchNorm is a fixed scale and offset per channel, so convolution followed by
BatchNorm is a convolution again. Branches that see the same input and are added are one as well:
kernels add up, once smaller ones are padded with zeros. All of it is exact up to rounding, and is
computed in float64.

Source: Ding et al. 2021 (RepVGG), arXiv:2101.03697; Vasu et al. 2022 (MobileOne), arXiv:2206.04040.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from rushlight.autograd import no_grad
from rushlight.creation import tensor
from rushlight.dtypes import dtype as Dtype
from rushlight.kernels import FLOAT64, Array
from rushlight.nn.activation import GELU, ReLU, SiLU
from rushlight.nn.batchnorm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from rushlight.nn.container import Sequential
from rushlight.nn.conv import Conv1d, Conv2d, Conv3d
from rushlight.nn.layers import Identity
from rushlight.nn.module import Module, Parameter
from rushlight.random import get_rng_state, set_rng_state
from rushlight.tensor import Tensor

Conv = Conv1d | Conv2d | Conv3d
BatchNorm = BatchNorm1d | BatchNorm2d | BatchNorm3d

_FITTING = ((Conv1d, BatchNorm1d), (Conv2d, BatchNorm2d), (Conv3d, BatchNorm3d))


@dataclass(frozen=True)
class Filters:
    """A convolution's numbers in float64, and the algebra of folding.

    weight: (O, C / groups, *K).  bias: (O,).  trained: whether any of what they came from
    requires grad. Filters that are added must have windows of odd size with the same centre.
    """

    weight: Array
    bias: Array
    trained: bool = False

    @classmethod
    def of(cls, conv: Conv) -> Filters:
        """Those of a layer."""
        weight = conv.weight.array.astype(np.float64)
        bias = np.zeros(len(weight)) if conv.bias is None else conv.bias.array.astype(np.float64)
        return cls(weight, bias, _trained(conv))

    @classmethod
    def identity(cls, channels: int, groups: int, kernel_size: tuple[int, ...]) -> Filters:
        """Those that return their input, padded by half a window; the window's sizes are odd."""
        width = channels // groups
        weight = np.zeros((channels, width, *kernel_size))
        each = np.arange(channels)
        centre = math.prod(kernel_size) // 2
        weight.reshape(channels, width, -1)[each, each % width, centre] = 1
        return cls(weight, np.zeros(channels))

    def normalized(self, bn: BatchNorm) -> Filters:
        """These, followed by a BatchNorm with its running statistics.

        W' = W t, b' = (b - mean) t + beta with t = gamma / sqrt(var + eps).
        Raises: ValueError for one that keeps no running statistics.
        """
        if bn.running_mean is None or bn.running_var is None:
            raise ValueError("a BatchNorm without running statistics cannot be folded")
        t = 1 / np.sqrt(bn.running_var.array.astype(np.float64) + bn.eps)
        if bn.weight is not None:
            t = t * bn.weight.array
        shifted = (self.bias - bn.running_mean.array) * t
        if bn.bias is not None:
            shifted = shifted + bn.bias.array
        scaled = self.scaled(t)
        return replace(scaled, bias=shifted, trained=self.trained or _trained(bn))

    def scaled(self, factors: Tensor | Array) -> Filters:
        """Every output times a factor of its own.  factors: (O,), or with axes of size 1 behind."""
        t = factors.array if isinstance(factors, Tensor) else factors
        trained = self.trained or (isinstance(factors, Tensor) and factors.requires_grad)
        t = t.astype(np.float64).reshape(-1)
        axes = (1,) * (self.weight.ndim - 1)
        return Filters(self.weight * t.reshape(-1, *axes), self.bias * t, trained)

    def __add__(self, other: Filters) -> Filters:
        windows = zip(self.weight.shape[2:], other.weight.shape[2:], strict=True)
        largest = tuple(max(pair) for pair in windows)
        weight = _padded(self.weight, largest) + _padded(other.weight, largest)
        return Filters(weight, self.bias + other.bias, self.trained or other.trained)

    def __sub__(self, other: Filters) -> Filters:
        return self + replace(other, weight=-other.weight, bias=-other.bias)

    def layer(self, dtype: Dtype, *, stride: Any = 1, groups: int = 1) -> Conv2d:
        """A convolution with these filters that pads by half a window, as all branches do."""
        out_channels, width, *window = self.weight.shape
        padding = [k // 2 for k in window]
        conv = Conv2d(
            width * groups, out_channels, window, stride, padding, groups=groups, dtype=dtype
        )
        self.put_into(conv)
        return conv

    def put_into(self, conv: Conv) -> None:
        """Give a layer these numbers as new parameters of its dtype."""
        dtype = conv.weight.dtype
        for name, value in (("weight", self.weight), ("bias", self.bias)):
            conv.register_parameter(name, Parameter(tensor(value, dtype=dtype), self.trained))


def with_activation(conv: Conv, activation: Module) -> dict[str, Module]:
    """Let a convolution compute what follows it.  Returns what is left to follow, by name."""
    names: dict[type[Module], str] = {ReLU: "relu", SiLU: "silu"}
    conv.activation = names.get(type(activation))
    if type(activation) is GELU:
        conv.activation = "gelu_tanh" if activation.approximate == "tanh" else "gelu"
    done = conv.activation is not None or type(activation) is Identity
    return {} if done else {"activation": activation}


def _trained(module: Module) -> bool:
    return any(parameter.requires_grad for parameter in module.parameters(recurse=False))


def _padded(weight: Array, window: tuple[int, ...]) -> Array:
    """With zeros around, so that the centre stays the centre."""
    missing = [k - own for k, own in zip(window, weight.shape[2:], strict=True)]
    if any(m % 2 for m in missing):
        raise ValueError(f"windows {weight.shape[2:]} and {window} have no common centre")
    return np.pad(weight, [(0, 0), (0, 0), *((m // 2, m // 2) for m in missing)])


# ---- models ----


def reparameterize(
    model: Module, example: Any = None, *, pairs: bool = True, extra: bool = False
) -> Module:
    """A copy of a model for inference, in which as much as possible is one convolution.

    Folded are modules with a method `reparameterized`, which returns what takes their place (the
    blocks of MobileOne and FastViT), and, with pairs=True, every convolution that a BatchNorm
    follows: neighbours in a Sequential, and attributes that a class names in `conv_bn_pairs`. In
    place of such a BatchNorm there is an Identity, so that names stay. The model is left as it
    is, and parameters require grad if one they came from did. extra: also what a class names in
    `extra_bn_pairs`, norms that the published folded form of a network keeps (FastViT's FFNs).

    example: an input, or a tuple of them; random numbers do. The copy's output is compared with
    the model's. Attributes that are merely named like a pair (conv1 and bn1, conv and bn, conv2
    and norm2) are folded with an example only, each for itself, and only where the output stays:
    names do not say in which order a forward method calls.

    Raises: RuntimeError for a model in training mode, and when the outputs for the example differ
    by more than rounding (1e-4 in float32, 1e-10 in float64, relative to the largest output if
    that is above 1); ValueError for a block that cannot be folded.
    """
    training = next((name for name, module in model.named_modules() if module.training), None)
    if training is not None:
        raise RuntimeError(
            f"reparameterize: {training or 'the model'} is in training mode, in which BatchNorm "
            "normalises by the batch and not by fixed statistics; call model.eval() first"
        )
    numbers = get_rng_state()  # layers are made below and draw initial values that nobody needs
    try:
        folded = _with_blocks_folded(copy.deepcopy(model), {})
    finally:
        set_rng_state(numbers)
    for wanted, find in ((pairs, _certain), (extra, _extra)):
        for pair in _pairs(folded, find) if wanted else ():
            pair.fold()
    if example is not None:
        inputs = example if isinstance(example, tuple) else (example,)
        _check(model, folded, inputs, guesses=pairs)
    return folded


def _with_blocks_folded(module: Module, made: dict[int, Module]) -> Module:
    """The module with all blocks below replaced, or what replaces itself."""
    if id(module) in made:
        return made[id(module)]
    fold = getattr(module, "reparameterized", None)
    if callable(fold):
        made[id(module)] = fold().eval()
    else:
        made[id(module)] = module
        for name, child in list(module.named_children()):
            inside = _with_blocks_folded(child, made)
            if inside is not child:
                module.register_module(name, inside)
    return made[id(module)]


@no_grad()
def _check(model: Module, folded: Module, inputs: tuple[Any, ...], guesses: bool) -> None:
    """Compare outputs, then fold what only looks like a pair where they stay the same."""
    expected = model(*inputs)
    if not (difference := _difference(folded(*inputs), expected)) <= 1:
        raise RuntimeError(
            "reparameterize: the folded model's output differs from the model's by "
            f"{difference:.3g} times what rounding explains; is a layer used in two ways?"
        )
    for pair in _pairs(folded, _look_like_it) if guesses else ():
        before = copy.copy(pair.conv.__dict__)
        pair.fold()
        if not _difference(folded(*inputs), expected) <= 1:
            pair.conv.__dict__.update(before)
            pair.owner.register_module(pair.second, pair.bn)


def _difference(given: Any, expected: Any) -> float:
    """Of outputs, in units of what rounding explains; infinite for another structure."""
    if isinstance(expected, Tensor) and isinstance(given, Tensor):
        a, b = given.array, expected.array
        if a.shape != b.shape or a.dtype != b.dtype:
            return math.inf
        if a.dtype.kind != "f" or a.size == 0:
            return 0.0 if np.array_equal(a, b) else math.inf
        rounding = 1e-10 if a.dtype == FLOAT64 else 1e-4
        with np.errstate(invalid="ignore"):  # infinity minus infinity is no agreement, either
            return float(np.abs(a - b).max() / (rounding * max(1.0, np.abs(b).max())))
    if isinstance(expected, Mapping):
        if not isinstance(given, Mapping) or list(given) != list(expected):
            return math.inf
        given, expected = list(given.values()), list(expected.values())
    if isinstance(expected, list | tuple):
        if not isinstance(given, list | tuple) or len(given) != len(expected):
            return math.inf
        parts = [_difference(a, b) for a, b in zip(given, expected, strict=True)]
        return max((p if p == p else math.inf for p in parts), default=0.0)
    return 0.0 if given == expected else math.inf


# ---- pairs ----


@dataclass(frozen=True)
class _Pair:
    """A convolution and the BatchNorm behind it: two members of one module."""

    owner: Module
    conv: Conv
    second: str  # the name of the BatchNorm
    bn: BatchNorm

    def fold(self) -> None:
        Filters.of(self.conv).normalized(self.bn).put_into(self.conv)
        self.owner.register_module(self.second, Identity().eval())


def _pairs(model: Module, find: Any) -> Iterator[_Pair]:
    """Pairs of what `find` names in each module, unless one of the two is used elsewhere, too."""
    uses = Counter(id(module) for _, module in model._paths(""))
    for owner in list(model.modules()):
        children = dict(owner.named_children())
        for first, second, exact in find(owner, list(children)):
            conv, bn = children.get(first), children.get(second)
            if uses[id(conv)] == uses[id(bn)] == 1 and _fit(conv, bn, exact):
                yield _Pair(owner, conv, second, bn)  # type: ignore[arg-type]


def _certain(owner: Module, names: list[str]) -> Iterator[tuple[str, str, bool]]:
    """Names of which the module's class guarantees that one follows the other."""
    if type(owner) is Sequential:
        yield from ((first, second, True) for first, second in pairwise(names))
    for first, second in getattr(owner, "conv_bn_pairs", ()):
        yield first, second, False


def _extra(owner: Module, names: list[str]) -> Iterator[tuple[str, str, bool]]:
    for first, second in getattr(owner, "extra_bn_pairs", ()):
        yield first, second, False


def _look_like_it(owner: Module, names: list[str]) -> Iterator[tuple[str, str, bool]]:
    """Names, of a class that does not declare any."""
    for first in names if not hasattr(owner, "conv_bn_pairs") else ():
        if "conv" in first:
            for word in ("bn", "norm"):
                yield first, first.replace("conv", word), True


def _fit(conv: Module | None, bn: Module | None, exact: bool) -> bool:
    """Whether one can be folded into the other; exact: a derived class may compute otherwise."""
    for conv_kind, bn_kind in _FITTING:
        if isinstance(conv, conv_kind) and isinstance(bn, bn_kind) and conv.activation is None:
            if exact and not (type(conv) is conv_kind and type(bn) is bn_kind):
                return False
            return bn.running_mean is not None and bn.num_features == conv.out_channels
    return False
