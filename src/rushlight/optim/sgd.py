"""Stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rushlight import kernels
from rushlight.creation import zeros, zeros_like
from rushlight.kernels import Array
from rushlight.optim.optimizer import Group, Optimizer, not_negative
from rushlight.tensor import Tensor


class SGD(Optimizer):
    """Gradient descent with momentum.

    lr: learning rate.  momentum: decay of the velocity.  dampening: share of the gradient left out
    of it.  weight_decay: L2 penalty added to the gradient.  nesterov: look ahead along it.
    Raises: ValueError for options out of range.
    Source: Sutskever et al. 2013, with PyTorch's form of the velocity.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        foreach = False if foreach is False and not fused else None
        defaults = {"lr": lr, "momentum": momentum, "dampening": dampening}
        defaults |= {"weight_decay": weight_decay, "nesterov": nesterov, "maximize": maximize}
        super().__init__(params, {**defaults, "foreach": foreach})

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise ValueError for options out of range."""
        not_negative(options, "lr", "momentum", "weight_decay")
        if options["nesterov"] and (options["momentum"] == 0 or options["dampening"] != 0):
            raise ValueError("nesterov needs a momentum and no dampening")

    def make_state(self, p: Tensor, options: Mapping[str, Any]) -> dict[str, Tensor]:
        """Step (1,), and momentum_buffer of p's shape where there is a momentum."""
        state = {"step": zeros(1, dtype=p.dtype)}
        if options["momentum"] != 0:
            state["momentum_buffer"] = zeros_like(p)
        return state

    def step_fused(self, group: Group, params: list[Tensor], lr: Array) -> None:
        """Kernel `rl_sgd`."""
        momentum = group["momentum"]
        kernels.call(
            kernels.K.sgd,
            [p.array for p in params],
            [kernels.contiguous(p.grad.array) for p in params if p.grad is not None],
            self.column(params, "momentum_buffer") if momentum else [],
            self.column(params, "step"),
            lr,
            momentum,
            group["dampening"],
            group["weight_decay"],
            int(group["nesterov"]),
            int(group["maximize"]),
        )

    def step_readable(self, group: Group, p: Array, g: Array, state: dict[str, Array]) -> None:
        """Every operation rounded to p's dtype, in the order of the formula."""
        real = p.dtype.type
        lr, mu, decay = real(group["lr"]), real(group["momentum"]), real(group["weight_decay"])
        if group["maximize"]:
            g = -g
        if decay:
            g = g + decay * p
        state["step"] += real(1)
        if mu:
            v = state["momentum_buffer"]
            first = state["step"][0] == 1
            v[...] = g if first else mu * v + real(1 - group["dampening"]) * g
            g = g + mu * v if group["nesterov"] else v
        p -= lr * np.asarray(g)
