"""GPT-2 as nanoGPT has it.

* blocks that normalise first: x + attention(norm(x)), then x + mlp(norm(x));
* learned position embeddings, the exact (erf) GELU, biases everywhere or nowhere;
* the token embedding is the head's weight, too;
* the matrices that write into x start smaller, so that its variance does not grow with depth.

State-dict names are those of Hugging Face's GPT-2 (wte, wpe, h.0.attn.c_attn ...) with PyTorch's
Linear layout (out, in); Hugging Face stores the four matrices of a block transposed.

Shapes: B batch, T time, D width, H heads, K head width, V vocabulary.
Source: Radford et al. 2019; github.com/karpathy/nanoGPT, model.py.
"""

from __future__ import annotations

import math

import rushlight as rl
from rushlight import nn
from rushlight.errors import GraphError, ShapeError
from rushlight.models.cache import KVCache
from rushlight.nn import functional as F
from rushlight.tensor import Tensor


class Attention(nn.Module):
    """residual + what each position gathers from itself and those before it."""

    def __init__(self, width: int, heads: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.c_attn = nn.Linear(width, 3 * width, bias=bias)
        self.c_proj = nn.Linear(width, width, bias=bias)

    def forward(
        self, x: Tensor, residual: Tensor, cache: KVCache | None = None, layer: int = 0
    ) -> Tensor:
        """Both inputs and the result are (B, T, D)."""
        batch, time, width = x.shape
        dropped = self.dropout if self.training else 0.0
        parts = self.c_attn(x).view(batch, time, 3 * self.heads, width // self.heads)
        q, k, v = parts.transpose(1, 2).split(self.heads, 1)  # (B, H, T, K)
        mask = None
        causal = cache is None or cache.length == 0
        if cache is not None:
            k, v = cache.append(layer, k, v)  # (B, H, S, K)
            # is_causal would align the first query with the first key.
            mask = None if causal else cache.mask(time)
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=dropped, is_causal=causal
        )
        y = y.transpose(1, 2).reshape(batch, time, width)  # (B, T, D)
        return _add(residual, y, self.c_proj, dropped)


class MLP(nn.Module):
    """residual + each position transformed by itself."""

    def __init__(self, width: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.dropout = dropout
        self.c_fc = nn.Linear(width, 4 * width, bias=bias)
        self.c_proj = nn.Linear(4 * width, width, bias=bias)

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """Both inputs and the result are (B, T, D)."""
        hidden = F.linear(x, self.c_fc.weight, self.c_fc.bias, activation="gelu")  # (B, T, 4 D)
        return _add(residual, hidden, self.c_proj, self.dropout if self.training else 0.0)


def _add(residual: Tensor, y: Tensor, projection: nn.Linear, dropped: float) -> Tensor:
    """Adds dropout(projection(y)) to residual: one kernel when nothing is dropped."""
    if dropped > 0:
        return residual + F.dropout(projection(y), dropped)
    return F.linear(y, projection.weight, projection.bias, residual=residual)


class Block(nn.Module):
    """Normalise, transform, add to what came in: attention first, then the MLP."""

    def __init__(self, width: int, heads: int, dropout: float, bias: bool) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, bias=bias)
        self.attn = Attention(width, heads, dropout, bias)
        self.ln_2 = nn.LayerNorm(width, bias=bias)
        self.mlp = MLP(width, dropout, bias)

    def forward(self, x: Tensor, cache: KVCache | None = None, layer: int = 0) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x = self.attn(self.ln_1(x), x, cache, layer)
        return self.mlp(self.ln_2(x), x)  # type: ignore[no-any-return]


class GPT(nn.Module):
    """Tokens in, and for each position what the model expects to come next.

    vocabulary: number of tokens.  context: most positions at a time.  dropout: of the embeddings,
    the attention weights and what each block adds, while training.
    Raises: ShapeError for a width that is no multiple of heads, ValueError for sizes below 1 or
    dropout outside [0, 1).
    """

    def __init__(
        self,
        vocabulary: int,
        context: int,
        layers: int,
        heads: int,
        width: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        sizes = {"vocabulary": vocabulary, "context": context, "layers": layers}
        for name, size in {**sizes, "heads": heads, "width": width}.items():
            if size < 1:
                raise ValueError(f"GPT: {name} must be at least 1, got {size}")
        if width % heads:
            raise ShapeError(f"GPT: width {width} is no multiple of {heads} heads")
        if not 0 <= dropout < 1:
            raise ValueError(f"GPT: dropout must lie in [0, 1), got {dropout}")
        self.vocabulary, self.context = vocabulary, context
        self.layers, self.heads, self.width = layers, heads, width
        self.dropout = dropout
        self.wte = nn.Embedding(vocabulary, width)  # also the head's weight
        self.wpe = nn.Embedding(context, width)
        self.h = nn.ModuleList(Block(width, heads, dropout, bias) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width, bias=bias)
        for name, parameter in self.named_parameters():
            # Each block adds to x twice: smaller steps keep the sum's variance free of the depth.
            depth = 2 * layers if name.endswith("c_proj.weight") else 1
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=0.02 / math.sqrt(depth))
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(
        self, tokens: Tensor, targets: Tensor | None = None, cache: KVCache | None = None
    ) -> Tensor:
        """The mean loss against targets, or the last position's logits.

        tokens, targets: (B, T) integers; a target of -1 is left out of the mean.
        cache: positions read before, of `new_cache`; the new ones are added to it.
        Returns () with targets, (B, V) without.
        Raises: ShapeError for more positions than the context, or none; IndexError for a token
        outside the vocabulary; GraphError for a cache while gradients are recorded.
        """
        start = 0 if cache is None else cache.length
        self._check(tokens, start)
        if cache is not None and rl.is_grad_enabled():
            raise GraphError("GPT: a cache holds no gradients; call the model within rl.no_grad()")
        positions = rl.arange(start, start + tokens.shape[1])  # (T,)
        x = self.wte(tokens) + self.wpe(positions)  # (B, T, D)
        x = F.dropout(x, self.dropout, self.training)
        for layer, block in enumerate(self.h):
            x = block(x, cache, layer)
        if cache is not None:
            cache.length += tokens.shape[1]
        if targets is None:
            return F.linear(self.ln_f(x[:, -1]), self.wte.weight)  # (B, V)
        return F.linear_cross_entropy(self.ln_f(x), self.wte.weight, targets, ignore_index=-1)

    def _check(self, tokens: Tensor, start: int) -> None:
        if tokens.ndim != 2 or tokens.shape[1] == 0:
            raise ShapeError(f"GPT: tokens have shape {tuple(tokens.shape)}, expected (B, T)")
        if start + tokens.shape[1] > self.context:
            before = f" after {start} in the cache" if start else ""
            raise ShapeError(
                f"GPT: {tokens.shape[1]} positions{before} exceed the context of {self.context}"
            )

    def new_cache(self, batch: int = 1) -> KVCache:
        """An empty cache for texts that grow token by token, in the model's dtype."""
        head_width, dtype = self.width // self.heads, self.wte.weight.dtype
        return KVCache(self.layers, batch, self.heads, self.context, head_width, dtype)

    def parameter_count(self, *, positions: bool = True) -> int:
        """Number of parameters; positions=False leaves the position embedding out."""
        total = sum(parameter.numel() for parameter in self.parameters())
        return total if positions else total - self.wpe.weight.numel()

    def flops_per_token(self) -> int:
        """Floating-point operations to train on one token of a full context, forward and backward.

        6 N + 12 L H K T, N without position embeddings.  Source: Chowdhery et al. 2022 (PaLM),
        arXiv:2204.02311, appendix B.
        """
        attention = 12 * self.layers * self.width * self.context  # H K = D
        return 6 * self.parameter_count(positions=False) + attention
