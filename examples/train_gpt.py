"""Train a small GPT on the source text of Python's standard library, in a minute or two on a CPU.

    python examples/train_gpt.py
    python examples/train_gpt.py --data DIR --steps 5000 --context 128

The model is GPT-2's (Radford et al. 2019) without biases: 4 layers, 4 heads, width 128, context 64.
Its tokens are bytes, so the vocabulary is 256 and any text will do; that makes 0.83 M parameters.
The last tenth of the files is held out, and the loss on it is printed along the way.

Shapes: B batch, T time, D model width, H heads, K head width.
"""

import argparse
import math
import sys
import sysconfig
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

import rushlight as rl
from rushlight import nn
from rushlight.nn import functional as F

VOCABULARY = 256
# What differs from one installation to the next, and tables that are hardly code.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
LEFT_OUT |= {"encodings", "pydoc_data"}

# ---- the model ----


class Attention(nn.Module):
    """Every position gathers from itself and those before it."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.projection = nn.Linear(width, width, bias=False)

    def forward(self, x):
        batch, time, width = x.shape
        shape = (batch, time, self.heads, width // self.heads)
        q, k, v = (
            part.view(shape).transpose(1, 2)  # (B, H, T, K)
            for part in self.query_key_value(x).split(width, dim=2)
        )
        x = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.projection(x.transpose(1, 2).reshape(batch, time, width))  # (B, T, D)


class MLP(nn.Module):
    """Every position is transformed by itself."""

    def __init__(self, width):
        super().__init__()
        self.expand = nn.Linear(width, 4 * width, bias=False)
        self.projection = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        return self.projection(F.gelu(self.expand(x)))


class Block(nn.Module):
    """Normalise, transform, add to what came in: attention first, then the MLP."""

    def __init__(self, width, heads):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.attention = Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        self.mlp = MLP(width)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class GPT(nn.Module):
    """Bytes in, and for each position the byte that comes next."""

    def __init__(self, context, layers, heads, width):
        super().__init__()
        self.context = context
        self.token_embedding = nn.Embedding(VOCABULARY, width)  # also the output weight
        self.position_embedding = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, bias=False)
        for name, parameter in self.named_parameters():
            # Each block adds to x twice: smaller steps keep the sum's variance free of the depth.
            depth = 2 * layers if name.endswith("projection.weight") else 1
            if parameter.ndim >= 2:
                nn.init.normal_(parameter, std=0.02 / math.sqrt(depth))

    def forward(self, tokens, targets=None):
        """tokens (B, T) -> the mean loss against targets (B, T), or the last logits (B, 256)."""
        x = self.token_embedding(tokens)
        x = x + self.position_embedding(rl.arange(tokens.shape[1]))  # (B, T, D)
        x = self.norm(self.blocks(x))
        if targets is None:
            return F.linear(x[:, -1], self.token_embedding.weight)
        return F.linear_cross_entropy(x, self.token_embedding.weight, targets)


# ---- the text ----


def read_text(folder):
    """All Python files under a folder, in order of their paths: to train on, and held out."""
    paths = sorted(folder.rglob("*.py"))
    texts = [p.read_bytes() for p in paths if not LEFT_OUT & set(p.relative_to(folder).parts)]
    cut = len(texts) - math.ceil(len(texts) / 10)
    parts = b"".join(texts[:cut]), b"".join(texts[cut:])
    return tuple(rl.tensor(np.frombuffer(part, np.uint8)) for part in parts)


def random_batch(text, batch, context, generator=None):
    """Windows from random places, and the same windows one byte further: (B, T) each."""
    starts = rl.randint(0, len(text) - context, (batch, 1), generator=generator)
    windows = text[starts + rl.arange(context + 1)].long()
    return windows[:, :-1], windows[:, 1:]


# ---- training ----


def learning_rate(step, steps, highest=1e-3, lowest=1e-4):
    """Up in a straight line for a twentieth of the steps, then down along a cosine."""
    warm_up = steps // 20
    if step < warm_up:
        return highest * (step + 1) / (warm_up + 1)
    progress = (step - warm_up) / (steps - warm_up)
    return lowest + 0.5 * (highest - lowest) * (1 + math.cos(math.pi * progress))


def make_optimizer(model):
    """AdamW; only matrices decay, the norms' gains do not."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    gains = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": gains, "weight_decay": 0.0}]
    return rl.optim.AdamW(groups, betas=(0.9, 0.99))


