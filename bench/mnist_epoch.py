"""An epoch of the MNIST example, loading included, beside the same script in PyTorch.

python bench/mnist_epoch.py [DIR] [--rounds 3] [--threads 2]

60 000 images of 28 x 28 from the IDX files in DIR, or random ones; shuffled batches of 128, SGD
with momentum, dropout. PyTorch's side has the same dataset of tensors and its own DataLoader, in
the main thread and with a worker process.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch.nn import functional as TF
from torch.utils import data as tdata
from twin import twin

import rushlight as rl
from rushlight import optim
from rushlight.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parent.parent / "examples/mnist"))
import dataset
import trainer
from model import LeNet


def theirs(model, loader, optimizer) -> None:
    """`trainer.train` with PyTorch's functions."""
    model.train()
    for x, y in loader:
        loss = TF.nll_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="?")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    rl.set_num_threads(options.threads)
    torch.set_num_threads(options.threads)
    if options.data:
        x, y = (t.numpy() for t in dataset.tensors(options.data, True).tensors)
    else:
        x, y = np.random.default_rng(0).standard_normal((60_000, 1, 28, 28), np.float32), None
        y = np.arange(60_000) % 10
    model = LeNet()
    peer = twin(model)
    ours = DataLoader(TensorDataset(rl.tensor(x), rl.tensor(y)), 128, shuffle=True, num_workers=1)
    pairs = tdata.TensorDataset(torch.tensor(x), torch.tensor(y))
    optimizer = optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    peers = torch.optim.SGD(peer.parameters(), lr=0.01, momentum=0.5)
    times: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, workers in (("rushlight", -1), ("torch", 0), ("torch, one worker", 1)):
            start = time.perf_counter()
            if workers < 0:
                trainer.train(model, ours, optimizer)
            else:
                loader = tdata.DataLoader(pairs, 128, shuffle=True, num_workers=workers)
                theirs(peer, loader, peers)
            times.setdefault(name, []).append(time.perf_counter() - start)
    for name, seconds in times.items():
        ratios = sorted(a / b for a, b in zip(times["rushlight"], seconds, strict=True))
        print(f"{name:20} {median(seconds):6.2f} s  ratio {median(ratios):.2f}")


if __name__ == "__main__":
    main()
