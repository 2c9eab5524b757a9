"""The training loop: model, batches and a loss function in, a trained model out.

Every method (language modelling, fine-tuning, preferences, distillation) is a loss function and
batches for this loop. A step takes `accumulate` batches; the loss function gives the mean over
what counts in a batch, and how much that is, so that the gradient of several batches is that of one
large batch. Between two steps everything that follows depends on a state that a checkpoint holds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, nullcontext
from typing import Any

from rushlight.creation import full_like
from rushlight.errors import ConfigError, NonFiniteError
from rushlight.nn import Module
from rushlight.nn.utils import clip_grad_norm_
from rushlight.optim import EMA, AdamW, Optimizer
from rushlight.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from rushlight.tensor import Tensor
from rushlight.train import checkpoint
from rushlight.train.batches import Batches
from rushlight.train.finite import first_non_finite
from rushlight.train.interrupt import Interruption
from rushlight.train.loss import Loss, evaluate_all, finite_loss, mean_metrics
from rushlight.train.report import METRICS, Callback, Metrics
from rushlight.train.run import Options, Run, make_options


def train(
    model: Module,
    batches: Iterable[Any],
    loss: Loss,
    *,
    optimizer: Optimizer | None = None,
    schedule: LRScheduler | None = None,
    ema: EMA | None = None,
    held_out: Iterable[Any] | None = None,
    callbacks: Sequence[Callback] = (),
    **options: Any,
) -> Run:
    """Train a model; returns the run with its last numbers.

    batches: anything to iterate over, again and again if need be. A DataLoader remembers its place
    when a run is resumed; other iterables are iterated up to it.
    loss(model, batch): the mean loss, or (mean loss, count) with how many items it is the mean
    over, or (mean loss, count, metrics) with other means over them, numbers by name. The batches of
    a step, and the held-out ones, weigh as much as they have items.
    optimizer: AdamW with its defaults unless given.  schedule: stepped after every step.
    ema: updated after every step; its averages are what is evaluated and kept as the best.
    held_out: batches to evaluate on, without gradients and in evaluation mode.
    options: steps, accumulate, clip_norm, eval_every, save_every, log_every, unit, folder, resume:
    the fields of `Options`, which says what they mean.

    With a folder, the run writes metrics.jsonl and its checkpoints there. The first Ctrl-C (or
    SIGTERM) saves after the present step and then does what it does by default; with resume=True
    the run goes on to the same bits: make model, optimizer, schedule and batches as before.
    Raises: NonFiniteError with the step, the batch and the first tensor that is not finite;
    ConfigError; FormatError for a checkpoint that does not fit.
    """
    settings = make_options(options)
    run = Run(model, loss, Batches(batches), settings)
    run.optimizer = AdamW(model.named_parameters()) if optimizer is None else optimizer
    run.schedule, run.ema = schedule, ema
    _check(run, callbacks)
    run.total_steps = _total_steps(settings, batches)
    folder = run.folder
    if folder is not None:
        resumed = checkpoint.exists(folder)
        if resumed and not settings.resume:
            raise ConfigError(f"{folder} already holds a run: resume it, or take another folder")
        folder.mkdir(parents=True, exist_ok=True)
        checkpoint.clean(folder)
        callbacks = (Metrics(folder / METRICS, settings.log_every, settings.unit), *callbacks)
        if resumed:
            checkpoint.restore(run, folder)
    if not model.training:
        model.train()
    with Interruption() as interruption, ExitStack() as ends:
        ends.callback(run.batches.close)
        for callback in callbacks:
            callback.start(run)
            ends.callback(callback.stop, run)
        _loop(run, held_out, callbacks, interruption)
    if not run.finished:
        interruption.deliver()
    return run


def _check(run: Run, callbacks: Sequence[Any]) -> None:
    """Raise ConfigError for parts that are not what they must be; note what is not trained."""
    parts: list[tuple[str, Any, type]] = [("optimizer", run.optimizer, Optimizer)]
    parts += [("schedule", run.schedule, LRScheduler), ("ema", run.ema, EMA)]
    parts += [("callbacks", callback, Callback) for callback in callbacks]
    for name, part, kind in parts:
        if part is not None and not isinstance(part, kind):
            raise ConfigError(f"train: {name}: expected {kind.__name__}, got {part!r:.80}")
    if isinstance(run.schedule, ReduceLROnPlateau):
        raise ConfigError("train: ReduceLROnPlateau wants a metric; step it in a callback")
    own = list(run.model.parameters())
    trained = {id(p) for group in run.optimizer.param_groups for p in group["params"]}
    run.untrained = [p for p in own if id(p) not in trained]
    if own and len(run.untrained) == len(own):
        raise ConfigError("train: the optimizer has none of the model's parameters")


def _total_steps(options: Options, batches: Any) -> int:
    if options.steps is not None:
        return options.steps
    try:
        return math.ceil(len(batches) / options.accumulate)
    except TypeError:
        raise ConfigError(
            "say how many steps to train: the batches do not know their number"
        ) from None


def _loop(
    run: Run,
    held_out: Iterable[Any] | None,
    callbacks: Sequence[Callback],
    interruption: Interruption,
) -> None:
    """Report on the step before, save, take the next."""
    while True:
        if run.reported < run.step and _evaluated(run, held_out, interruption):
            run.reported = run.step
            for callback in callbacks:
                callback.step(run)
            if run.stop and run.val_loss is None:
                _evaluated(run, held_out, interruption)
        run.interrupted = interruption.number is not None
        ends = run.interrupted or run.finished
        due = ends or run.saved < 0 or run.due(run.options.save_every)
        if run.folder is not None and due and run.saved != run.step:
            checkpoint.save_checkpoint(run)
        if ends:
            return
        try:
            _step(run)
        except NonFiniteError as error:
            where = f"step {run.step + 1}, batch {run.batches.count}"
            raise _located(run, where, error) from None


def _located(run: Run, where: str, error: NonFiniteError) -> NonFiniteError:
    run.diverged = True
    kept = f"; the checkpoint in {run.folder} is intact" if run.folder is not None else ""
    return NonFiniteError(f"{where}: {error}{kept}")


def _evaluated(run: Run, held_out: Iterable[Any] | None, interruption: Interruption) -> bool:
    """Evaluate if it is time to; whether that is done, and was not interrupted."""
    run.val_loss, run.val_metrics = None, {}
    if held_out is None or not run.due(run.options.eval_every):
        return True
    with run.ema.applied() if run.ema else nullcontext():
        try:
            found = evaluate_all(
                run.model, held_out, run.loss_function, stop=lambda: bool(interruption.number)
            )
        except NonFiniteError as error:
            raise _located(run, f"step {run.step}", error) from None
        if found is None:
            return False
        run.val_loss, run.val_metrics = found
        if run.val_loss < run.best_loss:
            run.best_loss = run.val_loss
            if run.folder is not None:
                checkpoint.save_weights(run.model, run.folder / checkpoint.BEST)
    return True


def _step(run: Run) -> None:
    """One update of the parameters."""
    started = time.perf_counter()
    run.optimizer.zero_grad()
    for p in run.untrained:
        p.grad = None
    losses, counts, metrics = [], [], []
    for _ in range(run.options.accumulate):
        asked = time.perf_counter()
        batch = run.batches.next()
        run.waited += time.perf_counter() - asked
        value, count, named = finite_loss(run.model, batch, run.loss_function)
        # One batch: the gradient of the mean. Several: of sums, divided by all items below.
        value.backward(None if run.options.accumulate == 1 else full_like(value, count))
        losses.append(value.item() * count)
        counts.append(count)
        metrics.append((count, named))
    items = sum(counts)
    trained = [p for group in run.optimizer.param_groups for p in group["params"]]
    if run.options.accumulate > 1 and items > 0:
        for p in trained:
            if p.grad is not None:
                p.grad.mul_(1 / items)
    run.grad_norm = _clip(run, trained)
    run.lr = run.optimizer.param_groups[0]["lr"]
    run.optimizer.step()
    if run.schedule is not None:
        run.schedule.step()
    if run.ema is not None:
        run.ema.update()
    run.step += 1
    run.loss = sum(losses) / items if items else 0.0
    run.metrics = mean_metrics(metrics)
    run.items += items
    speed = items / (time.perf_counter() - started)
    run.speed = 0.9 * run.speed + 0.1 * speed if run.speed else speed


def _clip(run: Run, trained: list[Tensor]) -> float:
    """Clip the gradient; returns its norm before.  Raises: NonFiniteError."""
    norm = float(clip_grad_norm_(trained, run.options.clip_norm or math.inf).item())
    if not math.isfinite(norm):
        names = {id(p): name for name, p in run.model.named_parameters()}
        gradients = {names.get(id(p), f"parameter {i}"): p.grad for i, p in enumerate(trained)}
        found = first_non_finite(gradients) or "no element; their squares are too large"
        raise NonFiniteError(f"the norm of the gradient is {norm}; first not finite: {found}")
    return norm
