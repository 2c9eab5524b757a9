"""What loading costs: training steps on batches of a DataLoader against steps on ready batches.

python bench/loader.py [--only mlp,gpt-nano] [--rounds 15] [--seconds 0.3] [--threads 2]

The three ways (100 batches made before, a loader in the main thread, a loader with one thread of
its own) take turns in one process. A figure is the median over the rounds: milliseconds a step, and
how many of them it waited for its batch.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path
from statistics import median

import numpy as np
from models import build

import rushlight as rl
from rushlight.data import DataLoader, RandomSampler, TensorDataset, TokenFile, Windows

WAYS = ("ready", "main thread", "one worker")
WORKLOADS = ("mlp", "gpt-nano", "gpt-char", "llama-char", "gpt2")
VOCABULARY = {"gpt-nano": 65, "gpt-char": 65, "llama-char": 88, "gpt2": 50257}


def dataset(name: str, batch: tuple[rl.Tensor, ...], folder: Path):
    """Samples of the workload's shapes, many more than fit a cache."""
    if name == "mlp":
        return TensorDataset(rl.randn(20_000, 784), rl.randint(0, 10, (20_000,)))
    tokens = np.random.default_rng(0).integers(0, VOCABULARY[name], 20_000_000)
    path = folder / f"{name}.bin"
    tokens.astype(np.uint16).tofile(path)
    return Windows(TokenFile(path, "uint16"), batch[0].shape[1])


def endless(loader: DataLoader) -> Iterator:
    while True:
        yield from loader


def turn(step: Callable, batches: Iterator, seconds: float) -> tuple[float, float]:
    """Milliseconds a step, and of these the wait for batches."""
    steps = waited = 0
    start = now = time.perf_counter()
    while now - start < seconds or steps < 2:
        batch = next(batches)
        waited += time.perf_counter() - now
        step(batch)
        steps += 1
        now = time.perf_counter()
    return (now - start) / steps * 1e3, waited / steps * 1e3


def measure(name: str, rounds: int, seconds: float, folder: Path) -> None:
    """Print the workload's line."""
    model, optimizer, batch, clip, _ = build(name)

    def step(batch) -> None:
        loss = model(*batch)
        optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            rl.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()

    data = dataset(name, batch, folder)
    sampler = RandomSampler(data, replacement=True, num_samples=10**9)
    loaders = [DataLoader(data, len(batch[0]), sampler=sampler, num_workers=n) for n in (0, 1)]
    ready = list(islice(loaders[0], 100))
    sources = [cycle(ready), *map(endless, loaders)]
    taken = {way: [] for way in WAYS}
    for round_ in range(rounds + 1):
        for way, source in zip(WAYS, sources, strict=True):
            result = turn(step, source, seconds)
            if round_:  # the first warms up
                taken[way].append(result)
    for source in sources[1:]:
        source.close()
    print(f"{name:11}", end="")
    base = [ms for ms, _ in taken[WAYS[0]]]
    for way in WAYS:
        ms, wait = zip(*taken[way], strict=True)
        ratio = median(x / y for x, y in zip(ms, base, strict=True))
        print(f"  {way} {median(ms):9.3f} ms, ratio {ratio:.3f}, wait {median(wait):.4f}", end="")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    rl.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only.split(","):
            measure(name, options.rounds, options.seconds, Path(folder))


if __name__ == "__main__":
    main()
