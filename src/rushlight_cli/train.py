"""`rushlight train`: train a GPT on text, in a run folder that can be interrupted and resumed."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rushlight_cli.config import FIELDS, Config, UsageError, make, parse, table, to_toml

if TYPE_CHECKING:
    from rushlight.models import GPT
    from rushlight.text.corpus import Corpus
    from rushlight.train import Run

CONFIG = "config.toml"
RUNS = Path("runs")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags; each setting's last word is: flag, --set, --config, preset."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = table()
    add = parser.add_argument
    add("files", nargs="*", metavar="FILE", help="text files, and folders of them")
    add("--preset", metavar="NAME", help="gpt-nano (0.8 M parameters) or gpt-char (10.7 M)")
    add("--tokens", metavar="KIND", help="byte or char")
    add("--out", type=Path, metavar="DIR", help="the run folder; runs/PRESET unless given")
    add("--steps", metavar="N", help="updates of the weights")
    add("--config", type=Path, metavar="FILE", help="settings, for example of another run")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="one setting; see below")
    add("--resume", action="store_true", help="go on with the run in --out, or the latest")
    add("--seed", metavar="N", help="of all random numbers")
    add("--quiet", action="store_true", help="print nothing but errors")


def run(options: argparse.Namespace) -> int:
    """Train, or go on training; then let the model write a little."""
    given = _given(options)
    folder = options.out or _default_folder(given, options.resume)
    config, resumed = _configure(folder, given, options.resume)
    say = (lambda *_: None) if options.quiet else print
    _seed(config.seed)
    corpus = _corpus(folder, config, resumed)
    model = _model(config, corpus.tokenizer.vocabulary)
    for line in _introduction(config, corpus, model):
        say(line)
    say(f"run      {folder}" + (", resumed" if resumed else ""))
    result = _train(folder, config, corpus, model, options)
    say(_conclusion(folder, result))
    if not options.quiet:
        _write_sample(folder, config)
    return 0


# ---- settings ----


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """What the command line and its config file say, and nothing else."""
    given: dict[str, Any] = {}
    if options.config is not None:
        given |= _read(options.config)
    given |= dict(parse(assignment) for assignment in options.set)
    for name in ("preset", "tokens", "steps", "seed"):
        value = getattr(options, name)
        if value is not None:
            given |= [parse(f"{name}={value}")]
    return given | ({"files": options.files} if options.files else {})


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        settings = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{path}: not TOML: {error}") from None
    make(settings, str(path))
    return settings


def _default_folder(given: dict[str, Any], resume: bool) -> Path:
    """To resume: the folder that was last written to. Else runs/PRESET, the next that is free."""
    checkpoints = list(RUNS.glob("*/resume.safetensors"))
    if resume and checkpoints:
        return max(checkpoints, key=lambda path: path.stat().st_mtime).parent
    name = str(given.get("preset", Config().preset))
    number = 1
    folder = RUNS / name
    while (folder / "resume.safetensors").exists():
        number += 1
        folder = RUNS / f"{name}-{number}"
    return folder


def _configure(folder: Path, given: dict[str, Any], resume: bool) -> tuple[Config, bool]:
    """The configuration, and whether a run with it is resumed.

    Raises: UsageError when a run would be overwritten, or resumed with other settings.
    """
    config = make(given, "command line")
    started = (folder / "resume.safetensors").exists()
    if started and not resume:
        raise UsageError(f"{folder} already holds a run: add --resume to go on, or choose --out")
    if not resume or not (folder / CONFIG).exists():
        return config, False
    recorded = _recorded(folder / CONFIG)
    if not started:
        return make({**dataclasses.asdict(recorded), **given}, "command line"), False
    for name, value in given.items():
        before = getattr(recorded, name)
        if getattr(config, name) != before:
            raise UsageError(
                f"--resume: {name} was {before!r} when {folder} began, and is {value!r} now; "
                "leave it out, or begin another run with --out"
            )
    return recorded, True


def _recorded(path: Path) -> Config:
    """The configuration of a run, which has every key."""
    from rushlight.errors import FormatError

    settings = _read(path)
    missing = [name for name in FIELDS if name not in settings]
    if missing:
        raise FormatError(f"{path}: damaged, without {', '.join(missing)}; bring these keys back")
    return make(settings, str(path))


def _seed(seed: int) -> None:
    import random

    import numpy as np

    import rushlight as rl

    rl.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


# ---- text and model ----


def _corpus(folder: Path, config: Config, resumed: bool) -> Corpus:
    """The tokens in the run folder, written there when the run begins.

    Raises: FormatError, and leaves nothing behind, for text that is none or too short.
    """
    from rushlight.io import write_atomic
    from rushlight.text.corpus import DESCRIPTION, TOKENS, read_corpus, write_corpus

    if resumed:
        return read_corpus(folder)
    new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        corpus = write_corpus(config.files, config.tokens, folder)
        _check_length(corpus, config)
    except BaseException:
        for name in (DESCRIPTION, TOKENS):
            (folder / name).unlink(missing_ok=True)
        if new:
            folder.rmdir()
        raise
    write_atomic(folder / CONFIG, to_toml(config))
    return corpus


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
    skipped = f", {corpus.skipped} files that are no text left out" if corpus.skipped else ""
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
    total = max(config.steps, config.warmup, 1)  # a run may end while it warms up
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
        print(f"machine  {_machine()}, {peak / 1e9:.0f} GFLOP/s in matrix products")
        callbacks.append(t.Progress("tokens", model.flops_per_token(), peak, go_on=go_on))
    return t.train(
        model,
        batches,
        t.next_token_loss,
        optimizer=optimizer,
        schedule=CosineWithWarmupLR(optimizer, config.warmup, total, config.min_lr),
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

    print(f"sample   more with: rushlight sample {shlex.quote(str(folder))}\n")
    parser = argparse.ArgumentParser()
    sample.add_arguments(parser)
    sample.run(parser.parse_args([str(folder), "--length=400", f"--seed={config.seed}"]))
