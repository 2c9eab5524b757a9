"""What a loss function gives, checked; and its means over held-out batches."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from rushlight.errors import ConfigError, NonFiniteError, ShapeError
from rushlight.nn import Module
from rushlight.nn.utils import evaluating
from rushlight.random import current
from rushlight.tensor import Tensor
from rushlight.train.finite import first_in_forward, first_non_finite
from rushlight.train.streams import fixed_random

# loss(model, batch) gives the mean loss; or (mean loss, count), how many items it is the mean over;
# or (mean loss, count, metrics), other means over the same items by name
Loss = Callable[[Module, Any], Any]

_COLUMNS = ("step", "loss", "lr", "grad_norm", "items", "images", "tokens")  # of metrics.jsonl


class Measured(NamedTuple):
    """What a loss function said of one batch."""

    loss: Tensor  # ()
    items: float  # that it is the mean over; 1 when the function does not say
    metrics: dict[str, float]  # other means over these items


def finite_loss(model: Module, batch: Any, loss: Loss) -> Measured:
    """The loss on a batch.

    Raises: NonFiniteError that names the first tensor that is not finite: a weight, a part of the
    batch, or the result of an operation; ShapeError for more than one number.
    """
    generator = current()
    before = generator.get_state()
    result = loss(model, batch)
    several = isinstance(result, tuple) and len(result) in (2, 3)
    value, count, metrics = (*result, {})[:3] if several else (result, 1.0, {})
    if not isinstance(value, Tensor) or value.numel() != 1:
        got = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:80]
        raise ShapeError(
            "a loss function gives one number, (number, count) or (number, count, metrics), "
            f"got {got}"
        )
    count = float(count)
    if not 0 <= count < math.inf:
        raise ConfigError(f"a loss is the mean over so many items: {count} is no such number")
    if math.isfinite(value.item()):
        return Measured(value, count, _numbers(metrics))

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


def _numbers(metrics: Any) -> dict[str, float]:
    if not isinstance(metrics, Mapping) or not all(isinstance(name, str) for name in metrics):
        raise ConfigError(f"a loss function's metrics are numbers by name, got {metrics!r:.80}")
    for name in metrics:
        if name in _COLUMNS or name.startswith("val_") or name.endswith("_per_s"):
            raise ConfigError(f"a metric cannot be called {name!r}, as the run's own are")
    return {name: float(x.item() if isinstance(x, Tensor) else x) for name, x in metrics.items()}


def mean_metrics(measured: Iterable[tuple[float, Mapping[str, float]]]) -> dict[str, float]:
    """Of (items, metrics) of several batches: each metric's mean over the items that have it."""
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    for count, metrics in measured:
        for name, value in metrics.items():
            sums[name] = sums.get(name, 0.0) + value * count
            counts[name] = counts.get(name, 0.0) + count
    return {name: sums[name] / counts[name] for name in sums if counts[name]}


def evaluate(
    model: Module,
    batches: Iterable[Any],
    loss: Loss,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> float | None:
    """Mean loss over all items of the batches, in evaluation mode; None when stopped before."""
    found = evaluate_all(model, batches, loss, stop=stop)
    return None if found is None else found[0]


def evaluate_all(
    model: Module,
    batches: Iterable[Any],
    loss: Loss,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> tuple[float, dict[str, float]] | None:
    """As `evaluate`, with the means of the loss function's metrics.

    Random numbers that batches or loss draw are the same every time, and move no stream; but a
    generator that a loader was given is moved on.
    Raises: ConfigError when there are no items, NonFiniteError.
    """
    total = items = 0.0
    metrics = []
    with evaluating(model), fixed_random():
        for number, batch in enumerate(batches, 1):
            try:
                found = finite_loss(model, batch, loss)
            except NonFiniteError as error:
                raise NonFiniteError(f"held-out batch {number}: {error}") from None
            total += found.loss.item() * found.items
            items += found.items
            metrics.append((found.items, found.metrics))
            if stop():
                return None
    if not items:
        raise ConfigError("evaluate: the batches have no items")
    return total / items, mean_metrics(metrics)
