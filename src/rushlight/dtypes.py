"""Element types, under PyTorch's names."""

from __future__ import annotations

import numpy as np

from rushlight.errors import DtypeError


class dtype:
    """An element type: its name, size in bytes, and the NumPy type that stores it."""

    __slots__ = ("is_floating_point", "itemsize", "name", "numpy")

    def __init__(
        self, name: str, storage: type[np.generic], is_floating_point: bool = False
    ) -> None:
        self.name = name
        self.numpy = np.dtype(storage)
        self.itemsize = self.numpy.itemsize
        self.is_floating_point = is_floating_point

    def __repr__(self) -> str:
        return f"rushlight.{self.name}"

    def __reduce__(self) -> str:
        return self.name  # pickled and copied by name: there is one object per type


float64 = double = dtype("float64", np.float64, True)
float32 = dtype("float32", np.float32, True)
float16 = half = dtype("float16", np.float16, True)
bfloat16 = dtype("bfloat16", np.uint16, True)  # stored as 16-bit words that only kernels may touch
int64 = long = dtype("int64", np.int64)
int32 = dtype("int32", np.int32)
int16 = short = dtype("int16", np.int16)
int8 = dtype("int8", np.int8)
uint8 = dtype("uint8", np.uint8)
bool_ = dtype("bool", np.bool_)

_FROM_NUMPY = {
    d.numpy: d for d in (float64, float32, float16, int64, int32, int16, int8, uint8, bool_)
}
_FROM_PYTHON = {float: float32, int: int64, bool: bool_}


def from_numpy(numpy_dtype: np.dtype[np.generic]) -> dtype:
    """The element type of a NumPy array.  Raises TypeError for complex, strings, objects."""
    found = _FROM_NUMPY.get(numpy_dtype)
    if found is None:
        known = ", ".join(d.name for d in _FROM_NUMPY.values())
        raise TypeError(f"arrays of {numpy_dtype} have no tensor dtype; expected one of {known}")
    return found


def as_dtype(wanted: dtype | type) -> dtype:
    """A dtype from a dtype or from Python's float, int, bool.

    Raises TypeError for anything else, DtypeError for bfloat16, of which there are no tensors yet.
    """
    if wanted is bfloat16:
        raise DtypeError("bfloat16 tensors are not supported yet; use float32")
    if isinstance(wanted, dtype):
        return wanted
    found = _FROM_PYTHON.get(wanted)
    if found is None:
        raise TypeError(f"expected a dtype such as rushlight.float32, got {wanted!r}")
    return found
