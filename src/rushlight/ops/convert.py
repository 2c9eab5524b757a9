"""From what a user passes to tensors: scalars, arrays, promotion, and the way out to NumPy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rushlight import kernels
from rushlight.autograd import TensorBase, new_tensor, record
from rushlight.dtypes import from_numpy
from rushlight.errors import DtypeError
from rushlight.kernels import FLOAT32, FLOAT64, INT64, Array

if TYPE_CHECKING:
    from rushlight.tensor import Tensor

TensorLike: TypeAlias = "Tensor | Array | float | int | bool | list[Any] | tuple[Any, ...]"
_SCALARS = (float, int, bool, np.generic)


def as_tensor(x: TensorLike, real: np.dtype[Any] = FLOAT32) -> Tensor:
    """X as a Tensor, without a copy where it is one or an array.

    Python floats become float64 where `real` is that, float32 otherwise.
    """
    if isinstance(x, TensorBase):
        return x
    if isinstance(x, np.ndarray):
        from_numpy(x.dtype)
        return new_tensor(x)
    array = np.asarray(x)
    if array.dtype == FLOAT64 and real != FLOAT64:
        array = array.astype(FLOAT32)
    from_numpy(array.dtype)
    return new_tensor(array)


def as_real(x: TensorLike) -> Tensor:
    """`as_tensor`, with integers converted to float32."""
    x = as_tensor(x)
    if x.array.dtype.kind != "f":
        return new_tensor(kernels.cast(x.array, FLOAT32))
    return x


def is_real(x: TensorBase) -> bool:
    """Whether the kernels compute with it: float32 or float64."""
    return (
        x.array.dtype is FLOAT32 or x.array.dtype is FLOAT64 or x.array.dtype in (FLOAT32, FLOAT64)
    )


def host(x: TensorBase, name: str) -> Array:
    """The array of x for an operation that NumPy carries out: the one way out of the kernels.

    Raises CompileError while a step is being recorded.
    """
    kernels.on_host(name)
    return x.array


def pair(x: TensorLike, y: TensorLike) -> tuple[Tensor, Tensor]:
    """Two operands with one dtype.

    A Python or NumPy scalar takes the tensor's dtype (an integer tensor and a fraction give
    float32). Tensors promote as in PyTorch: floating point over integer, then the wider; one
    without axes gives way to one with axes of the same kind.
    """
    if isinstance(x, TensorBase) and isinstance(y, TensorBase):
        if x.array.dtype == y.array.dtype:
            return x, y
        return promote(x, y)
    if isinstance(y, _SCALARS):
        x = as_tensor(x)
        return _with_scalar(x, y)
    if isinstance(x, _SCALARS):
        y, x = _with_scalar(as_tensor(y), x)
        return x, y
    if isinstance(x, TensorBase):
        return pair(x, as_tensor(y, x.array.dtype))
    y = as_tensor(y)
    return pair(as_tensor(x, y.array.dtype), y)


def _with_scalar(x: Tensor, scalar: Any) -> tuple[Tensor, Tensor]:
    dtype = x.array.dtype
    if dtype.kind != "f" and isinstance(scalar, float | np.floating):
        x, dtype = to_dtype(x, FLOAT32), FLOAT32
    elif dtype.kind == "b" and not isinstance(scalar, bool | np.bool_):
        x, dtype = to_dtype(x, INT64), INT64
    try:
        return x, new_tensor(np.array(scalar, dtype))
    except OverflowError:
        raise DtypeError(f"{scalar} does not fit {from_numpy(dtype)}") from None


def promote(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Convert one of two tensors of different dtypes; see `pair`."""
    dtype = promoted(x.array, y.array)
    return to_dtype(x, dtype), to_dtype(y, dtype)


def promoted(x: Array, y: Array) -> np.dtype[Any]:
    """The dtype in which x and y meet."""
    x_kind, y_kind = _KINDS[x.dtype.kind], _KINDS[y.dtype.kind]
    if (x.ndim == 0) != (y.ndim == 0):
        scalar, tensor = (x, y) if x.ndim == 0 else (y, x)
        if _KINDS[scalar.dtype.kind] <= _KINDS[tensor.dtype.kind]:
            x = y = tensor
    if x_kind != y_kind:
        x = y = x if x_kind > y_kind else y
    return np.promote_types(x.dtype, y.dtype)


_KINDS = {"b": 0, "u": 1, "i": 1, "f": 2}  # truth values, integers, fractions


def to_dtype(x: Tensor, dtype: np.dtype[Any]) -> Tensor:
    """X in another NumPy dtype, differentiable between floating-point ones; x itself when it is."""
    source = x.array.dtype
    if source == dtype:
        return x
    out = kernels.cast(x.array, dtype)
    if dtype.kind != "f":
        return new_tensor(out)
    return record("to", out, (x,), lambda g: (to_dtype(g, source),), attrs={"dtype": dtype.name})
