"""Data: sets of samples, the order they are read in, batches, and files of tokens."""

from rushlight.data.collate import default_collate, default_convert
from rushlight.data.dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)
from rushlight.data.fetch import WorkerInfo, get_worker_info
from rushlight.data.loader import DataLoader
from rushlight.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from rushlight.data.tokens import TokenFile, Windows

__all__ = [
    "BatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "TokenFile",
    "WeightedRandomSampler",
    "Windows",
    "WorkerInfo",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "random_split",
]
