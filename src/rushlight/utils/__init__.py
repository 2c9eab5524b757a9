"""PyTorch's addresses for things that live elsewhere."""

from rushlight.utils import data
