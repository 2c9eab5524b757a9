"""Files: nested state with tensors, and writing that never leaves half a file."""

from typing import Any

from rushlight.io.files import replacing, write_atomic
from rushlight.io.state import load, save


def __getattr__(name: str) -> Any:
    """The reader of PyTorch's files loads when it is first used."""
    if name == "load_torch":
        from rushlight.io.torch_file import load_torch

        return load_torch
    raise AttributeError(f"module 'rushlight.io' has no attribute {name!r}")
