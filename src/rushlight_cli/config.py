"""The configuration of `rushlight train`: one dataclass for flags, --set and config.toml."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any


def _about(help: str, least: float | None = None, below: float | None = None) -> dict[str, Any]:
    """What --help says of a key, and the range [least, below) of its values."""
    return {"help": help, "least": least, "below": below}


def _key(default: Any, *about: Any) -> Any:
    return field(default=default, metadata=_about(*about))


@dataclass(frozen=True)
class Config:
    """Everything that a training run depends on."""

    files: list[str] = field(
        default_factory=list,
        metadata=_about("text files and folders; none: Python's standard library"),
    )
    preset: str = _key("gpt-nano", "sizes to start from")
    tokens: str = _key("char", "byte or char")
    layers: int = _key(4, "blocks of the model", 1)
    heads: int = _key(4, "attention heads of a block", 1)
    width: int = _key(128, "numbers per position, a multiple of heads", 1)
    context: int = _key(64, "positions that the model sees", 1)
    dropout: float = _key(0.0, "share of values dropped in training", 0, 1)
    bias: bool = _key(False, "biases in the model")
    steps: int = _key(2000, "updates of the weights", 0)
    batch: int = _key(12, "windows of text in a batch", 1)
    accumulate: int = _key(1, "batches to an update", 1)
    lr: float = _key(4e-3, "highest learning rate", 0)
    min_lr: float = _key(1e-4, "learning rate at the end", 0)
    warmup: int = _key(100, "steps up to the highest rate, a tenth of all at most", 0)
    weight_decay: float = _key(0.1, "AdamW's, of matrices", 0)
    beta1: float = _key(0.9, "AdamW's decay of the mean gradient", 0, 1)
    beta2: float = _key(0.99, "AdamW's decay of the mean square", 0, 1)
    clip_norm: float = _key(1.0, "longest gradient; 0 clips none", 0)
    ema: float = _key(0.0, "decay of averaged weights for evaluation; 0: none", 0, 1)
    held_out: float = _key(0.1, "share of the text, at its end, that is not learned", 0, 1)
    eval_every: int = _key(250, "steps between evaluations; 0: at the end only", 0)
    eval_batches: int = _key(200, "most batches of an evaluation", 1)
    save_every: int = _key(250, "steps between checkpoints; 0: at start and end only", 0)
    log_every: int = _key(10, "steps between lines of metrics.jsonl", 1)
    workers: int = _key(1, "threads that prepare batches; 0: none", 0)
    seed: int = _key(1337, "of all random numbers", 0)


PRESETS: dict[str, dict[str, Any]] = {
    "gpt-nano": {},  # the defaults
    "gpt-char": {
        "layers": 6,
        "heads": 6,
        "width": 384,
        "context": 256,
        "dropout": 0.2,
        "lr": 1e-3,
        "batch": 16,
        "steps": 3000,
    },
}
MOST = 10**12
KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}
KINDS |= {"str": "text", "list[str]": "a list of texts"}
FIELDS = {f.name: f for f in dataclasses.fields(Config)}
CHOICES = {"preset": tuple(PRESETS), "tokens": ("byte", "char")}


class UsageError(Exception):
    """A command line or configuration that cannot be meant: exit code 2."""


def make(settings: Mapping[str, Any], where: str) -> Config:
    """A configuration from settings, the rest from its preset and the defaults.

    where: what the settings come from, for messages.  Raises: UsageError.
    """
    for name in settings:
        if name not in FIELDS:
            raise UsageError(f"{where}: unknown key {name!r}{nearest(name, FIELDS)}")
    checked = {name: _checked(name, value, where) for name, value in settings.items()}
    preset = checked.get("preset", FIELDS["preset"].default)
    config = Config(**{**PRESETS[preset], **checked})
    if config.min_lr > config.lr:
        raise UsageError(f"{where}: min_lr {config.min_lr} is above lr {config.lr}; set both")
    if config.width % config.heads:
        raise UsageError(f"{where}: width {config.width} is no multiple of heads {config.heads}")
    return config


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about a name that is not known."""
    known = list(known)
    near = difflib.get_close_matches(name, known, 1, 0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"


def _checked(name: str, value: Any, where: str) -> Any:
    kind = FIELDS[name].type
    if name in CHOICES and value not in CHOICES[name]:
        raise UsageError(f"{where}: unknown {name} {value!r}{nearest(str(value), CHOICES[name])}")
    if kind == "list[str]":
        fits = isinstance(value, list) and all(isinstance(item, str) for item in value)
        if fits and any(not item or "\0" in item for item in value):
            raise UsageError(f"{where}: {name}: {value!r} has an empty or impossible name")
        if fits and any("\udc80" <= c <= "\udcff" for item in value for c in item):
            raise UsageError(f"{where}: {name}: a name in {value!r} is no UTF-8 text; rename it")
    elif kind == "float":
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        value = float(value) if fits else value
    else:
        fits = type(value).__name__ == kind
    if not fits:
        raise UsageError(f"{where}: {name} must be {KINDS[str(kind)]}, got {value!r}")
    if kind == "int" and abs(value) > MOST:
        raise UsageError(f"{where}: {name} must be at most {MOST}, got {value}")
    least, below = FIELDS[name].metadata["least"], FIELDS[name].metadata["below"]
    if least is not None and not least <= value < (math.inf if below is None else below):
        end = "" if below is None else f" and below {below}"
        raise UsageError(f"{where}: {name} must be at least {least}{end}, got {value}")
    return value


def parse(assignment: str, flag: str | None = None) -> tuple[str, Any]:
    """The name and value of `key=value`, the value as the key's type wants it.

    flag: what was typed, for messages.  Raises: UsageError.
    """
    flag = flag or f"--set {assignment}"
    name, equals, text = assignment.partition("=")
    name = name.strip()
    if not equals:
        raise UsageError(f"{flag}: expected key=value")
    if name not in FIELDS:
        raise UsageError(f"{flag}: unknown key {name!r}{nearest(name, FIELDS)}")
    readers: dict[Any, Any] = {"int": int, "float": float, "str": str, "list[str]": _words}
    readers["bool"] = {"true": True, "false": False}.__getitem__
    kind = FIELDS[name].type
    try:
        return name, readers[kind](text.strip())
    except (ValueError, KeyError):
        raise UsageError(f"{flag}: {name} must be {KINDS[str(kind)]}, got {text!r}") from None


def _words(text: str) -> list[str]:
    return text.split(",") if text else []


def to_toml(config: Config) -> str:
    """The configuration as config.toml holds it, each key with what it means."""
    lines = ["# rushlight train --config FILE trains again with these settings"]
    for name, value in dataclasses.asdict(config).items():
        lines.append(f"{name} = {_toml(value)}  # {FIELDS[name].metadata['help']}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def table() -> str:
    """The keys with their defaults and meaning, for --help."""
    defaults = dataclasses.asdict(Config())
    rows = [
        f"  {name:13} {_toml(defaults[name]):11} {known.metadata['help']}"
        for name, known in FIELDS.items()
    ]
    return "keys of --set and of a config file, with their defaults:\n" + "\n".join(rows)
