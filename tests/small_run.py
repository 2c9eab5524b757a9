"""A training run with everything random in it, small enough to run hundreds of times.

As a program: `python small_run.py FOLDER STEPS [--resume]` trains in a run folder.
"""

import sys
from pathlib import Path

import numpy as np

import rushlight as rl
from rushlight import nn
from rushlight.data import DataLoader, TensorDataset
from rushlight.nn import functional as F
from rushlight.optim import EMA
from rushlight.optim.lr_scheduler import OneCycleLR
from rushlight.train import train

SAMPLES, BATCH, TOTAL = 23, 4, 20  # an epoch of 6 batches, the last one short


class Noisy(TensorDataset):
    """Samples with fresh noise at every visit."""

    def __getitem__(self, index):
        x, y = super().__getitem__(index)
        return x + 0.1 * rl.randn(*x.shape), y


def data():
    rng = np.random.default_rng(3)
    x = rng.standard_normal((SAMPLES, 6)).astype(np.float32)
    return rl.tensor(x), rl.tensor((x.sum(1) > 0).astype(np.int64))


def loss(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y), len(y)


def start(folder, steps, *, workers=0, seed=5, **options):
    """Train in a folder; `TOTAL` steps make the schedule whatever `steps` is."""
    rl.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))
    optimizer = rl.optim.AdamW(model.named_parameters(), lr=0.05)
    loader = DataLoader(Noisy(*data()), BATCH, shuffle=True, num_workers=workers)
    options = {"eval_every": 7, "save_every": 5, "log_every": 1, "accumulate": 2} | options
    options = {"held_out": [data()]} | options
    return train(
        model,
        loader,
        loss,
        optimizer=optimizer,
        schedule=OneCycleLR(optimizer, 0.1, total_steps=TOTAL),
        ema=EMA(model, 0.9),
        steps=steps,
        folder=folder,
        **options,
    )


def contents(folder):
    """What must be the same to the bit, by file name."""
    names = ("resume.safetensors", "last.safetensors", "best.safetensors")
    return {name: (Path(folder) / name).read_bytes() for name in names}


# ---- and a smaller one: y = w x ----


def line(weight=0.0):
    """y = w x, one weight."""
    model = nn.Linear(1, 1, bias=False)
    with rl.no_grad():
        model.weight.fill_(weight)
    return model


def squares(model, batch):
    """Mean of (w x - y)^2 over the pairs of a batch, and their number."""
    x, y = batch
    return F.mse_loss(model(x), y), len(x)


def pairs(*xs):
    x = rl.tensor(xs, dtype=rl.float32).reshape(-1, 1)
    return x, 2 * x


if __name__ == "__main__":
    import random

    random.seed(0)
    np.random.seed(0)
    start(Path(sys.argv[1]), int(sys.argv[2]), resume="--resume" in sys.argv)
