"""The run folder: checkpoints that a run continues from exactly, and the weights it came to.

`resume.safetensors` is the checkpoint: everything a run needs to go on, replaced in one piece.
`last.safetensors` and `best.safetensors` are state dicts for everybody else. `last` is written
after the checkpoint and again when a run goes on, so it never leads, and lags only after a kill.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rushlight.errors import ConfigError, FormatError, NonFiniteError
from rushlight.io import load, save
from rushlight.nn import Module
from rushlight.train.finite import first_non_finite
from rushlight.train.streams import random_states, set_random_states

if TYPE_CHECKING:
    from rushlight.train.run import Run

CHECKPOINT, LAST, BEST = "resume.safetensors", "last.safetensors", "best.safetensors"
VERSION = 2


def exists(folder: Path) -> bool:
    """Whether the folder holds a run to go on with.

    Raises: ConfigError when there are weights that a run without its checkpoint would overwrite.
    """
    found = (folder / CHECKPOINT).exists()
    if not found and ((folder / LAST).exists() or (folder / BEST).exists()):
        raise ConfigError(
            f"{folder} has weights but no {CHECKPOINT}: bring it back, or take another folder"
        )
    return found


def clean(folder: Path) -> None:
    """Remove what a killed process left half written."""
    ours = "resume|last|best|config|tokens|images|metrics"
    for path in folder.iterdir():
        if re.fullmatch(rf"({ours})\.\w+\.\d+-\d+\.part", path.name):
            path.unlink()


def save_checkpoint(run: Run) -> None:
    """Replace the checkpoint in the run's folder, and then its last weights.

    Raises: NonFiniteError, OSError; the checkpoint before is intact then.
    """
    assert run.folder is not None
    state: dict[str, Any] = {name: part.state_dict() for name, part in run.parts().items()}
    parameters = dict(run.model.named_parameters())
    wrong = first_non_finite({"model": parameters, "optimizer": state["optimizer"]})
    if wrong:
        raise NonFiniteError(f"step {run.step} is not saved; first not finite: {wrong}")
    state |= {"version": VERSION, "progress": run.progress(), "random": random_states()}
    state["settings"] = run.settings()
    save(state, run.folder / CHECKPOINT)
    run.saved = run.step
    save(state["model"], run.folder / LAST)


def save_weights(model: Module, path: Path) -> None:
    """Save the state dict alone, for anybody who reads safetensors."""
    save(model.state_dict(), path)


def restore(run: Run, folder: Path) -> None:
    """Put a run where the checkpoint of its folder was made.

    Raises: FormatError for a checkpoint that is damaged or of other parts than this run has;
    ConfigError, by name, for options that are not those it began with, or too few steps.
    """
    path = folder / CHECKPOINT
    try:
        state = load(path)
    except FormatError as error:
        raise FormatError(f"{error}; bring the file back, or begin another run") from None
    parts = run.parts()
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise FormatError(f"{path} is no checkpoint of this version of Rushlight")
    odd = sorted(set(state) ^ {*parts, "version", "progress", "random", "settings"})
    if odd:
        raise FormatError(f"{path} and this run differ in what they have: {', '.join(odd)}")
    try:
        before, now = state["settings"], run.settings()
        for name in before | now:
            if before.get(name) != now.get(name):
                raise ConfigError(
                    f"resume: {name} was {before.get(name)!r} when {folder} began, "
                    f"and is {now.get(name)!r} now"
                )
        for name, part in parts.items():
            part.load_state_dict(state[name])
        set_random_states(state["random"])
        run.set_progress(state["progress"])
    except ConfigError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        reason = "; ".join(line.strip() for line in str(error).splitlines())
        raise FormatError(f"{path} does not fit this run: {reason}") from error
    if run.step > run.total_steps:
        raise ConfigError(
            f"resume: {folder} is at step {run.step}, and {run.total_steps} are asked for"
        )
    save_weights(run.model, folder / LAST)
