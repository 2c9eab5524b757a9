"""What a loss function gives, checked; and its mean over held-out batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from rushlight.errors import ConfigError, NonFiniteError, ShapeError
from rushlight.nn import Module
from rushlight.nn.utils import evaluating
from rushlight.random import current
from rushlight.tensor import Tensor
from rushlight.train.finite import first_in_forward, first_non_finite
from rushlight.train.streams import fixed_random

# loss(model, batch) gives the mean loss, or a pair of it and of how many items it is the mean over
Loss = Callable[[Module, Any], Any]


def finite_loss(model: Module, batch: Any, loss: Loss) -> tuple[Tensor, float]:
    """The loss on a batch, and of how many items it is the mean (1 when the function does not say).

    Raises: NonFiniteError that names the first tensor that is not finite: a weight, a part of the
    batch, or the result of an operation; ShapeError for more than one number.
    """
    generator = current()
    before = generator.get_state()
    result = loss(model, batch)
    value, count = result if isinstance(result, tuple) and len(result) == 2 else (result, 1.0)
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:80]
        raise ShapeError(f"a loss function gives one number or (number, count), got {got}")
    count = float(count)
    if not 0 <= count < math.inf:
        raise ConfigError(f"a loss is the mean over so many items: {count} is no such number")
    if math.isfinite(value.item()):
        return value, count

    def again() -> None:
        generator.set_state(before)
        loss(model, batch)

    found = (
        first_non_finite(dict(model.named_parameters()))
        or first_non_finite(dict(model.named_buffers()), masks=True)
        or first_non_finite(batch, "batch", masks=True)
        or first_in_forward(model, again)
    )
    raise NonFiniteError(f"the loss is {value.item()}; first not finite: {found or 'the loss'}")


def evaluate(
    model: Module,
    batches: Iterable[Any],
    loss: Loss,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> float | None:
    """Mean loss over all items of the batches, in evaluation mode; None when stopped before.

    Random numbers that batches or loss draw are the same every time, and move no stream; but a
    generator that a loader was given is moved on.
    Raises: ConfigError when there are no items, NonFiniteError.
    """
    total = items = 0.0
    with evaluating(model), fixed_random():
        for number, batch in enumerate(batches, 1):
            try:
                value, count = finite_loss(model, batch, loss)
            except NonFiniteError as error:
                raise NonFiniteError(f"held-out batch {number}: {error}") from None
            total += value.item() * count
            items += count
            if stop():
                return None
    if not items:
        raise ConfigError("evaluate: the batches have no items")
    return total / items