@rl.no_grad()
def evaluate(model, text, batch, batches=20):
    """Mean loss over windows that are the same at every call."""
    generator = rl.Generator().manual_seed(0)
    windows = (random_batch(text, batch, model.context, generator) for _ in range(batches))
    return sum(model(*window).item() for window in windows) / batches


@rl.no_grad()
def sample(model, length, start=b"\n", temperature=0.8):
    """Bytes drawn one after the other, each from what the model expects after those before it."""
    text = list(start)
    for _ in range(length):
        logits = model(rl.tensor([text[-model.context :]]))
        text.append(rl.multinomial(F.softmax(logits / temperature, -1), 1).item())
    return bytes(text[len(start) :])


class Progress:
    """Lines about the training so far; on a terminal the latest one is kept up to date in place."""

    def __init__(self, steps, tokens_per_step):
        self.steps, self.tokens_per_step = steps, tokens_per_step
        self.live = sys.stdout.isatty()
        self.start = time.perf_counter()

    def show(self, step, loss, note=""):
        seconds = time.perf_counter() - self.start
        left = seconds / step * (self.steps - step)
        speed = step * self.tokens_per_step / seconds
        line = f"step {step:5d}  loss {loss:.3f}  {speed:7,.0f} tokens/s  {left:4.0f} s left{note}"
        kept = note or step % 100 == 0 or step == self.steps
        if self.live or kept:
            print("\r" * self.live + line, end="\n" if kept else "", flush=True)


class Result(NamedTuple):
    """What a run came to."""

    losses: list[float]
    held_out_loss: float
    sample: bytes


def train(model, training, held_out, options):
    """The losses of all steps, and the last one on held-out text."""
    optimizer = make_optimizer(model)
    progress = Progress(options.steps, options.batch * options.context)
    losses, held_out_loss = [], math.nan
    for step in range(1, options.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step - 1, options.steps)
        loss = model(*random_batch(training, options.batch, options.context))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        note = ""
        if step % 500 == 0 or step == options.steps:
            held_out_loss = evaluate(model, held_out, options.batch)
            note = f"  held-out loss {held_out_loss:.3f}"
        if note or step % 10 == 0:
            progress.show(step, sum(losses[-100:]) / len(losses[-100:]), note)
    return losses, held_out_loss


def parse_options(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = {"steps": 2000, "batch": 12, "context": 64, "layers": 4, "heads": 4, "width": 128}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1337, help="default: %(default)s")
    parser.add_argument("--sample", type=int, default=400, metavar="N", help="bytes to write")
    parser.add_argument("--data", type=Path, metavar="DIR", help="Python files to learn from")
    options = parser.parse_args(argv)
    if any(getattr(options, name) < 1 for name in numbers) or options.sample < 0:
        parser.error("sizes must be positive")
    if options.width % options.heads:
        parser.error("--width must be a multiple of --heads")
    return parser, options


def main(argv=None):
    parser, options = parse_options(argv)
    rl.manual_seed(options.seed)
    folder = options.data or Path(sysconfig.get_path("stdlib"))
    training, held_out = read_text(folder)
    if min(len(training), len(held_out)) <= options.context:
        parser.error(f"{folder} has too few Python files for a context of {options.context} bytes")
    model = GPT(options.context, options.layers, options.heads, options.width)
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f"{parameters:,} parameters; {len(training):,} bytes to learn, {len(held_out):,} held out"
    )
    losses, held_out_loss = train(model, training, held_out, options)
    print(f"held-out text: {held_out_loss / math.log(2):.2f} bits per byte; a sample:\n")
    text = sample(model, options.sample)
    print(text.decode("ascii", "backslashreplace"))
    return Result(losses, held_out_loss, text)


if __name__ == "__main__":
    main()
