"""The training loop: model, batches and a loss function in, a trained model out.

Every method (language modelling, fine-tuning, preferences, distillation) is a loss function and
batches for this loop. A step takes `accumulate` batches; the loss function gives the mean over
what counts in a batch, and how much that is, so that the gradient of several batches is that of one
large batch. Between two steps everything that follows depends on a state that a checkpoint holds.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

from rushlight.autograd import no_grad
from rushlight.creation import full_like
from rushlight.errors import ConfigError, NonFiniteError, ShapeError
from rushlight.nn import Module
from rushlight.nn.utils import clip_grad_norm_
from rushlight.optim import EMA, AdamW, Optimizer
from rushlight.optim.lr_scheduler import LRScheduler
from rushlight.random import Generator, get_rng_state, set_rng_state, stream
from rushlight.tensor import Tensor
from rushlight.train import checkpoint
from rushlight.train.batches import Batches
from rushlight.train.finite import first_in_forward, first_non_finite
from rushlight.train.interrupt import Interruption
from rushlight.train.report import METRICS, Callback, Metrics

Loss = Callable[[Module, Any], Any]


@dataclasses.dataclass(frozen=True)
class Options:
    """How to train. Raises: ConfigError for values that make no sense."""

    steps: int | None = None  # None: once through the batches
    accumulate: int = 1  # batches to a step
    clip_norm: float = 0.0  # of the whole gradient; 0 clips nothing
    eval_every: int = 0  # steps; 0: after the last one only
    save_every: int = 0  # steps; 0: at the start, at the end and when interrupted
    log_every: int = 10  # steps to a line of metrics.jsonl
    unit: str = "items"  # what the loss is a mean of, for metrics.jsonl
    folder: str | Path | None = None  # of the run; None saves nothing
    resume: bool = False  # go on from the folder's checkpoint, where there is one

    def __post_init__(self) -> None:
        smallest = {"steps": 0, "accumulate": 1, "eval_every": 0, "save_every": 0, "log_every": 1}
        for name, least in smallest.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < least):
                raise ConfigError(f"{name} must be a whole number from {least} on, got {value!r}")
        if not self.clip_norm >= 0:
            raise ConfigError(f"clip_norm must not be negative, got {self.clip_norm}")
        if self.resume and self.folder is None:
            raise ConfigError("resume needs the folder of the run")


class Run:
    """A training run and how far it is; what callbacks and the caller get to see."""

    def __init__(self, model: Module, loss: Loss, batches: Batches, options: Options) -> None:
        self.model, self.loss_function, self.batches, self.options = model, loss, batches, options
        self.optimizer: Optimizer
        self.schedule: LRScheduler | None = None
        self.ema: EMA | None = None
        self.steps = 0  # how many there will be
        self.step = 0  # how many there were
        self.reported = 0  # the last step that was evaluated, if due, and told to the callbacks
        self.loss = math.nan  # of the last step: the mean over its items
        self.lr = math.nan  # of the first group, in the last step
        self.grad_norm = math.nan  # of the last step, before clipping
        self.items = 0.0  # what all losses so far were means of: samples, tokens
        self.val_loss: float | None = None  # held-out, where this step was evaluated
        self.best_loss = math.inf  # the lowest val_loss so far
        self.speed = 0.0  # items a second, the last steps counting most
        self.waited = 0.0  # seconds that steps of this process waited for batches
        self.saved = -1  # the step of the checkpoint in the folder; -1: none
        self.stop = False  # set by a callback to end the run after this step
        self.interrupted = False

    @property
    def folder(self) -> Path | None:
        """Where the run saves."""
        return None if self.options.folder is None else Path(self.options.folder)

    @property
    def finished(self) -> bool:
        """Whether this step was the last."""
        return self.stop or self.step >= self.steps

    def due(self, every: int) -> bool:
        """Whether what happens every so many steps, and after the last, happens now."""
        return self.finished or (every > 0 and self.step > 0 and self.step % every == 0)

    def parts(self) -> dict[str, Any]:
        """All that has a state to save, by name."""
        parts = {"model": self.model, "optimizer": self.optimizer, "batches": self.batches}
        optional = {"schedule": self.schedule, "ema": self.ema}
        return parts | {name: part for name, part in optional.items() if part is not None}

    _PROGRESS = ("step", "reported", "loss", "lr", "grad_norm", "items", "val_loss", "best_loss")

    def progress(self) -> dict[str, Any]:
        """The numbers that a checkpoint keeps."""
        return {name: getattr(self, name) for name in self._PROGRESS}

    def set_progress(self, numbers: Mapping[str, Any]) -> None:
        """Go on from the numbers of a checkpoint."""
        for name in self._PROGRESS:
            setattr(self, name, numbers[name])
        self.saved = self.step


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
    loss(model, batch): the mean loss, or a pair of it and of how many items it is the mean over;
    the batches of a step, and the held-out ones, weigh as much as they have items.
    optimizer: AdamW with its defaults unless given.  schedule: stepped after every step.
    ema: updated after every step; its averages are what is evaluated and kept as the best.
    held_out: batches to evaluate on, without gradients and in evaluation mode.
    options: the fields of `Options`.

    With a folder, the run writes metrics.jsonl and its checkpoints there. The first Ctrl-C (or
    SIGTERM) saves after the present step and then does what it does by default; with resume=True
    the run goes on to the same bits.
    Raises: NonFiniteError with the step, the batch and the first tensor that is not finite;
    ConfigError; FormatError for a checkpoint that does not fit.
    """
    settings = make_options(options)
    run = Run(model, loss, Batches(batches), settings)
    run.optimizer = AdamW(model.named_parameters()) if optimizer is None else optimizer
    run.schedule, run.ema = schedule, ema
    run.steps = _steps(settings, batches)
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
    interruption.deliver()
    return run


