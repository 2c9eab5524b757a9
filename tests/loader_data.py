"""Datasets for the tests of the loader."""

import multiprocessing
import threading
import time

import rushlight as rl
from rushlight.data import Dataset, IterableDataset, get_worker_info

FORK = {"multiprocessing_context": "fork"}
KINDS = {
    "none": {},
    "1 thread": {"num_workers": 1},
    "3 threads": {"num_workers": 3, "prefetch_factor": 1},
    "2 processes": {"num_workers": 2, **FORK},
}


class Noisy(Dataset):
    """Samples with random numbers in them."""

    def __init__(self, count=11):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return {"index": i, "noise": rl.rand(2), "name": f"sample {i}"}


class Stream(IterableDataset):
    """0 to count - 1 divided among the workers, with noise."""

    def __init__(self, count=11):
        self.count = count

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(first, self.count, step):
            yield i, rl.rand(1)


class Map(Dataset):
    """A function of the index, so that tests can say what a sample does."""

    def __init__(self, function, count=12):
        self.function, self.count = function, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return self.function(i)


def noisy_collate(samples):
    return [(s if isinstance(s, tuple) else s["index"]) for s in samples], rl.rand(1)


def plain(value):
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value.tolist() if hasattr(value, "tolist") else value


def nothing_left():
    names = [t.name for t in threading.enumerate() if t.name.startswith("rushlight-loader")]
    return not names and not multiprocessing.active_children()


def eventually(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)
