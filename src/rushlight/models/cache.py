"""Keys and values of the positions that a model has already read.

Shapes: B batch, H heads, T new positions, S positions so far, K head width.
"""

from __future__ import annotations

import rushlight as rl
from rushlight.errors import ShapeError
from rushlight.tensor import Tensor


class KVCache:
    """Room for `context` positions in each layer; the first `length` of them are filled.

    keys, values: per layer (B, H, context, K).  `length = 0` empties it for another text.
    """

    def __init__(
        self,
        layers: int,
        batch: int,
        heads: int,
        context: int,
        head_width: int,
        dtype: rl.dtype = rl.float32,
    ) -> None:
        shape = (batch, heads, context, head_width)
        self.keys = [rl.zeros(shape, dtype=dtype) for _ in range(layers)]
        self.values = [rl.zeros(shape, dtype=dtype) for _ in range(layers)]
        self.context, self.length = context, 0

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store new keys and values (B, H, T, K) and give all so far, (B, H, S, K), as views.

        `length` stays: the model moves it once every layer has stored its own.
        Raises: ShapeError for another batch size, or more positions than there is room for.
        """
        keys, values = self.keys[layer], self.values[layer]
        end = self.length + key.shape[2]
        if end > self.context or key.shape[0] != keys.shape[0]:
            raise ShapeError(
                f"KVCache: batch {key.shape[0]} with {end} positions does not fit a cache "
                f"for batch {keys.shape[0]} and {self.context} positions"
            )
        keys[:, :, self.length : end] = key
        values[:, :, self.length : end] = value
        return keys[:, :, :end], values[:, :, :end]

    def mask(self, time: int) -> Tensor | None:
        """Which of S keys each of `time` new queries sees, bool (T, S); None for a single query."""
        if time == 1:
            return None
        own_position = rl.arange(self.length, self.length + time).unsqueeze(1)  # (T, 1)
        return rl.arange(self.length + time) <= own_position  # (T, S)
