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
    except (ValueError, RecursionError) as error:
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
    except RuntimeError as error:
        raise FormatError(f"{path}: does not fit {CONFIG} and its data: {_misfit(error)}") from None
    return model.eval()


def _misfit(error: RuntimeError) -> str:
    """What `load_state_dict` complains of, without most of the names."""
    lines = [line.strip() for line in str(error).splitlines()]
    return "; ".join(line if len(line) < 160 else line[:159] + "…" for line in lines)


def start_from(model: Module, path: Path) -> None:
    """Take the weights of a safetensors file; a last layer for other classes stays as it is.

    A "module." before all names is taken off, and filters that see three colours become those
    that see the same grey image three times, where the model has one channel.
    Raises: FormatError that names what does not fit; the model is as it was then.
    """
    state, own = read_state_dict(path), model.state_dict()
    if all(name.startswith("module.") for name in state):  # saved by a parallel wrapper
        state = {name.removeprefix("module."): value for name, value in state.items()}
    *_, head = (name.removesuffix("weight") for name in own if name.endswith(".weight"))
    for name, value in own.items():
        given = tuple(state[name].shape) if name in state else ()
        if name.startswith(head) and given[1:] == value.shape[1:] and given != value.shape:
            state[name] = value
        if (
            value.ndim == 4
            and value.shape[1] == 1
            and given == (*value.shape[:1], 3, *value.shape[2:])
        ):
            state[name] = state[name].sum(1, keepdim=True)
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        why = _misfit(error) + _origin(state, own)
        raise FormatError(f"{path}: weights of another model: {why}") from None


def _origin(state: dict[str, Tensor], own: dict[str, Tensor]) -> str:
    """What weights that do not fit seem to be of."""
    if any("reparam" in name for name in {*state} - {*own}):
        return "; these are folded, for inference: take those that were trained"
    places = "pos_embed"  # of a ViT: a row for each patch, and one
    if places in state and places in own and state[places].shape != own[places].shape:
        side = round((state[places].shape[1] - 1) ** 0.5) * own["patch_embed.proj.weight"].shape[3]
        return f"; they are for images of {side} x {side} pixels"
    return ""


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """A safetensors file of tensors by name.  Raises: FormatError, OSError."""
    state = load(path)
    if not isinstance(state, dict) or not all(isinstance(x, Tensor) for x in state.values()):
        raise FormatError(f"{path}: expected a tensor per name, and nothing else")
    return state
