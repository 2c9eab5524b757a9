"""Gradient clipping, evaluation for a while, folding for inference."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rushlight import kernels
from rushlight.autograd import changed_in_place, new_tensor, no_grad
from rushlight.kernels import Array
from rushlight.nn.module import Module
from rushlight.tensor import Tensor


def _gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    listed = [parameters] if isinstance(parameters, Tensor) else parameters
    return [p.grad for p in listed if p.grad is not None]


def _norm(arrays: list[Array], max_norm: float) -> Tensor:
    norm = kernels.empty((), arrays[0].dtype if arrays else kernels.FLOAT32)
    kernels.call(kernels.K.clip_grad_norm, norm, arrays, max_norm)
    return new_tensor(norm)


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale all gradients in place so that their joint Euclidean norm is at most max_norm.

    Returns the norm before clipping, (). A norm that is not finite clips nothing.
    Raises: ValueError for another norm_type; RuntimeError for a non-finite norm when asked.
    """
    if norm_type != 2.0:
        raise ValueError(f"clip_grad_norm_: norm_type {norm_type} is not supported, only 2")
    if max_norm < 0:
        raise ValueError(f"clip_grad_norm_: max_norm must not be negative, got {max_norm}")
    gradients = _gradients(parameters)
    norm = _norm([g.array for g in gradients], -1.0 if error_if_nonfinite else float(max_norm))
    if error_if_nonfinite:
        if not norm.isfinite():
            raise RuntimeError(f"clip_grad_norm_: the norm of the gradients is {norm.item()}")
        norm = _norm([g.array for g in gradients], float(max_norm))
    for g in gradients:
        changed_in_place(g)
    return norm


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Keep every element of every gradient within ± clip_value, in place."""
    for g in _gradients(parameters):
        g.clamp_(-clip_value, clip_value)


@contextmanager
def evaluating(module: Module) -> Iterator[None]:
    """A block in which a module is in eval mode and nothing is recorded.

    After it every module below has the mode it had before, training or not.
    """
    modes = [(each, each.training) for each in module.modules()]
    module.eval()
    try:
        with no_grad():
            yield
    finally:
        for each, mode in modes:
            each.training = mode


def __getattr__(name: str) -> Any:
    """What few need, and takes a quarter of Rushlight's time to load."""
    if name == "reparameterize":
        from rushlight.nn.reparameterize import reparameterize

        return reparameterize
    raise AttributeError(f"module 'rushlight.nn.utils' has no attribute {name!r}")
