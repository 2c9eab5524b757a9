"""What a run tells the world: metrics as JSON lines, progress, a loss curve, TensorBoard events."""

from __future__ import annotations

import json
import math
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rushlight.io.files import write_atomic

if TYPE_CHECKING:
    from rushlight.train.run import Run

METRICS = "metrics.jsonl"


class Callback:
    """What is told of a run: at its start, after every step, at its end (however it ends)."""

    def start(self, run: Run) -> None:
        """Before the first step; `run.step` is above 0 when the run is resumed."""

    def step(self, run: Run) -> None:
        """After a step, and after its evaluation where one was due (`run.val_loss`)."""

    def stop(self, run: Run) -> None:
        """After the last step, an interruption or an error."""


class Metrics(Callback):
    """One JSON object a line: every so many steps, after every evaluation and after the last step.

    `step`, `loss`, `lr`, `grad_norm`, `items` so far, `items_per_s`, and `val_loss` where there was
    an evaluation; "items" is the unit's name. The loss function's metrics are there by name, those
    of an evaluation with "val_" before it. A resumed run drops the lines after its checkpoint.
    """

    def __init__(self, path: Path, every: int, unit: str) -> None:
        self.path, self.every, self.unit = path, every, unit
        self.file: TextIO | None = None
        self.told = (0, False)  # the step of the last line, and whether it has a val_loss

    def start(self, run: Run) -> None:
        """Drop what the run is going to do again."""
        lines = _lines(self.path)
        kept = [line for line in lines if _step_of(line) <= run.reported] if run.step else []
        if kept != lines:
            write_atomic(self.path, "".join(line + "\n" for line in kept))
        self.file = self.path.open("a", buffering=1)

    def step(self, run: Run) -> None:
        """Add a line if one is due."""
        if run.tells(self.every):
            self._add(run)

    def _add(self, run: Run) -> None:
        self.told = (run.step, run.val_loss is not None)
        line: dict[str, Any] = {"step": run.step, "loss": run.loss} | run.metrics
        if run.val_loss is not None:
            line["val_loss"] = run.val_loss
            line |= {f"val_{name}": value for name, value in run.val_metrics.items()}
        line |= {"lr": run.lr, "grad_norm": run.grad_norm, self.unit: int(run.items)}
        line[f"{self.unit}_per_s"] = round(run.speed, 1)
        assert self.file is not None
        try:
            self.file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path)) from error

    def stop(self, run: Run) -> None:
        """Close the file; add the evaluation of a run that was stopped early."""
        if run.stop and self.told != (run.step, run.val_loss is not None):
            self._add(run)
        if self.file is not None:
            with suppress(OSError):  # of a line that could not be written: `step` has said so
                self.file.close()


def _step_of(line: str) -> float:
    """The step of a line; a line that a kill cut off belongs to no step."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return math.inf


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl."""
    return [json.loads(line) for line in _lines(path) if _step_of(line) < math.inf]


def _lines(path: Path) -> list[str]:
    return path.read_text("utf-8", "replace").splitlines() if path.exists() else []


