"""The model and tokenizer of a run folder.

A run folder holds config.toml (the model's sizes, and how it was trained), tokens.json (the
tokenizer), and the weights, best.safetensors and last.safetensors.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from rushlight.errors import ConfigError, FormatError
from rushlight.io import load
from rushlight.models import GPT
from rushlight.tensor import Tensor
from rushlight.text import Tokenizer
from rushlight.text.corpus import read_description


def load_run(folder: str | Path, weights: str = "best") -> tuple[GPT, Tokenizer]:
    """The trained model, in eval mode, and the tokenizer it was trained with.

    weights: "best" (on held-out text; the last where there are none yet) or "last".
    Raises: ConfigError when the folder is no run or has no weights yet, FormatError for damaged
    files, OSError for unreadable ones.
    """
    folder = Path(folder)
    if weights not in ("best", "last"):
        raise ConfigError(f"weights must be 'best' or 'last', got {weights!r}")
    if folder.is_file():
        raise ConfigError(f"{folder} is a file; give the folder of a run, the --out of it")
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such run folder; `rushlight train --out DIR` makes one")
    if not (folder / "config.toml").is_file():
        raise ConfigError(f"{folder}: no run folder, config.toml is missing; give the --out of one")
    _, tokenizer = read_description(folder)
    model = _build(folder / "config.toml", tokenizer.vocabulary)
    candidates = [folder / f"{name}.safetensors" for name in dict.fromkeys((weights, "last"))]
    path = next((path for path in candidates if path.is_file()), None)
    if path is None:
        raise ConfigError(f"{folder}: no weights yet, {candidates[-1].name} is missing")
    try:
        state = load(path)
    except FormatError as error:
        other = "; without this file last.safetensors is taken" if path != candidates[-1] else ""
        raise FormatError(f"{error}{other}") from None
    if not isinstance(state, dict) or not all(isinstance(x, Tensor) for x in state.values()):
        raise FormatError(f"{path}: expected a tensor per name, and nothing else")
    try:
        model.load_state_dict(state)
    except RuntimeError as error:  # names or shapes that differ, one a line
        reason = "; ".join(line.strip() for line in str(error).splitlines())
        raise FormatError(f"{path}: does not fit config.toml and tokens.json: {reason}") from None
    return model.eval(), tokenizer  # type: ignore[return-value]


def _build(path: Path, vocabulary: int) -> GPT:
    try:
        config = tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise FormatError(f"{path}: no TOML: {error}") from None
    sizes = {name: _value(path, config, name, int) for name in _SIZES}
    dropout = float(_value(path, config, "dropout", int, float))
    try:
        return GPT(vocabulary, **sizes, dropout=dropout, bias=_value(path, config, "bias", bool))
    except ValueError as error:
        raise FormatError(f"{path}: {error}") from None


_SIZES = ("context", "layers", "heads", "width")


def _value(path: Path, config: dict[str, Any], name: str, *types: type) -> Any:
    value = config.get(name)
    if type(value) not in types:  # not isinstance: true is no number here
        found = "is missing" if value is None else f"is {value!r:.80}"
        wanted = " or ".join(kind.__name__ for kind in types)
        raise FormatError(f"{path}: {name} {found}, expected {wanted}")
    return value
