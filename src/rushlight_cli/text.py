"""`rushlight train` on text: a GPT that learns to say the next token."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rushlight_cli.config import Config, UsageError, about, key
from rushlight_cli.output import tell

if TYPE_CHECKING:
    from rushlight.models import GPT
    from rushlight.text.corpus import Corpus

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


@dataclass(frozen=True)
class Settings(Config):
    """Everything that training on text depends on."""

    files: list[str] = field(
        default_factory=list,
        metadata=about("text files and folders; none: Python's standard library"),
    )
    preset: str = key("gpt-nano", "sizes to start from", choices=tuple(PRESETS))
    tokens: str = key("char", "byte or char", choices=("byte", "char"))
    layers: int = key(4, "blocks of the model", 1)
    heads: int = key(4, "attention heads of a block", 1)
    width: int = key(128, "numbers per position, a multiple of heads", 1)
    context: int = key(64, "positions that the model sees", 1)
    dropout: float = key(0.0, "share of values dropped in training", 0, 1)
    bias: bool = key(False, "biases in the model")
    steps: int = key(2000, "updates of the weights", 0)
    batch: int = key(12, "windows of text in a batch", 1)
    lr: float = key(4e-3, "highest learning rate", 0)
    min_lr: float = key(1e-4, "learning rate at the end", 0)
    held_out: float = key(0.1, "share of the text, at its end, that is not learned", 0, 1)
    eval_every: int = key(250, "steps between evaluations; 0: at the end only", 0)
    eval_batches: int = key(200, "most batches of an evaluation", 1)

    @classmethod
    def starting_from(cls, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The sizes of the preset."""
        return PRESETS[settings.get("preset", "gpt-nano")]

    @property
    def name(self) -> str:
        """See `Config`."""
        return self.preset

    def check(self, where: str) -> None:
        """See `Config`."""
        super().check(where)
        if self.width % self.heads:
            raise UsageError(f"{where}: width {self.width} is no multiple of heads {self.heads}")


def write_data(config: Settings, folder: Path) -> Corpus:
    """Put the tokens into the run folder.  Raises: FormatError for text that is none or short."""
    from rushlight.text.corpus import write_corpus

    corpus = write_corpus(config.files, config.tokens, folder)
    _check_length(corpus, config)
    return corpus


def read_data(folder: Path) -> Corpus:
    """The tokens of a run folder."""
    from rushlight.text.corpus import read_corpus

    return read_corpus(folder)


def _check_length(corpus: Corpus, config: Settings) -> None:
    from rushlight.errors import FormatError

    learned, size = _cut(corpus, config), len(corpus.tokens)
    for name, tokens in (("to learn", learned), ("held out", size - learned)):
        if tokens <= config.context and (name == "to learn" or config.held_out):
            raise FormatError(
                f"{_source(config)}: too short: {tokens} tokens {name}, and a context of "
                f"{config.context} needs {config.context + 1}; give more text, or a smaller context"
            )


def _cut(corpus: Corpus, config: Settings) -> int:
    """How many tokens are learned; the others are held out."""
    return int(len(corpus.tokens) * (1 - config.held_out))


def _source(config: Settings) -> str:
    return ", ".join(config.files) or "Python's standard library"


def model(config: Settings, corpus: Corpus, resumed: bool) -> GPT:
    """A new model, whether or not a checkpoint is going to give it its weights."""
    from rushlight.models import GPT

    sizes = (config.context, config.layers, config.heads, config.width)
    vocabulary = corpus.tokenizer.vocabulary
    return GPT(vocabulary, *sizes, dropout=config.dropout, bias=config.bias)


def introduction(config: Settings, corpus: Corpus, model: GPT) -> list[str]:
    """What is trained, on what."""
    unit = {"byte": "bytes", "char": "characters"}[config.tokens]
    learned, size = _cut(corpus, config), len(corpus.tokens)
    skipped = f", left out because they are no text: {corpus.skipped}" if corpus.skipped else ""
    return [
        f"text     {_source(config)}: {size:,} {unit}, {model.vocabulary} symbols; "
        f"{learned:,} to learn, {size - learned:,} held out{skipped}",
        f"model    {config.preset}: {config.layers} layers, {config.heads} heads, "
        f"width {config.width}, context {config.context}; {model.parameter_count():,} parameters, "
        f"{model.flops_per_token() / 1e6:.1f} MFLOP per token",
    ]


def lesson(config: Settings, corpus: Corpus) -> dict[str, Any]:
    """What of `rushlight.train`'s arguments depends on the task."""
    from rushlight import train as t

    learned = _cut(corpus, config)
    batches = t.random_windows(
        corpus.tokens.part(0, learned),
        config.context,
        config.batch,
        batches=max(1, config.steps * config.accumulate),
        workers=config.workers,
    )
    held_out = None
    if config.held_out:
        rest = corpus.tokens.part(learned, len(corpus.tokens))
        held_out = t.spread_windows(rest, config.context, config.batch, config.eval_batches)
    return {
        "batches": batches,
        "loss": t.next_token_loss,
        "held_out": held_out,
        "steps": config.steps,
        "eval_every": config.eval_every,
        "unit": "tokens",
    }


def checksum(corpus: Corpus) -> int:
    """Of the tokens."""
    return corpus.tokens.checksum()


def speed(model: GPT) -> dict[str, float]:
    """What `Progress` needs to tell a share of the peak, which is measured and told."""
    from rushlight_cli.info import machine

    peak = measure_peak()
    tell(f"machine  {machine()}, {peak / 1e9:.0f} GFLOP/s in matrix products")
    return {"flops": model.flops_per_token(), "peak": peak}


def measure_peak(size: int = 1024, seconds: float = 0.3) -> float:
    """FLOP/s of float32 products of square matrices on this machine, the best of a few."""
    import rushlight as rl

    a, b = rl.ones(size, size), rl.ones(size, size)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


def finish(config: Settings, corpus: Corpus, folder: Path, quiet: bool) -> None:
    """Let the model write a little."""
    from rushlight_cli import sample

    if not quiet:
        tell(f"sample   more with: rushlight sample {shlex.quote(str(folder))}\n")
        sample.write(folder, length=400, seed=config.seed)
