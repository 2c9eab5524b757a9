"""Files of tokens, mapped into memory, and the windows that a language model trains on."""

from __future__ import annotations

import mmap
import operator
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rushlight.data.dataset import Dataset, whole_numbers
from rushlight.errors import DtypeError, FormatError
from rushlight.kernels import Array
from rushlight.tensor import Tensor

_FAULT = 64 << 10  # bytes that one touch may make resident: Linux maps the neighbours, too
_LIMIT = 16 << 20  # bytes touched until mapped pages are given back


class _Map:
    """A file in memory, whose pages are given back after every so many bytes."""

    def __init__(self, path: str, item: int) -> None:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size == 0:
                raise FormatError(f"{path}: the file is empty")
            if size % item:
                raise FormatError(f"{path}: {size} bytes are no whole number of {item}-byte tokens")
            self.memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.touched = 0
        self._advise("MADV_RANDOM")

    def touch(self, bytes_read: int) -> None:
        """Count what was read.  Threads may miss each other's counts, which does not matter."""
        self.touched += bytes_read
        if self.touched > _LIMIT and len(self.memory) > _LIMIT:
            self.touched = 0
            self._advise("MADV_DONTNEED")  # they stay in the page cache: coming back is cheap

    def _advise(self, name: str) -> None:
        if hasattr(mmap, name):
            self.memory.madvise(getattr(mmap, name))


class TokenFile:
    """Tokens of a binary file, read where and when they are needed.

    dtype: the integers in the file, such as "uint16". `len`, `tokens[i]` (an int) and
    `tokens[i:j]` (a NumPy int64 array, a copy) are those of a sequence. However large the file and
    however much of it is read, a few megabytes of it are resident at a time. A file that is cut
    while it is mapped ends the process (SIGBUS): replace such files, do not write into them.
    Raises: FileNotFoundError; FormatError for an empty file or one cut inside a token; DtypeError
    for a dtype of anything but integers.
    """

    def __init__(self, path: str | os.PathLike[str], dtype: Any = "uint16") -> None:
        self.path = str(Path(path).absolute())
        self.dtype = np.dtype(dtype)
        if self.dtype.kind not in "iu":
            raise DtypeError(f"TokenFile: tokens are integers, not {self.dtype}")
        self._map = _Map(self.path, self.dtype.itemsize)
        self._array = np.frombuffer(self._map.memory, self.dtype)
        self._start = 0

    def part(self, start: int, stop: int) -> TokenFile:
        """Tokens start up to stop, of the same map.  Raises IndexError when they are not there."""
        if not 0 <= start <= stop <= len(self):
            raise IndexError(f"part: {start} to {stop} does not lie in {len(self)} tokens")
        part = object.__new__(type(self))
        part.path, part.dtype, part._map = self.path, self.dtype, self._map
        part._array, part._start = self._array[start:stop], self._start + start
        return part

    def __len__(self) -> int:
        return len(self._array)

    def __getitem__(self, index: Any) -> Any:
        if not isinstance(index, slice):
            token = int(self._array[index])
            self._map.touch(_FAULT)
            return token
        tokens = self._array[index].astype(np.int64)
        spread = len(tokens) * abs(index.step or 1)
        self._map.touch(_FAULT + spread * self.dtype.itemsize)
        return tokens

    def gather(self, starts: Any, length: int) -> Array:
        """Rows of `length` tokens from each start.  starts: (B,) -> (B, length) int64.

        Raises: IndexError when a row does not lie in the file.
        """
        rows = _gather(self._array, np.asarray(starts), length)
        self._map.touch(len(rows) * (_FAULT + length * self.dtype.itemsize))
        return rows

    def checksum(self) -> int:
        """CRC-32 of the tokens' bytes, which tells whether a file has changed."""
        found, piece = 0, 1 << 20
        for start in range(0, len(self), piece):
            found = zlib.crc32(self._array[start : start + piece].tobytes(), found)
            self._map.touch(piece * self.dtype.itemsize)
        return found

    def __reduce__(self) -> Any:
        """By its path: another process maps the file itself."""
        return _reopened, (self.path, self.dtype.str, self._start, len(self))


def _reopened(path: str, dtype: str, start: int, length: int) -> TokenFile:
    return TokenFile(path, dtype).part(start, start + length)


def _gather(array: Array, starts: Array, length: int) -> Array:
    if starts.size and starts.dtype.kind not in "iu":
        raise DtypeError(f"gather: starts must be integers, got {starts.dtype}")
    if starts.size and (starts.min() < 0 or starts.max() + length > len(array)):
        raise IndexError(
            f"gather: rows of {length} tokens from {starts.min()} to {starts.max()} do not lie in "
            f"{len(array)} tokens"
        )
    rows = np.empty((len(starts), length), np.int64)
    for row, start in zip(rows, starts.tolist(), strict=True):
        row[:] = array[start : start + length]
    return rows


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """All windows of T = context tokens, each with its next tokens.

    tokens: a TokenFile, or integers (N,). Sample i: tokens i*stride up to + T, and the same one
    further, both (T,) int64. Their number is N - T for stride 1; stride=T gives windows that do not
    overlap, for evaluation.
    Raises: ValueError for fewer than T + 1 tokens, or a context or stride below 1.
    """

    def __init__(self, tokens: Any, context: int, stride: int = 1) -> None:
        context, stride = operator.index(context), operator.index(stride)
        if context < 1 or stride < 1:
            raise ValueError(f"Windows: context {context} and stride {stride} must be positive")
        if not isinstance(tokens, TokenFile):
            tokens = tokens.numpy() if isinstance(tokens, Tensor) else np.asarray(tokens)
            if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
                raise DtypeError(
                    f"Windows: tokens must be integers (N,), got {tokens.dtype} {tokens.shape}"
                )
        if len(tokens) < context + 1:
            raise ValueError(
                f"Windows: a context of {context} needs at least {context + 1} tokens, "
                f"got {len(tokens)}"
            )
        self.tokens = tokens
        self.context = context
        self.stride = stride

    def __len__(self) -> int:
        return (len(self.tokens) - self.context - 1) // self.stride + 1

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = self.take([index])
        return x[0], y[0]

    def take(self, indices: Sequence[int]) -> list[Tensor]:
        """The batch of these windows: two (B, T) int64."""
        chosen = whole_numbers(indices)
        if chosen is None:
            raise IndexError(f"Windows: {indices!r:.80} are no whole numbers")
        if chosen.size and not (-len(self) <= chosen.min() and chosen.max() < len(self)):
            raise IndexError(
                f"Windows: index {chosen.min()} or {chosen.max()} of {len(self)} windows"
            )
        starts = chosen % len(self) * self.stride
        if isinstance(self.tokens, TokenFile):
            rows = self.tokens.gather(starts, self.context + 1)  # (B, T + 1)
        else:
            rows = _gather(self.tokens, starts, self.context + 1)
        return [Tensor(rows[:, :-1].copy()), Tensor(rows[:, 1:].copy())]
