"""How tensors are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rushlight.dtypes import bool_, float32, int64

if TYPE_CHECKING:
    from rushlight.tensor import Tensor


def describe(x: Tensor) -> str:
    """`tensor([...])` with what is not the default: dtype, grad_fn or requires_grad."""
    name = "Parameter containing:\ntensor" if type(x).__name__ == "Parameter" else "tensor"
    body = np.array2string(
        x.array, precision=4, separator=", ", prefix="tensor(", suppress_small=False, threshold=1000
    )
    notes = [body]
    if x.array.size == 0 and x.array.ndim > 1:
        notes.append(f"size={tuple(x.array.shape)}")
    if x.dtype not in (float32, int64, bool_):
        notes.append(f"dtype={x.dtype}")
    if x.node is not None:
        notes.append(f"grad_fn={x.node!r}")
    elif x.needs_grad:
        notes.append("requires_grad=True")
    return f"{name}({', '.join(notes)})"
