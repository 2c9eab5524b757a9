"""Adam and AdamW."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rushlight import kernels
from rushlight.creation import zeros, zeros_like
from rushlight.kernels import Array
from rushlight.optim.optimizer import Group, Optimizer, not_negative
from rushlight.tensor import Tensor


class Adam(Optimizer):
    """Adam: steps by the gradient's running mean over the root of its running square.

    lr: learning rate.  betas: decay of the two means.  eps: added to the root.  weight_decay: L2
    penalty added to the gradient.  foreach=False runs the readable form, in the parameters' dtype.
    Raises: ValueError for options out of range or unsupported (amsgrad).
    Source: Kingma & Ba 2015, arXiv:1412.6980, algorithm 1.
    """

    decoupled = False

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        if amsgrad:
            raise ValueError("amsgrad=True is not supported")
        foreach = False if foreach is False and not fused else None
        defaults = {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "maximize": maximize, "foreach": foreach})

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise ValueError for options out of range."""
        not_negative(options, "lr", "eps", "weight_decay")
        betas = options["betas"]
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be two numbers in [0, 1), got {betas}")

    def make_state(self, p: Tensor, options: Mapping[str, Any]) -> dict[str, Tensor]:
        """Step (1,), exp_avg and exp_avg_sq of p's shape."""
        return {
            "step": zeros(1, dtype=p.dtype),
            "exp_avg": zeros_like(p),
            "exp_avg_sq": zeros_like(p),
        }

    def step_fused(self, group: Group, params: list[Tensor], lr: Array) -> None:
        """Kernel `rl_adam`."""
        kernels.call(
            kernels.K.adam,
            [p.array for p in params],
            [kernels.contiguous(p.grad.array) for p in params if p.grad is not None],
            self.column(params, "exp_avg"),
            self.column(params, "exp_avg_sq"),
            self.column(params, "step"),
            lr,
            *group["betas"],
            group["eps"],
            group["weight_decay"],
            int(self.decoupled),
            int(group["maximize"]),
        )

    def step_readable(self, group: Group, p: Array, g: Array, state: dict[str, Array]) -> None:
        """Every operation rounded to p's dtype, in the order of the formula."""
        real = p.dtype.type
        lr, eps, decay = real(group["lr"]), real(group["eps"]), real(group["weight_decay"])
        b1, b2 = (real(beta) for beta in group["betas"])
        m, v, t = state["exp_avg"], state["exp_avg_sq"], state["step"]
        if group["maximize"]:
            g = -g
        if decay and self.decoupled:
            p -= (lr * decay) * p
        elif decay:
            g = g + decay * p
        one = real(1)
        t += one
        m[...] = b1 * m + (one - b1) * g
        v[...] = b2 * v + ((one - b2) * g) * g
        m_hat = m / (one - real(np.float64(b1) ** int(t[0])))
        v_hat = v / (one - real(np.float64(b2) ** int(t[0])))
        p -= (lr * m_hat) / (np.sqrt(v_hat) + eps)


class AdamW(Adam):
    """Adam with decoupled weight decay: p shrinks by lr * weight_decay, apart from the gradient.

    Source: Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2.
    """

    decoupled = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            maximize=maximize,
            foreach=foreach,
            fused=fused,
        )
