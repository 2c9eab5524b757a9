"""The run folder: checkpoints that a run continues from exactly, and the weights it came to.

`resume.safetensors` is the checkpoint: everything a run needs to go on, replaced in one piece.
`last.safetensors` and `best.safetensors` are state dicts for everybody else. `last` is written
after the checkpoint and again when a run goes on, so it never leads, and lags only after a kill.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rushlight.creation import tensor
from rushlight.errors import FormatError, NonFiniteError
from rushlight.io import load, save
from rushlight.nn import Module
from rushlight.random import get_rng_state, set_rng_state
from rushlight.train.finite import first_non_finite

if TYPE_CHECKING:
    from rushlight.train.run import Run

CHECKPOINT, LAST, BEST = "resume.safetensors", "last.safetensors", "best.safetensors"
VERSION = 1


def random_states() -> dict[str, Any]:
    """The streams that training may draw from: Rushlight's, Python's and NumPy's."""
    version, words, gauss = random.getstate()
    return {
        "rushlight": get_rng_state().tolist(),
        "python": [version, np.array(words, np.int64), gauss],
        "numpy": list(np.random.get_state(legacy=True)),
    }


def set_random_states(states: dict[str, Any]) -> None:
    """Go on from a result of `random_states`."""
    set_rng_state(tensor(states["rushlight"]))
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    np.random.set_state(tuple(states["numpy"]))


def exists(folder: Path) -> bool:
    """Whether the folder holds a run to go on with."""
    return (folder / CHECKPOINT).exists()


def clean(folder: Path) -> None:
    """Remove what a killed process left half written."""
    for path in folder.glob("*.part"):
        path.unlink()


def save_checkpoint(run: Run) -> None:
    """Replace the checkpoint in the run's folder, and then its last weights.

    Raises: NonFiniteError, OSError; the checkpoint before is intact then.
    """
    assert run.folder is not None
    state: dict[str, Any] = {name: part.state_dict() for name, part in run.parts().items()}
    wrong = first_non_finite({name: state[name] for name in ("model", "optimizer")})
    if wrong:
        raise NonFiniteError(f"step {run.step} is not saved; first not finite: {wrong}")
    state |= {"version": VERSION, "progress": run.progress(), "random": random_states()}
    save(state, run.folder / CHECKPOINT)
    save(state["model"], run.folder / LAST)


def save_weights(model: Module, path: Path) -> None:
    """Save the state dict alone, for anybody who reads safetensors."""
    save(model.state_dict(), path)


def restore(run: Run, folder: Path) -> None:
    """Put a run where the checkpoint of its folder was made.

    Raises: FormatError for a checkpoint that is damaged, or of another model or setting.
    """
    path = folder / CHECKPOINT
    state = load(path)
    parts = run.parts()
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise FormatError(f"{path} is no checkpoint of this version of Rushlight")
    odd = sorted(set(state) ^ {*parts, "version", "progress", "random"})
    if odd:
        raise FormatError(f"{path} and this run differ in what they have: {', '.join(odd)}")
    try:
        for name, part in parts.items():
            part.load_state_dict(state[name])
        set_random_states(state["random"])
        run.set_progress(state["progress"])
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise FormatError(f"{path} does not fit this run: {reason}") from error
    save_weights(run.model, folder / LAST)
