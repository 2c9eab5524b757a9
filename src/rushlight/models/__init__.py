"""Whole models, written with the public API only."""

from rushlight.models.cache import KVCache
from rushlight.models.gpt import GPT

__all__ = ["GPT", "KVCache"]