class Progress(Callback):
    """Lines for people: every so many steps and after evaluations, at least one in half a minute.

    On a terminal a line between them is kept up to date in place.
    flops: arithmetic per item, for the share of `peak`, the products' FLOP/s on this machine.
    go_on: the command that resumes the run, for when it ends early.
    """

    def __init__(
        self,
        unit: str = "items",
        flops: float = 0.0,
        peak: float = 0.0,
        every: int = 100,
        go_on: str = "",
        out: TextIO | None = None,
    ) -> None:
        self.unit, self.flops, self.peak, self.every = unit, flops, peak, every
        self.go_on = go_on
        self.out = out or sys.stdout
        self.silent = self.out is None  # a process without standard output
        self.live = not self.silent and self.out.isatty()
        self.shown = 0.0
        self.width = 0

    def start(self, run: Run) -> None:
        """Note where this process begins."""
        self.first, self.began = run.step, time.monotonic()
        self.shown = self.began

    def step(self, run: Run) -> None:
        """Show the step when it is time to."""
        now = time.monotonic()
        waited = now - self.shown
        kept = run.tells(self.every) or (waited >= 30 and not self.live)
        if kept or (self.live and waited >= 0.1):
            self.shown = now
            self._print(self._line(run, now), kept)

    def stop(self, run: Run) -> None:
        """Leave the line; say what is saved of a run that ends early."""
        if self.width:
            self._print("", kept=True)
        if not run.finished and run.saved >= 0:
            ended = "interrupted" if run.interrupted else "ended early"
            how = f"; go on with: {self.go_on}" if self.go_on and not run.diverged else ""
            if run.diverged:  # and would again
                how = "; begin another run, with a lower learning rate or clipping"
            self._print(f"{ended}; step {run.saved} of {run.total_steps} is saved{how}", kept=True)

    def _line(self, run: Run, now: float) -> str:
        parts = [f"step {run.step}/{run.total_steps}", f"loss {run.loss:.4f}"]
        parts += [f"{name} {value:.4f}" for name, value in run.metrics.items()]
        if run.val_loss is not None:
            parts.append(f"held-out loss {run.val_loss:.4f}")
            parts += [f"held-out {name} {value:.4f}" for name, value in run.val_metrics.items()]
        parts += [f"lr {run.lr:.1e}", f"{run.speed:,.0f} {self.unit}/s"]
        if self.peak:
            parts.append(f"{run.speed * self.flops / self.peak:.0%} of peak")
        done = run.step - self.first  # 0 when an evaluation was all that was left of a step
        if done:
            parts.append(
                f"{duration((run.total_steps - run.step) * (now - self.began) / done)} left"
            )
        return "  ".join(parts)

    def _print(self, line: str, kept: bool) -> None:
        if self.silent:
            return
        start = "\r" if self.live else ""
        try:
            self.out.write(start + line.ljust(self.width) + ("\n" if kept else ""))
            self.out.flush()
        except OSError:  # nobody reads on, or the disk is full: no reason to stop
            self.silent = True
        self.width = 0 if kept else len(line)


def duration(seconds: float) -> str:
    """Seconds as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


class Curve(Callback):
    """A picture of the losses in metrics.jsonl, drawn at the end where matplotlib is installed."""

    def __init__(self, metrics: Path, picture: Path) -> None:
        self.metrics, self.picture = metrics, picture

    def stop(self, run: Run) -> None:
        """Draw."""
        try:
            from matplotlib.figure import Figure
        except ImportError:
            return
        lines = read_metrics(self.metrics)
        if not lines:
            return
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes = figure.subplots()
        for name, label in (("loss", "training"), ("val_loss", "held out")):
            known = [line for line in lines if isinstance(line.get(name), int | float)]
            points = [(line["step"], line[name]) for line in known]
            marker = "." if len(points) < 50 else None
            if points:
                axes.plot(*zip(*points, strict=True), label=label, marker=marker)
        axes.set(xlabel="step", ylabel="loss")
        axes.legend()
        axes.grid(visible=True, alpha=0.3)
        with suppress(OSError):  # a full disk has ended the run already, and says so
            figure.savefig(self.picture, dpi=120)


class TensorBoard(Callback):
    """Scalars as TensorBoard events, where tensorboardX is installed."""

    def __init__(self, folder: Path, every: int) -> None:
        self.folder, self.every, self.writer = folder, every, None

    def start(self, run: Run) -> None:
        """Open an event file; a resumed run hides the events after its checkpoint."""
        try:
            from tensorboardX import SummaryWriter
        except ImportError:
            return
        except OSError as error:  # it loads PyTorch where that is installed, which may be broken
            print(f"no TensorBoard events: {error}", file=sys.stderr)
            return
        purge = run.reported + 1 if run.step else None
        self.writer = SummaryWriter(str(self.folder), purge_step=purge)

    def step(self, run: Run) -> None:
        """Add the step's numbers."""
        if self.writer is None or not run.tells(self.every):
            return
        numbers = {"loss": run.loss, "val_loss": run.val_loss, "lr": run.lr}
        numbers |= {"grad_norm": run.grad_norm} | run.metrics
        numbers |= {f"val_{name}": value for name, value in run.val_metrics.items()}
        for name, value in numbers.items():
            if value is not None:
                self.writer.add_scalar(name, value, run.step)

    def stop(self, run: Run) -> None:
        """Close the file."""
        if self.writer is not None:
            self.writer.close()