def make_options(options: Mapping[str, Any]) -> Options:
    """Options from keywords.  Raises: ConfigError with the nearest known name."""
    known = [field.name for field in dataclasses.fields(Options)]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"train has no option {name!r}; {hint}")
    return Options(**options)


def _steps(options: Options, batches: Iterable[Any]) -> int:
    if options.steps is not None:
        return options.steps
    if not isinstance(batches, Sized):
        raise ConfigError("say how many steps to train: the batches do not know their number")
    return math.ceil(len(batches) / options.accumulate)


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
        run.interrupted = interruption.number is not None
        ends = run.interrupted or run.finished
        due = ends or run.saved < 0 or run.due(run.options.save_every)
        if run.folder is not None and due and run.saved != run.step:
            checkpoint.save_checkpoint(run)
            run.saved = run.step
        if ends:
            return
        _step(run)


def _evaluated(run: Run, held_out: Iterable[Any] | None, interruption: Interruption) -> bool:
    """Evaluate if it is time to; whether that is done, and was not interrupted."""
    run.val_loss = None
    if held_out is None or not run.due(run.options.eval_every):
        return True
    with run.ema.applied() if run.ema else nullcontext():
        value = evaluate(
            run.model, held_out, run.loss_function, stop=lambda: bool(interruption.number)
        )
        if value is None:
            return False
        run.val_loss = value
        if value < run.best_loss:
            run.best_loss = value
            if run.folder is not None:
                checkpoint.save_weights(run.model, run.folder / checkpoint.BEST)
    return True


@no_grad()
def evaluate(
    model: Module,
    batches: Iterable[Any],
    loss: Loss,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> float | None:
    """Mean loss over all items of the batches, in evaluation mode; None when stopped before.

    Random numbers that batches or loss draw are the same every time, and move no other stream.
    Raises: ConfigError when there are no items.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        total = items = 0.0
        with stream(Generator()):
            for batch in batches:
                value, count = mean_and_count(loss(model, batch))
                total += value.item() * count
                items += count
                if stop():
                    return None
    finally:
        for module, mode in modes:
            module.training = mode
    if not items:
        raise ConfigError("evaluate: the batches have no items")
    return total / items


def mean_and_count(result: Any) -> tuple[Tensor, float]:
    """What a loss function gave: the mean, and over how many items (1 when it does not say)."""
    value, count = result if isinstance(result, tuple) else (result, 1.0)
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ShapeError(f"a loss function gives one number or (number, count), got {value!r}")
    return value, float(count)


def _step(run: Run) -> None:
    """One update of the parameters."""
    started = time.perf_counter()
    run.optimizer.zero_grad()
    losses, counts = [], []
    for _ in range(run.options.accumulate):
        asked = time.perf_counter()
        batch = run.batches.next()
        run.waited += time.perf_counter() - asked
        value, count = _loss(run, batch)
        # One batch: the gradient of the mean. Several: of sums, divided by all items below.
        value.backward(None if run.options.accumulate == 1 else full_like(value, count))
        losses.append(value.item() * count)
        counts.append(count)
    items = sum(counts)
    if run.options.accumulate > 1 and items > 0:
        for p in run.model.parameters():
            if p.grad is not None:
                p.grad.mul_(1 / items)
    run.grad_norm = _clip(run)
    run.lr = run.optimizer.param_groups[0]["lr"]
    run.optimizer.step()
    if run.schedule is not None:
        run.schedule.step()
    if run.ema is not None:
        run.ema.update()
    run.step += 1
    run.loss = sum(losses) / items if items else 0.0
    run.items += items
    speed = items / (time.perf_counter() - started)
    run.speed = 0.9 * run.speed + 0.1 * speed if run.speed else speed


def _loss(run: Run, batch: Any) -> tuple[Tensor, float]:
    """The loss on a batch.  Raises: NonFiniteError."""
    random = get_rng_state()
    value, count = mean_and_count(run.loss_function(run.model, batch))
    if math.isfinite(value.item()):
        return value, count

    def again() -> None:
        set_rng_state(random)
        run.loss_function(run.model, batch)

    found = (
        first_non_finite(run.model.state_dict())
        or first_non_finite(batch, "batch")
        or first_in_forward(run.model, again)
    )
    raise _not_finite(run, f"the loss is {value.item()}", found)


def _clip(run: Run) -> float:
    """Clip the gradient; returns its norm before.  Raises: NonFiniteError."""
    limit = run.options.clip_norm or math.inf
    norm = float(clip_grad_norm_(run.model.parameters(), limit).item())
    if not math.isfinite(norm):
        gradients = {name: p.grad for name, p in run.model.named_parameters()}
        found = first_non_finite(gradients)
        raise _not_finite(run, "the gradient is not finite", found)
    return norm


def _not_finite(run: Run, what: str, found: str | None) -> NonFiniteError:
    kept = f"; the checkpoint in {run.folder} is intact" if run.folder is not None else ""
    return NonFiniteError(
        f"step {run.step + 1}, batch {run.batches.count}: {what}; "
        f"first not finite: {found or 'nothing that was computed on the way'}{kept}"
    )
