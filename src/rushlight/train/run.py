"""A run of the training loop: what it was told, and how far it is."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rushlight.errors import ConfigError
from rushlight.nn import Module
from rushlight.optim import EMA, Optimizer
from rushlight.optim.lr_scheduler import LRScheduler
from rushlight.tensor import Tensor
from rushlight.train.batches import Batches
from rushlight.train.loss import Loss


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
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # what else must agree

    def __post_init__(self) -> None:
        smallest = {"steps": 0, "accumulate": 1, "eval_every": 0, "save_every": 0, "log_every": 1}
        for name, least in smallest.items():
            value = getattr(self, name)
            whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
            fits = whole and value >= least
            if not fits and (name != "steps" or value is not None):
                raise ConfigError(f"{name} must be a whole number from {least} on, got {value!r}")
        if not isinstance(self.clip_norm, int | float) or not self.clip_norm >= 0:
            raise ConfigError(f"clip_norm must be a number from 0 on, got {self.clip_norm!r}")
        if self.resume and self.folder is None:
            raise ConfigError("resume needs the folder of the run")
        for name, value in self.settings.items():  # they are compared when the run goes on
            if not _plain(value):
                raise ConfigError(f"settings: {name} must be numbers, text or lists: {value!r:.80}")


def _plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_plain, value))
    return (
        value is None
        or isinstance(value, int | str)
        or (isinstance(value, float) and value == value)
    )


def make_options(options: Mapping[str, Any]) -> Options:
    """Options from keywords.  Raises: ConfigError with the nearest known name."""
    known = [field.name for field in dataclasses.fields(Options)]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            raise ConfigError(f"train has no option {name!r}; {hint}")
    return Options(**options)


class Run:
    """A training run and how far it is; what callbacks and the caller get to see."""

    def __init__(self, model: Module, loss: Loss, batches: Batches, options: Options) -> None:
        self.model, self.loss_function, self.batches, self.options = model, loss, batches, options
        self.optimizer: Optimizer
        self.schedule: LRScheduler | None = None
        self.ema: EMA | None = None
        self.untrained: list[Tensor] = []  # the model's parameters that the optimizer does not have
        self.total_steps = 0
        self.step = 0  # the last one done
        self.reported = 0  # the last step that was evaluated, if due, and told to the callbacks
        self.loss = math.nan  # of the last step: the mean over its items
        self.lr = math.nan  # of the first group, in the last step
        self.grad_norm = math.nan  # of the last step, before clipping
        self.items = 0.0  # what all losses so far were means of: samples, tokens
        self.metrics: dict[str, float] = {}  # other means over the last step's items
        self.val_loss: float | None = None  # held-out, where this step was evaluated
        self.val_metrics: dict[str, float] = {}  # other means over the held-out items, there
        self.best_loss = math.inf  # the lowest val_loss so far
        self.speed = 0.0  # items a second, the last steps counting most
        self.waited = 0.0  # seconds that steps of this process waited for batches
        self.saved = -1  # the step of the checkpoint in the folder; -1: none
        self.stop = False  # a callback ends the run with it, after this step and its evaluation
        self.interrupted = False
        self.diverged = False  # ended by a number that is not finite

    def __repr__(self) -> str:
        return f"Run(step {self.step} of {self.total_steps}, loss {self.loss:.4g})"

    @property
    def folder(self) -> Path | None:
        """Where the run saves."""
        return None if self.options.folder is None else Path(self.options.folder)

    @property
    def finished(self) -> bool:
        """Whether this step was the last."""
        return self.stop or self.step >= self.total_steps

    def due(self, every: int) -> bool:
        """Whether what happens every so many steps, and after the last, happens now."""
        return self.finished or (every > 0 and self.step > 0 and self.step % every == 0)

    def tells(self, every: int) -> bool:
        """Whether a callback that reports every so many steps does now: also of evaluations."""
        return self.val_loss is not None or self.due(every)

    def parts(self) -> dict[str, Any]:
        """All that has a state to save, by name."""
        parts = {"model": self.model, "optimizer": self.optimizer, "batches": self.batches}
        optional = {"schedule": self.schedule, "ema": self.ema}
        return parts | {name: part for name, part in optional.items() if part is not None}

    _PROGRESS: tuple[str, ...] = ("step", "reported", "loss", "metrics", "lr", "grad_norm", "items")
    _PROGRESS += ("val_loss", "val_metrics", "best_loss")

    def settings(self) -> dict[str, Any]:
        """What a checkpoint and the run that goes on from it must agree in."""
        kinds = {name: type(part).__name__ for name, part in self.parts().items()}
        own: dict[str, Any] = {"accumulate": self.options.accumulate}
        own["clip_norm"] = float(self.options.clip_norm)
        own |= {name: kinds[name] for name in ("optimizer", "schedule") if name in kinds}
        return own | dict(self.options.settings)

    def progress(self) -> dict[str, Any]:
        """The numbers that a checkpoint keeps."""
        return {name: getattr(self, name) for name in self._PROGRESS}

    def set_progress(self, numbers: Mapping[str, Any]) -> None:
        """Go on from the numbers of a checkpoint."""
        for name in self._PROGRESS:
            setattr(self, name, numbers[name])
        self.saved = self.step
