"""Drawing tokens one after the other, each from what the model expects after those before it.

Shapes: V vocabulary, N tokens of the prompt.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

import rushlight as rl
from rushlight.errors import ConfigError
from rushlight.models import GPT
from rushlight.nn.utils import evaluating


def probabilities(
    logits: npt.ArrayLike,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> npt.NDArray[np.float64]:
    """What a token is drawn with: softmax(logits / temperature), then top-k, then top-p.

    logits: (V,).  Returns (V,) float64, sum 1.
    temperature: 0 puts all on the largest logit, the first of equal ones.
    top_k: values below the k-th largest get nothing; those equal to it stay.
    top_p: only the fewest tokens stay, the likeliest first, that together reach top_p.
    Raises: ConfigError (a ValueError) for options out of range, ValueError for logits that are not
    finite or not one row.
    Source: top-k Fan et al. 2018, arXiv:1805.04833; top-p Holtzman et al. 2019, arXiv:1904.09751.
    """
    check_options(temperature, top_k, top_p)
    row = np.asarray(logits, np.float64)
    if row.ndim != 1 or row.size == 0:
        raise ValueError(f"sample_token: logits have shape {row.shape}, expected (V,)")
    if not np.isfinite(row).all():
        raise ValueError("sample_token: logits are not finite; the model's weights may be damaged")
    if temperature == 0:
        return np.asarray(np.arange(row.size) == row.argmax(), np.float64)
    with np.errstate(over="ignore"):  # a tiny temperature: -inf is right
        values = (row - row.max()) / temperature
    if top_k is not None and top_k < values.size:
        kth = np.partition(values, -top_k)[-top_k]
        values = np.where(values < kth, -np.inf, values)
    weights = np.exp(values)
    if top_p is not None and top_p < 1:
        order = np.argsort(-row, kind="stable")  # weights may have been rounded to equal
        reached = np.cumsum(weights[order])
        kept = int(np.searchsorted(reached, top_p * reached[-1])) + 1
        weights[order[kept:]] = 0.0
    return np.asarray(weights / weights.sum())


def sample_token(
    logits: npt.ArrayLike,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: rl.Generator | None = None,
) -> int:
    """One token drawn with `probabilities`, by a single uniform number.

    logits: (V,).  Every call draws from the generator, at temperature 0 too, so that what follows
    does not depend on the options.
    Raises: as `probabilities`.
    """
    total = np.cumsum(probabilities(logits, temperature=temperature, top_k=top_k, top_p=top_p))
    uniform = rl.rand(1, generator=generator, dtype=rl.float64).item()
    # uniform < 1 keeps the product below the total, however it rounds
    return int(np.searchsorted(total, uniform * total[-1], side="right"))


def check_options(
    temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> None:
    """Raise ConfigError for sampling options out of range."""
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ConfigError(f"temperature must be a number from 0 upwards, got {temperature}")
    if top_k is not None and top_k < 1:
        raise ConfigError(f"top_k must be at least 1, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:
        raise ConfigError(f"top_p must lie in (0, 1], got {top_p}")


def generate(
    model: GPT,
    tokens: npt.ArrayLike,
    length: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: rl.Generator | None = None,
    cache: bool = True,
) -> Iterator[int]:
    """`length` tokens after a prompt, given one by one as they are drawn.

    tokens: (N,) integers, at least one; of more than the context the last ones count.
    When the context is full, its last half is kept and read anew: positions are learned, so what
    has been read cannot move. With and without cache the windows are the same.
    The model computes in eval mode without gradients; outside of its own steps its mode and the
    gradient mode are what they were.
    Raises: ConfigError (a ValueError) for options out of range, ValueError for an empty prompt or
    logits that are not finite, IndexError for a token outside the vocabulary.
    """
    check_options(temperature, top_k, top_p)
    prompt = np.asarray(tokens)
    if length < 0:
        raise ConfigError(f"length must not be negative, got {length}")
    if prompt.ndim != 1 or prompt.size == 0:
        raise ValueError(
            f"generate: the prompt has shape {prompt.shape}, expected (N,) with at least one token"
        )
    past = model.new_cache() if cache else None

    def draw() -> Iterator[int]:
        window: list[int] = prompt[-model.context :].tolist()
        unread = window
        for _ in range(length):
            with evaluating(model):
                logits = model(rl.tensor([unread]), cache=past)[0].numpy()
            token = sample_token(
                logits, temperature=temperature, top_k=top_k, top_p=top_p, generator=generator
            )
            yield token
            window.append(token)
            unread = window if past is None else [token]
            if len(window) > model.context:
                unread = window = window[-max(1, model.context // 2) :]
                if past is not None:
                    past.length = 0

    return draw()
