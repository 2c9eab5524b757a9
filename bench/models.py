"""The workloads of workloads.py as Rushlight's own models are written: with the fused functions.

Same shapes, parameters, names and optimizers, so a state dict of one loads into the other.
Shapes: B batch, T time, D model width, H heads, K head width, G key heads, V vocabulary.
"""

from __future__ import annotations

import rushlight as rl
from rushlight import models, nn
from rushlight.nn import functional as F


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(784, 128), nn.SiLU(), nn.Linear(128, 10))

    def forward(self, x, y):
        first, _, last = self.net
        hidden = F.linear(x, first.weight, first.bias, activation="silu")  # (B, 128)
        return F.cross_entropy(last(hidden), y)


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = models.LeNet()

    def forward(self, x, y):
        return F.nll_loss(self.net(x), y)


class GPTBlock(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, time, width = x.shape
        parts = self.qkv(self.ln1(x)).view(batch, time, 3 * self.heads, -1).transpose(1, 2)
        q, k, v = parts.split(self.heads, 1)  # (B, H, T, K)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).reshape(batch, time, width)
        x = F.linear(y, self.proj.weight, self.proj.bias, residual=x)
        hidden = F.linear(self.ln2(x), self.fc.weight, self.fc.bias, activation="gelu_tanh")
        return F.linear(hidden, self.out.weight, self.out.bias, residual=x)


class GPT(nn.Module):
    """GPT-2's block order, biases everywhere, tied head."""

    def __init__(self, vocabulary, context, layers, heads, width):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(GPTBlock(width, heads) for _ in range(layers))
        self.ln_f, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(rl.arange(tokens.shape[1]))  # (B, T, D)
        for block in self.blocks:
            x = block(x)
        return F.linear_cross_entropy(self.ln_f(x), self.head.weight, targets)


def rotate(x, cos, sin):
    """Rotary position embedding of adjacent pairs.  x (B, H, T, K), cos and sin (T, K / 2)."""
    a, b = x[..., 0::2], x[..., 1::2]
    return rl.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


class LlamaBlock(nn.Module):
    def __init__(self, width, heads, key_heads, hidden):
        super().__init__()
        self.heads, self.key_heads, head_width = heads, key_heads, width // heads
        self.n1, self.n2 = nn.RMSNorm(width, 1e-6), nn.RMSNorm(width, 1e-6)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, key_heads * head_width, bias=False)
        self.v = nn.Linear(width, key_heads * head_width, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, cos, sin):
        batch, time, width = x.shape
        h = self.n1(x)
        q = self.q(h).view(batch, time, self.heads, -1).transpose(1, 2)  # (B, H, T, K)
        k = self.k(h).view(batch, time, self.key_heads, -1).transpose(1, 2)  # (B, G, T, K)
        v = self.v(h).view(batch, time, self.key_heads, -1).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = F.linear(y.transpose(1, 2).reshape(batch, time, width), self.o.weight, residual=x)
        h = self.n2(x)
        gated = F.linear(h, self.gate.weight, activation="silu") * self.up(h)
        return F.linear(gated, self.down.weight, residual=x)


class Llama(nn.Module):
    def __init__(self, vocabulary, layers, heads, key_heads, width, hidden, context):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(
            LlamaBlock(width, heads, key_heads, hidden) for _ in range(layers)
        )
        self.norm, self.head = nn.RMSNorm(width, 1e-6), nn.Linear(width, vocabulary, bias=False)
        k = width // heads
        frequency = 10000.0 ** (-rl.arange(0, k, 2) / k)
        angle = rl.outer(rl.arange(context).float(), frequency)  # (T, K / 2)
        self.cos, self.sin = angle.cos(), angle.sin()

    def forward(self, tokens, targets):
        x = self.embed(tokens)  # (B, T, D)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.linear_cross_entropy(self.norm(x), self.head.weight, targets)


def token_batch(vocabulary, batch, context):
    tokens = rl.randint(0, vocabulary, (batch, context))
    return tokens, rl.randint(0, vocabulary, (batch, context))


def build(name):
    """(model, optimizer, batch, clip or None, samples or tokens per step), as in workloads.py."""
    clip, optimizer = None, None
    if name == "lenet":
        model, items = LeNet(), 64
        batch = rl.randn(64, 1, 28, 28), rl.randint(0, 10, (64,))
        optimizer = rl.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    elif name == "mlp":
        model, items = MLP(), 64
        batch = rl.randn(64, 784), rl.randint(0, 10, (64,))
    elif name == "gpt-nano":
        model, batch, items = GPT(65, 64, 4, 4, 128), token_batch(65, 12, 64), 12 * 64
    elif name == "gpt-char":
        model, batch, items = GPT(65, 256, 6, 6, 384), token_batch(65, 16, 256), 16 * 256
    elif name == "llama-char":
        model = Llama(88, 6, 6, 2, 384, 1024, 256)
        batch, items, clip = token_batch(88, 1, 256), 256, 1.0
    elif name == "gpt2":
        model, batch, items = GPT(50257, 64, 12, 12, 768), token_batch(50257, 4, 64), 4 * 64
    else:
        raise SystemExit(f"unknown workload {name!r}")
    return model, optimizer or rl.optim.AdamW(model.parameters(), lr=1e-3), batch, clip, items
