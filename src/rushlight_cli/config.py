"""The configuration of `rushlight train`: one dataclass a task for flags, --set and config.toml."""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

TASKS = {"text": "a language model on text", "vision": "a classifier of images"}


class UsageError(Exception):
    """A command line or configuration that cannot be meant: exit code 2."""


def about(
    help: str,
    least: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] = (),
) -> dict[str, Any]:
    """What --help says of a key, and the range [least, below) or the choices of its values."""
    return {"help": help, "least": least, "below": below, "choices": choices}


def key(default: Any, *facts: Any, **more: Any) -> Any:
    """A key with its default; the rest as of `about`."""
    return field(default=default, metadata=about(*facts, **more))


@dataclass(frozen=True)
class Config:
    """What training runs of all tasks depend on; those of a task add theirs."""

    task: str = key("text", "what is trained: text or vision", choices=tuple(TASKS))
    files: list[str] = field(default_factory=list, metadata=about("what it is trained on"))
    batch: int = key(64, "samples in a batch", 1)
    accumulate: int = key(1, "batches to an update", 1)
    lr: float = key(1e-3, "highest learning rate", 0)
    min_lr: float = key(1e-5, "learning rate at the end", 0)
    warmup: int = key(100, "steps up to the highest rate, a tenth of all at most", 0)
    weight_decay: float = key(0.1, "AdamW's, of matrices", 0)
    beta1: float = key(0.9, "AdamW's decay of the mean gradient", 0, 1)
    beta2: float = key(0.99, "AdamW's decay of the mean square", 0, 1)
    clip_norm: float = key(1.0, "longest gradient; 0 clips none", 0)
    ema: float = key(0.0, "decay of averaged weights for evaluation; 0: none", 0, 1)
    held_out: float = key(0.1, "share of the data that is not learned", 0, 1)
    save_every: int = key(250, "steps between checkpoints; 0: at start and end only", 0)
    log_every: int = key(10, "steps between lines of metrics.jsonl", 1)
    workers: int = key(1, "threads that prepare batches; 0: none", 0, 1025)
    seed: int = key(1337, "of all random numbers", 0)

    @classmethod
    def starting_from(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The defaults that these settings bring with them."""
        return {}

    @property
    def name(self) -> str:
        """What the run's folder is called when nobody says."""
        return self.task

    def check(self, where: str) -> None:
        """Raise UsageError for keys that do not go together."""
        if self.min_lr > self.lr:
            raise UsageError(f"{where}: min_lr {self.min_lr} is above lr {self.lr}; set both")


@cache
def kind_of(task: str) -> type[Config]:
    """The configuration of a task: `Settings` of the module with its name."""
    kind: type[Config] = import_module(f"rushlight_cli.{task}").Settings
    return kind


def fields(kind: type[Config]) -> dict[str, Any]:
    """The keys of a task by name."""
    return {f.name: f for f in dataclasses.fields(kind)}


MOST = 10**12
KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}
KINDS |= {"str": "text", "list[str]": "a list of texts"}


def make(kind: type[Config], settings: Mapping[str, Any], where: str) -> Config:
    """A configuration from settings, the rest from what they start from and the defaults.

    where: what the settings come from, for messages.  Raises: UsageError.
    """
    known = fields(kind)
    check_names(kind, settings, where)
    checked = {name: _checked(known[name], value, where) for name, value in settings.items()}
    config = kind(**{**kind.starting_from(checked), **checked})
    config.check(where)
    return config


def check_names(kind: type[Config], names: Iterable[str], where: str) -> None:
    """Raise UsageError for a name that is no key of the task."""
    known = fields(kind)
    for name in names:
        if name not in known:
            others = [task for task in TASKS if name in fields(kind_of(task))]
            hint = f"; it belongs to --task {others[0]}" if others else nearest(name, known)
            raise UsageError(f"{where}: unknown key {name!r}{hint}")


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about a name that is not known."""
    known = list(known)
    near = difflib.get_close_matches(name, known, 1, 0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"


def _checked(field: Any, value: Any, where: str) -> Any:
    name, kind, about = field.name, field.type, field.metadata
    choices = about["choices"]
    if choices and value not in choices:
        raise UsageError(f"{where}: unknown {name} {value!r}{nearest(str(value), choices)}")
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
    least, below = about["least"], about["below"]
    if least is not None and not least <= value < (math.inf if below is None else below):
        end = "" if below is None else f" and below {below}"
        raise UsageError(f"{where}: {name} must be at least {least}{end}, got {value}")
    return value


def parse(kind: type[Config], assignment: str, flag: str | None = None) -> tuple[str, Any]:
    """The name and value of `key=value`, the value as the key's type wants it.

    flag: what was typed, for messages.  Raises: UsageError.
    """
    flag = flag or f"--set {assignment}"
    name, equals, text = assignment.partition("=")
    name = name.strip()
    if not equals:
        raise UsageError(f"{flag}: expected key=value")
    check_names(kind, [name], flag)
    readers: dict[Any, Any] = {"int": int, "float": float, "str": str, "list[str]": _words}
    readers["bool"] = {"true": True, "false": False}.__getitem__
    wanted = fields(kind)[name].type
    try:
        return name, readers[wanted](text.strip())
    except (ValueError, KeyError):
        raise UsageError(f"{flag}: {name} must be {KINDS[str(wanted)]}, got {text!r}") from None


def _words(text: str) -> list[str]:
    return text.split(",") if text else []


def to_toml(config: Config) -> str:
    """The configuration as config.toml holds it, each key with what it means."""
    lines = ["# rushlight train --config FILE trains again with these settings"]
    for name, known in fields(type(config)).items():
        lines.append(f"{name} = {_toml(getattr(config, name))}  # {known.metadata['help']}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def table(kind: type[Config]) -> str:
    """The keys of a task with their defaults and meaning, for --help."""
    config = kind()
    rows = [
        f"  {name:15} {_toml(getattr(config, name)):11} {known.metadata['help']}"
        for name, known in fields(kind).items()
    ]
    title = f"keys of --set and of a config file for --task {config.task}, with their defaults:"
    return title + "\n" + "\n".join(rows)
