"""`rushlight train`: train a GPT on text, in a run folder that can be interrupted and resumed."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rushlight_cli.config import Config, UsageError, table, to_toml
from rushlight_cli.output import tell
from rushlight_cli.settings import CHECKPOINT, CONFIG, configure, default_folder, given_settings

if TYPE_CHECKING:
    from rushlight.models import GPT
    from rushlight.text.corpus import Corpus
    from rushlight.train import Run

LOCK = ".lock"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags; each setting's last word is: flag, --set, --config, preset."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = table()
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help="text files, and folders of them")
    add("--preset", metavar="NAME", help="gpt-nano (0.8 M parameters) or gpt-char (10.7 M)")
    add("--tokens", metavar="KIND", help="byte or char")
    add("--out", metavar="DIR", help="the run folder; runs/PRESET unless given")
    add("--steps", metavar="N", help="updates of the weights")
    add("--config", type=Path, metavar="FILE", help="settings, for example of another run")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="one setting; see below")
    add("--resume", action="store_true", help="go on with the run in --out, or the latest")
    add("--seed", metavar="N", help="of all random numbers")
    add("--quiet", action="store_true", help="print nothing but errors")


def run(options: argparse.Namespace) -> int:
    """Train, or go on training; then let the model write a little."""
    given = given_settings(options)
    if options.out == "":
        raise UsageError("--out: give the name of a folder")
    folder = Path(options.out) if options.out else default_folder(given, options.resume)
    config, resumed = configure(folder, given, options.resume)
    with _begun(folder, config, resumed) as corpus:
        return _run(folder, config, corpus, resumed, options)


def _run(
    folder: Path, config: Config, corpus: Corpus, resumed: bool, options: argparse.Namespace
) -> int:
    say = (lambda _: None) if options.quiet else tell
    _seed(config.seed)
    model = _model(config, corpus.tokenizer.vocabulary)
    for line in _introduction(config, corpus, model):
        say(line)
    say(f"run      {folder}" + (", resumed" if resumed else ""))
    result = _train(folder, config, corpus, model, options)
    say(_conclusion(folder, result))
    if not options.quiet:
        _write_sample(folder, config)
    return 0


def _seed(seed: int) -> None:
    import random

    import numpy as np

    import rushlight as rl

    rl.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


# ---- text and model ----


@contextmanager
def _begun(folder: Path, config: Config, resumed: bool) -> Iterator[Corpus]:
    """The tokens in the run folder, which belongs to this process for so long.

    A new run's configuration comes first, so that it is known for a run if it is killed here.
    A run that ends before its first checkpoint leaves the folder as it found it.
    Raises: FormatError for text that is none or too short; UsageError when another process has the
    folder.
    """
    from rushlight.io import write_atomic
    from rushlight.text.corpus import read_corpus, write_corpus

    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    before = {path.name for path in folder.iterdir()}
    recorded = (folder / CONFIG).read_bytes() if CONFIG in before else None
    with _owned(folder / LOCK):
        if resumed:
            yield read_corpus(folder)
            return
        try:
            write_atomic(folder / CONFIG, to_toml(config))
            corpus = write_corpus(config.files, config.tokens, folder)
            _check_length(corpus, config)
            yield corpus
        except BaseException:
            if not (folder / CHECKPOINT).exists():
                _restore(folder, before, recorded)
                if new:
                    folder.rmdir()
            raise


def _restore(folder: Path, before: set[str], recorded: bytes | None) -> None:
    """Take out of a run folder what was not there before, and bring its configuration back."""
    for path in folder.iterdir():
        if path.name not in before:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if recorded is not None and (folder / CONFIG).read_bytes() != recorded:
        (folder / CONFIG).write_bytes(recorded)


@contextmanager
def _owned(lock: Path) -> Iterator[None]:
    """Keep other processes from training in the folder of a lock file, where the system can."""
    with lock.open("a") as file:
        try:
            import fcntl

            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # gone with the process, however
        except ImportError:  # Windows
            pass
        except OSError:
            raise UsageError(f"{lock.parent}: another process is training there") from None
        yield


def _check_length(corpus: Corpus, config: Config) -> None:
    from rushlight.errors import FormatError

    learned, size = _cut(corpus, config), len(corpus.tokens)
    for name, tokens in (("to learn", learned), ("held out", size - learned)):
        if tokens <= config.context and (name == "to learn" or config.held_out):
            raise FormatError(
                f"{_source(config)}: too short: {tokens} tokens {name}, and a context of "
                f"{config.context} needs {config.context + 1}; give more text, or a smaller context"
            )


def _cut(corpus: Corpus, config: Config) -> int:
    """How many tokens are learned; the others are held out."""
    return int(len(corpus.tokens) * (1 - config.held_out))


def _model(config: Config, vocabulary: int) -> GPT:
    from rushlight.models import GPT

    sizes = (config.context, config.layers, config.heads, config.width)
    return GPT(vocabulary, *sizes, dropout=config.dropout, bias=config.bias)


def _source(config: Config) -> str:
    return ", ".join(config.files) or "Python's standard library"


def _introduction(config: Config, corpus: Corpus, model: GPT) -> list[str]:
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


# ---- training ----


def _train(
    folder: Path, config: Config, corpus: Corpus, model: GPT, options: argparse.Namespace
) -> Run:
    from rushlight import train as t
    from rushlight.optim import EMA
    from rushlight.optim.lr_scheduler import CosineWithWarmupLR
    from rushlight.train.report import METRICS

    learned = _cut(corpus, config)
    total, warmup = max(config.steps, 1), min(config.warmup, config.steps // 10)
    optimizer = t.adamw(model, config.lr, config.weight_decay, (config.beta1, config.beta2))
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
    callbacks = [
        t.Curve(folder / METRICS, folder / "loss.png"),
        t.TensorBoard(folder / "tensorboard", config.log_every),
    ]
    if not options.quiet:
        go_on = f"rushlight train --resume --out {shlex.quote(str(folder))}"
        peak = measure_peak()
        tell(f"machine  {_machine()}, {peak / 1e9:.0f} GFLOP/s in matrix products")
        callbacks.append(t.Progress("tokens", model.flops_per_token(), peak, go_on=go_on))
    return t.train(
        model,
        batches,
        t.next_token_loss,
        optimizer=optimizer,
        schedule=CosineWithWarmupLR(optimizer, warmup, total, config.min_lr),
        ema=EMA(model, config.ema) if config.ema else None,
        held_out=held_out,
        callbacks=callbacks,
        steps=config.steps,
        accumulate=config.accumulate,
        clip_norm=config.clip_norm,
        eval_every=config.eval_every,
        save_every=config.save_every,
        log_every=config.log_every,
        unit="tokens",
        settings={**dataclasses.asdict(config), "text": corpus.tokens.checksum()},
        folder=folder,
        resume=True,
    )


def _machine() -> str:
    import rushlight as rl
    from rushlight._core import level

    threads = rl.get_num_threads()
    return f"{threads} thread{'s' * (threads != 1)}, level {level()}"


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


# ---- the end ----


def _conclusion(folder: Path, result: Run) -> str:
    best = (
        f"; lowest held-out loss {result.best_loss:.4f}" if result.best_loss < float("inf") else ""
    )
    return f"done     {result.step} steps{best}; weights, metrics and settings are in {folder}"


def _write_sample(folder: Path, config: Config) -> None:
    from rushlight_cli import sample

    tell(f"sample   more with: rushlight sample {shlex.quote(str(folder))}\n")
    sample.write(folder, length=400, seed=config.seed)
