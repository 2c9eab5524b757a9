"""Language modelling: the loss, the batches and the optimizer for a model of the next token."""

from __future__ import annotations

from typing import Any

from rushlight.data import DataLoader, RandomSampler, TokenFile, Windows
from rushlight.nn import Module
from rushlight.optim import AdamW
from rushlight.tensor import Tensor

Batch = tuple[Tensor, Tensor]


def next_token_loss(model: Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Mean loss over the targets that count, and their number.

    batch: tokens and targets (B, T), integers; a target of -1 does not count.
    """
    tokens, targets = batch
    return model(tokens, targets), (targets >= 0).sum()


def random_windows(
    tokens: TokenFile, context: int, batch: int, batches: int, workers: int = 1
) -> DataLoader:
    """Batches of windows from random places: tokens, targets (B, T); `batches` of them a pass."""
    windows = Windows(tokens, context)
    sampler = RandomSampler(windows, replacement=True, num_samples=batch * batches)
    return DataLoader(windows, batch, sampler=sampler, num_workers=workers)


def spread_windows(tokens: TokenFile, context: int, batch: int, batches: int) -> DataLoader:
    """The same windows every time, for evaluation: tokens, targets (B, T).

    All that lie side by side, or at most about `batches` batches of them, evenly spread.
    """
    stride = max(context, len(tokens) // (batch * batches))
    return DataLoader(Windows(tokens, context, stride=stride), batch)


def adamw(model: Module, lr: float, weight_decay: float, betas: tuple[float, float]) -> AdamW:
    """AdamW that decays matrices and embeddings; norms' gains and biases do not decay.

    Source: github.com/karpathy/nanoGPT, model.py.
    """
    named: list[tuple[str, Any]] = list(model.named_parameters())
    decayed = [(name, p) for name, p in named if p.ndim >= 2]
    others = [(name, p) for name, p in named if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": weight_decay}]
    if others:
        groups.append({"params": others, "weight_decay": 0.0})
    return AdamW(groups, lr=lr, betas=betas)
