"""What a run folder holds for those who use its model: config.toml and the weights."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from rushlight.errors import ConfigError, FormatError
from rushlight.io import load
from rushlight.nn import Module
from rushlight.tensor import Tensor

CONFIG = "config.toml"
_COMMANDS = {"text": "sample", "vision": "predict"}  # what a run of each task is used with


def read_config(folder: Path, task: str) -> dict[str, Any]:
    """The settings of a run for a task, "text" or "vision".

    Raises: ConfigError when the folder is no such run, FormatError, OSError.
    """
    if folder.is_file():
        raise ConfigError(f"{folder} is a file; give the folder of a run, the --out of it")
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such run folder; `rushlight train --out DIR` makes one")
    path = folder / CONFIG
    if not path.is_file():
        raise ConfigError(f"{folder}: no run folder, {CONFIG} is missing; give the --out of one")
    try:
        config = tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise FormatError(f"{path}: no TOML: {error}") from None
    found = config_value(path, config, "task", str)
    if found != task:
        use = f"; use `rushlight {_COMMANDS[found]}`" if found in _COMMANDS else ""
        raise ConfigError(f"{folder} is a run for {found}, not for {task}{use}")
    return config


def config_value(path: Path, config: dict[str, Any], name: str, *types: type) -> Any:
    """A setting that must be of one of these types.  Raises: FormatError."""
    value = config.get(name)
    if type(value) not in types:  # not isinstance: true is no number here
        found = "is missing" if value is None else f"is {value!r:.80}"
        wanted = " or ".join(kind.__name__ for kind in types)
        raise FormatError(f"{path}: {name} {found}, expected {wanted}")
    return value


def load_weights(model: Module, folder: Path, weights: str) -> Module:
    """The model with a run's weights, in evaluation mode.

    weights: "best" (on what is held out; the last where there are none yet) or "last".
    Raises: ConfigError without weights, FormatError for damaged ones or of another model, OSError.
    """
    if weights not in ("best", "last"):
        raise ConfigError(f"weights must be 'best' or 'last', got {weights!r}")
    candidates = [folder / f"{name}.safetensors" for name in dict.fromkeys((weights, "last"))]
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        raise ConfigError(f"{folder}: no weights yet, {candidates[-1].name} is missing")
    try:
        state = read_state_dict(path)
    except FormatError as error:
        other = "; without this file last.safetensors is taken" if path != candidates[-1] else ""
        raise FormatError(f"{error}{other}") from None
    try:
        model.load_state_dict(state)
    except RuntimeError as error:  # names or shapes that differ, one a line
        reason = "; ".join(line.strip() for line in str(error).splitlines())
        raise FormatError(f"{path}: does not fit {CONFIG} and its data: {reason}") from None
    return model.eval()


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """A safetensors file of tensors by name.  Raises: FormatError, OSError."""
    state = load(path)
    if not isinstance(state, dict) or not all(isinstance(x, Tensor) for x in state.values()):
        raise FormatError(f"{path}: expected a tensor per name, and nothing else")
    return state
