"""The model and tokenizer of a run folder: config.toml, tokens.json and the weights."""

from __future__ import annotations

from pathlib import Path

from rushlight.errors import FormatError
from rushlight.models import GPT
from rushlight.runs import CONFIG, config_value, load_weights, read_config
from rushlight.text import Tokenizer
from rushlight.text.corpus import read_description


def load_run(folder: str | Path, weights: str = "best") -> tuple[GPT, Tokenizer]:
    """The trained model, in eval mode, and the tokenizer it was trained with.

    weights: "best" (on held-out text; the last where there are none yet) or "last".
    Raises: ConfigError when the folder is no run or has no weights yet, FormatError for damaged
    files, OSError for unreadable ones.
    """
    folder = Path(folder)
    config, path = read_config(folder, "text"), folder / CONFIG
    _, tokenizer = read_description(folder)
    sizes = {
        name: config_value(path, config, name, int)
        for name in ("context", "layers", "heads", "width")
    }
    dropout = float(config_value(path, config, "dropout", int, float))
    bias = config_value(path, config, "bias", bool)
    try:
        model = GPT(tokenizer.vocabulary, **sizes, dropout=dropout, bias=bias)
    except ValueError as error:
        raise FormatError(f"{path}: {error}") from None
    load_weights(model, folder, weights)
    return model, tokenizer
