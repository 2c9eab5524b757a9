"""Write text with a trained model.

    rushlight sample runs/shakespeare --prompt "ROMEO:" --length 300 --temperature 0.7

The text appears as it is drawn. The same seed gives the same text.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rushlight_cli import output


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add = parser.add_argument
    add("folder", metavar="RUN", help="folder of a run, the --out of `rushlight train`")
    add("--prompt", metavar="TEXT", help="what it goes on from; default: a new line")
    add("--length", type=int, default=500, metavar="N", help="tokens to draw; default: %(default)s")
    add(
        "--temperature",
        type=float,
        default=0.8,
        metavar="T",
        help="below 1 safer, above 1 wilder, 0 always the likeliest; default: %(default)s",
    )
    add(
        "--top-k",
        type=int,
        default=200,
        metavar="K",
        help="draw from the K likeliest tokens; default: %(default)s",
    )
    add(
        "--top-p",
        type=float,
        metavar="P",
        help="draw from the fewest tokens that together have probability P; default: from all",
    )
    add("--seed", type=int, default=1337, metavar="N", help="default: %(default)s")


def run(options: argparse.Namespace) -> int:
    """Write the prompt and what follows to standard output; 0 when all went well."""
    write(
        Path(options.folder),
        options.prompt,
        length=options.length,
        temperature=options.temperature,
        top_k=options.top_k,
        top_p=options.top_p,
        seed=options.seed,
    )
    return 0


def write(
    folder: Path,
    prompt: str | None = None,
    *,
    length: int = 500,
    temperature: float = 0.8,
    top_k: int | None = 200,
    top_p: float | None = None,
    seed: int = 1337,
) -> None:
    """Let the model of a run folder go on from a prompt, by default a new line.

    Raises: ConfigError for a wrong use, FormatError or OSError for damaged files.
    """
    import rushlight as rl
    from rushlight.errors import ConfigError
    from rushlight.generate import generate, load_run
    from rushlight.generate.sampling import check_options

    check_options(temperature, top_k, top_p)
    if prompt == "":
        raise ConfigError("--prompt is empty; the model needs at least one character to go on from")
    model, tokenizer = load_run(folder)
    if prompt is None:  # a new line, or whatever the model knows
        prompt = "\n" if "\n" in getattr(tokenizer, "symbols", "\n") else tokenizer.decode([0])
    try:
        start = tokenizer.encode(prompt)
    except ValueError as error:
        raise ConfigError(f"--prompt: {error}; leave that out") from None
    options: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    generator = rl.Generator().manual_seed(seed)
    tokens = generate(model, start, length, **options, generator=generator)
    decoder = tokenizer.decoder()

    def pieces() -> Iterator[str]:
        yield from map(decoder.feed, start.tolist())
        yield from map(decoder.feed, tokens)
        yield decoder.flush() + "\n"

    output.write(pieces())
