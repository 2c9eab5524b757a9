"""Which run folder and configuration a command line of `rushlight train` means."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rushlight_cli.config import FIELDS, Config, UsageError, make, parse

CONFIG, CHECKPOINT, LAST = "config.toml", "resume.safetensors", "last.safetensors"
RUNS = Path("runs")


def given_settings(options: argparse.Namespace) -> dict[str, Any]:
    """What the command line and its config file say, and nothing else.  Raises: UsageError."""
    given: dict[str, Any] = {}
    if options.config is not None:
        given |= _read(options.config)
    preset = given.get("preset", options.preset)
    if options.preset not in (None, preset):
        raise UsageError(f"--preset {options.preset}: {options.config} has the sizes of {preset}")
    given |= dict(parse(assignment) for assignment in options.set)
    for name in ("preset", "tokens", "steps", "seed"):
        value = getattr(options, name)
        if value is not None:
            given |= [parse(f"{name}={value}", f"--{name} {value}")]
    return given | ({"files": options.files} if options.files else {})


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: not an ordinary file")
    try:
        settings = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from None
    make(settings, str(path))
    return settings


def default_folder(given: dict[str, Any], resume: bool) -> Path:
    """To resume, the run that was last written to; else runs/PRESET, the next that is free."""
    if resume:
        runs = [path.parent for path in RUNS.glob(f"*/{CONFIG}")]
        if runs:
            return max(runs, key=_last_written)
    name = str(given.get("preset", Config().preset))
    number, folder = 1, RUNS / name
    while (folder / CONFIG).exists():
        number += 1
        folder = RUNS / f"{name}-{number}"
    return folder


def _last_written(folder: Path) -> float:
    files = (folder / name for name in (CONFIG, CHECKPOINT))
    return max(file.stat().st_mtime for file in files if file.exists())


def configure(folder: Path, given: dict[str, Any], resume: bool) -> tuple[Config, bool]:
    """The configuration, and whether a run with it is resumed.

    A folder that has config.toml but no checkpoint is a run that was ended while it began: it
    begins again, with the settings given now or, when there are none, those recorded.
    Raises: UsageError when files would be overwritten, or a run resumed with other settings.
    """
    config = make(given, "command line")
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
    if not started and not known and folder.is_dir() and any(folder.iterdir()):
        raise UsageError(f"{folder} holds other files and no run: choose another --out")
    if resume and not given and not (started or known):
        raise UsageError(f"--resume: there is no run in {folder}, and no text or setting to begin")
    return started, known


def _recorded(path: Path) -> Config:
    """The configuration of a run, which has every key.  Raises: UsageError."""
    if not path.exists():
        raise UsageError(f"{path} is missing, without which the run cannot go on: bring it back")
    settings = _read(path)
    missing = [name for name in FIELDS if name not in settings]
    if missing:
        raise UsageError(f"{path} lacks {', '.join(missing)}: bring these keys back")
    return make(settings, str(path))
