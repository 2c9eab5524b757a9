"""`rushlight train`: train a model in a run folder that can be interrupted and resumed.

What is trained is a task: a module of this package (`text`, `vision`), as `Task` says.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

from rushlight_cli.config import TASKS, Config, UsageError, kind_of, table, to_toml
from rushlight_cli.output import tell
from rushlight_cli.settings import CHECKPOINT, CONFIG, LOCK, choose

if TYPE_CHECKING:
    from rushlight.nn import Module
    from rushlight.train import Run


class Task(Protocol):
    """What `train` wants of a task's module; Data is whatever the module makes of its files."""

    Settings: type[Config]

    def write_data(self, config: Any, folder: Path) -> Any:
        """Put all that is learned from into the run folder, and return it as Data."""

    def read_data(self, folder: Path) -> Any:
        """Data as `write_data` left it."""

    def checksum(self, data: Any) -> int:
        """Of all that the weights depend on: a resumed run must find the same."""

    def model(self, config: Any, data: Any, resumed: bool) -> Module:
        """A new model; if resumed, a checkpoint is going to give it its weights."""

    def introduction(self, config: Any, data: Any, model: Module) -> list[str]:
        """Lines that say what is trained on what."""

    def lesson(self, config: Any, data: Any) -> dict[str, Any]:
        """Arguments of `rushlight.train.train`: batches, loss, held_out, steps, unit and more."""

    def speed(self, model: Module) -> dict[str, Any]:
        """Arguments `flops` and `peak` of `Progress`, or none."""

    def finish(self, config: Any, data: Any, folder: Path, quiet: bool) -> None:
        """What is made and said once the training has ended."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags; each setting's last word is: flag, --set, --config, preset."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n\n".join(table(kind_of(task)) for task in TASKS)
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help="text files, and folders of them; images")
    tasks = "; ".join(f"{name}: {what}" for name, what in TASKS.items())
    add("--task", metavar="TASK", help=f"{tasks}; default: text")
    add("--preset", metavar="NAME", help="text: gpt-nano (0.8 M parameters) or gpt-char (10.7 M)")
    add("--tokens", metavar="KIND", help="text: byte or char")
    add("--model", metavar="NAME", help="vision: lenet, resnet18, mobileone_s0, fastvit_t8, …")
    add("--out", metavar="DIR", help="the run folder; runs/PRESET or runs/MODEL unless given")
    add("--steps", metavar="N", help="updates of the weights")
    add("--epochs", metavar="N", help="vision: times that each image is learned from")
    add("--config", type=Path, metavar="FILE", help="settings, for example of another run")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="one setting; see below")
    add("--resume", action="store_true", help="go on with the run in --out, or the latest")
    add("--seed", metavar="N", help="of all random numbers")
    add("--quiet", action="store_true", help="print nothing but errors")


def run(options: argparse.Namespace) -> int:
    """Train, or go on training; then show what came of it."""
    folder, config, resumed = choose(options)
    task = cast("Task", import_module(f"rushlight_cli.{config.task}"))
    with _begun(folder, config, task, resumed) as data:
        say = (lambda _: None) if options.quiet else tell
        _seed(config.seed)
        model = task.model(config, data, resumed)
        for line in task.introduction(config, data, model):
            say(line)
        say(f"run      {folder}" + (", resumed" if resumed else ""))
        result = _train(folder, config, task, data, model, options.quiet)
        say(_conclusion(folder, result))
        task.finish(config, data, folder, options.quiet)
    return 0


def _seed(seed: int) -> None:
    import random

    import numpy as np

    import rushlight as rl

    rl.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


# ---- the run folder ----


@contextmanager
def _begun(folder: Path, config: Config, task: Task, resumed: bool) -> Iterator[Any]:
    """The task's data in the run folder, which belongs to this process for so long.

    A new run's configuration comes first, so that it is known for a run if it is killed here.
    A run that ends before its first checkpoint leaves the folder as it found it.
    Raises: FormatError for data that is none or too little; UsageError when another process has
    the folder.
    """
    from rushlight.io import write_atomic

    new = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    before = {path.name for path in folder.iterdir()}
    recorded = (folder / CONFIG).read_bytes() if CONFIG in before else None
    with _owned(folder / LOCK):
        if resumed:
            yield task.read_data(folder)
            return
        try:
            write_atomic(folder / CONFIG, to_toml(config))
            yield task.write_data(config, folder)
        except BaseException:
            if not (folder / CHECKPOINT).exists():
                _restore(folder, before, recorded)
                for place in new:
                    place.rmdir()
            raise


def _restore(folder: Path, before: set[str], recorded: bytes | None) -> None:
    """Take out of a run folder what was not there before, and bring its configuration back."""
    for path in folder.iterdir():
        if path.name not in before:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if recorded is not None and (folder / CONFIG).read_bytes() != recorded:
        (folder / CONFIG).write_bytes(recorded)


@contextmanager
def _owned(lock: Path) -> Iterator[None]:
    """Keep other processes from training in the folder of a lock file, where the system can."""
    with lock.open("a") as file:
        try:
            import fcntl

            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # gone with the process, however
        except ImportError:  # Windows
            pass
        except OSError:
            raise UsageError(f"{lock.parent}: another process is training there") from None
        yield


# ---- training ----


def _train(folder: Path, config: Config, task: Task, data: Any, model: Module, quiet: bool) -> Run:
    from rushlight import train as t
    from rushlight.optim import EMA
    from rushlight.optim.lr_scheduler import CosineWithWarmupLR
    from rushlight.train.report import METRICS

    lesson: dict[str, Any] = task.lesson(config, data)
    steps = lesson["steps"]
    optimizer = t.adamw(model, config.lr, config.weight_decay, (config.beta1, config.beta2))
    warmup = min(config.warmup, steps // 10)
    callbacks = [
        t.Curve(folder / METRICS, folder / "loss.png"),
        t.TensorBoard(folder / "tensorboard", config.log_every),
    ]
    if not quiet:
        go_on = f"rushlight train --resume --out {shlex.quote(str(folder))}"
        callbacks.append(t.Progress(lesson["unit"], **task.speed(model), go_on=go_on))
    return t.train(
        model,
        optimizer=optimizer,
        schedule=CosineWithWarmupLR(optimizer, warmup, max(steps, 1), config.min_lr),
        ema=EMA(model, config.ema) if config.ema else None,
        callbacks=callbacks,
        accumulate=config.accumulate,
        clip_norm=config.clip_norm,
        save_every=config.save_every,
        log_every=config.log_every,
        settings={**dataclasses.asdict(config), "data": task.checksum(data)},
        folder=folder,
        resume=True,
        **lesson,
    )


def _conclusion(folder: Path, result: Run) -> str:
    best = (
        f"; lowest held-out loss {result.best_loss:.4f}" if result.best_loss < float("inf") else ""
    )
    return f"done     {result.step} steps{best}; weights, metrics and settings are in {folder}"
