"""Which run folder and configuration a command line of `rushlight train` means."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rushlight_cli.config import (
    TASKS,
    Config,
    UsageError,
    check_names,
    fields,
    kind_of,
    make,
    nearest,
    parse,
)

CONFIG, CHECKPOINT, LAST = "config.toml", "resume.safetensors", "last.safetensors"
LOCK = ".lock"
RUNS = Path("runs")


def choose(options: argparse.Namespace) -> tuple[Path, Config, bool]:
    """The run folder, its configuration, and whether a run is resumed.  Raises: UsageError."""
    if options.out == "":
        raise UsageError("--out: give the name of a folder")
    folder = Path(options.out) if options.out else _latest() if options.resume else None
    file = {} if options.config is None else _read(options.config)
    kind = _kind(options, file, folder)
    given = _given(kind, options, file)
    if folder is None:
        folder = _free(make(kind, given, "command line").name)
    return folder, *_configure(kind, folder, given, options.resume)


def _kind(options: argparse.Namespace, file: dict[str, Any], folder: Path | None) -> type[Config]:
    """Of the task that is named, in the configuration file's words or by the run to resume."""
    said = [setting for setting in options.set if setting.partition("=")[0].strip() == "task"]
    named = options.task or (said[-1].partition("=")[2].strip() if said else file.get("task"))
    if named is None and options.resume and folder is not None and (folder / CONFIG).exists():
        named = _read(folder / CONFIG).get("task")
    named = "text" if named is None else named
    if not isinstance(named, str) or named not in TASKS:
        raise UsageError(f"unknown task {named!r}{nearest(str(named), TASKS)}")
    return kind_of(named)


def _given(kind: type[Config], options: argparse.Namespace, file: dict[str, Any]) -> dict[str, Any]:
    """What the command line and its config file say, and nothing else.  Raises: UsageError."""
    if file:
        make(kind, file, str(options.config))
    preset = file.get("preset", options.preset)
    if options.preset not in (None, preset):
        raise UsageError(f"--preset {options.preset}: {options.config} has the sizes of {preset}")
    said = dict(parse(kind, assignment) for assignment in options.set)
    for name in ("task", "preset", "tokens", "model", "steps", "epochs", "seed"):
        value = getattr(options, name)
        if value is not None:
            said |= [parse(kind, f"{name}={value}", f"--{name} {value}")]
    if said.get("steps") and "epochs" in said:
        raise UsageError("steps and epochs both say how long to train: give one of them")
    given = file | said
    if options.files:
        given["files"] = options.files
    return {"task": kind().task, **given} if given else {}  # first: what a resumed run differs in


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: not an ordinary file")
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from None


def _latest() -> Path | None:
    """The run that was last written to."""
    runs = [path.parent for path in RUNS.glob(f"*/{CONFIG}")]
    return max(runs, key=_last_written) if runs else None


def _free(name: str) -> Path:
    """runs/NAME, or the next with a number that is no run."""
    number, folder = 1, RUNS / name
    while (folder / CONFIG).exists():
        number += 1
        folder = RUNS / f"{name}-{number}"
    return folder


def _last_written(folder: Path) -> float:
    files = (folder / name for name in (CONFIG, CHECKPOINT))
    return max(file.stat().st_mtime for file in files if file.exists())


def _configure(
    kind: type[Config], folder: Path, given: dict[str, Any], resume: bool
) -> tuple[Config, bool]:
    """The configuration, and whether a run with it is resumed.

    A folder that has config.toml but no checkpoint is a run that was ended while it began: it
    begins again, with the settings given now or, when there are none, those recorded.
    Raises: UsageError when files would be overwritten, or a run resumed with other settings.
    """
    config = make(kind, given, "command line")
    started, known = _found(folder, bool(given), resume)
    if not (started or known):
        return config, False
    recorded = _recorded(folder / CONFIG)
    if not started:
        return config if given or not resume else recorded, False
    for name, value in given.items():
        before = getattr(recorded, name)
        if getattr(config, name) != before:
            raise UsageError(
                f"--resume: {name} was {before!r} when {folder} began, and is {value!r} now; "
                "leave it out, or begin another run with --out"
            )
    return recorded, True


def _found(folder: Path, given: bool, resume: bool) -> tuple[bool, bool]:
    """Whether the folder has a checkpoint, and whether a configuration.

    Raises: UsageError when that is not what a command wants that says to resume or does not.
    """
    if folder.is_file():
        raise UsageError(f"--out {folder} is a file; choose a folder")
    started, known = (folder / CHECKPOINT).exists(), (folder / CONFIG).exists()
    if not started and (folder / LAST).exists():
        raise UsageError(
            f"{folder} has weights but no {CHECKPOINT}: bring it back, or choose --out"
        )
    if started and not resume:
        raise UsageError(f"{folder} already holds a run: add --resume to go on, or choose --out")
    if not started and not known and folder.is_dir() and any(map(_foreign, folder.iterdir())):
        raise UsageError(f"{folder} holds other files and no run: choose another --out")
    if resume and not given and not (started or known):
        raise UsageError(f"--resume: there is no run in {folder}, and no text or setting to begin")
    return started, known


def _foreign(path: Path) -> bool:
    """Whether a file is none that a run leaves which was killed as it began."""
    return path.name != LOCK and not path.name.endswith(".part")


def _recorded(path: Path) -> Config:
    """The configuration of a run, which has every key.  Raises: UsageError."""
    if not path.exists():
        raise UsageError(f"{path} is missing, without which the run cannot go on: bring it back")
    settings = _read(path)
    task = settings.get("task", "text")
    if not isinstance(task, str) or task not in TASKS:
        raise UsageError(f"{path}: unknown task {task!r}{nearest(str(task), TASKS)}")
    kind = kind_of(task)
    check_names(kind, settings, str(path))
    missing = [name for name in fields(kind) if name not in settings]
    if missing:
        raise UsageError(f"{path} lacks {', '.join(missing)}: bring these keys back")
    return make(kind, settings, str(path))
