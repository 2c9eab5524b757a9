"""Making tensors: from data, constant, counted, random."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rushlight import kernels
from rushlight.autograd import TensorBase
from rushlight.compat import device as Device
from rushlight.dtypes import as_dtype, dtype, float32, from_numpy, int64
from rushlight.errors import DtypeError, ShapeError
from rushlight.kernels import Array
from rushlight.ops.convert import TensorLike, as_tensor, host
from rushlight.ops.shape import sizes
from rushlight.random import Generator, current
from rushlight.tensor import Tensor

Dtype = dtype
_NESTED = (TensorBase, list, tuple)


def _finish(array: Array, requires_grad: bool, device: Any = None) -> Tensor:
    if device is not None:
        Device(device)
    result = Tensor(array)
    if requires_grad:
        result.requires_grad = True
    return result


def _copied(array: Array, requires_grad: bool = False, device: Any = None) -> Tensor:
    """A tensor with an array's numbers, in memory of the kernels'."""
    return _finish(kernels.copy(array), requires_grad, device)


def tensor(
    data: Any, *, dtype: Dtype | None = None, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """A tensor with a copy of data: numbers, nested lists, a NumPy array or a tensor.

    Python floats give float32, integers int64, booleans bool; arrays keep their dtype.
    Raises: ShapeError for ragged lists, TypeError for data without a tensor dtype.
    """
    if isinstance(data, TensorBase):
        array = data.array
    elif isinstance(data, np.ndarray | np.generic):
        array = np.asarray(data)
    else:
        array = _from_lists(data, as_dtype(dtype or float32).numpy)
    if dtype is not None:
        return _finish(kernels.cast(array, as_dtype(dtype).numpy), requires_grad, device)
    from_numpy(array.dtype)
    return _copied(array, requires_grad, device)


def _from_lists(data: Any, wanted: np.dtype[Any]) -> Array:
    try:
        array = np.array(_unwrapped(data))
    except ValueError as error:
        raise ShapeError(f"tensor: the lists are ragged: {error}") from None
    return array.astype(np.float32) if array.dtype == np.float64 != wanted else array


def _unwrapped(data: Any) -> Any:
    """Nested lists with arrays in the place of tensors."""
    if isinstance(data, TensorBase):
        return host(data, "tensor")
    if not isinstance(data, list | tuple):
        return data
    return [_unwrapped(x) if isinstance(x, _NESTED) else x for x in data]


def from_numpy_array(array: Array) -> Tensor:
    """A tensor that shares a NumPy array's memory."""
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy: expected an array, got {type(array).__name__}")
    from_numpy(array.dtype)
    return Tensor(array)


def full(
    size: Any,
    fill_value: float,
    *,
    dtype: Dtype | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """One value everywhere; the value decides the dtype unless one is given."""
    kind = as_dtype(dtype or type(np.asarray(fill_value).item()))
    return _filled(sizes((size,)), fill_value, kind, requires_grad, device)


def _filled(
    shape: tuple[int, ...], value: float, kind: Dtype, requires_grad: bool, device: Any
) -> Tensor:
    if kind.numpy in kernels.KERNEL_DTYPES:
        return _finish(kernels.full(shape, value, kind.numpy), requires_grad, device)
    return _finish(np.full(shape, value, kind.numpy), requires_grad, device)


def zeros(
    *size: Any, dtype: Dtype = float32, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Zeros."""
    return _filled(sizes(size), 0, as_dtype(dtype), requires_grad, device)


def ones(
    *size: Any, dtype: Dtype = float32, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Ones."""
    return _filled(sizes(size), 1, as_dtype(dtype), requires_grad, device)


def empty(
    *size: Any, dtype: Dtype = float32, device: Any = None, requires_grad: bool = False
) -> Tensor:
    """Memory with whatever it holds."""
    kind = as_dtype(dtype).numpy
    known = kind in kernels.KERNEL_DTYPES
    array = kernels.empty(sizes(size), kind) if known else np.empty(sizes(size), kind)
    return _finish(array, requires_grad, device)


def zeros_like(x: Tensor, *, dtype: Dtype | None = None, requires_grad: bool = False) -> Tensor:
    """Zeros of x's shape and dtype."""
    return zeros(x.shape, dtype=dtype or x.dtype, requires_grad=requires_grad)


def ones_like(x: Tensor, *, dtype: Dtype | None = None, requires_grad: bool = False) -> Tensor:
    """Ones of x's shape and dtype."""
    return ones(x.shape, dtype=dtype or x.dtype, requires_grad=requires_grad)


def empty_like(x: Tensor, *, dtype: Dtype | None = None, requires_grad: bool = False) -> Tensor:
    """Memory of x's shape and dtype."""
    return empty(x.shape, dtype=dtype or x.dtype, requires_grad=requires_grad)


def full_like(x: Tensor, fill_value: float, *, dtype: Dtype | None = None) -> Tensor:
    """One value, in x's shape and dtype."""
    return full(x.shape, fill_value, dtype=dtype or x.dtype)


def arange(
    start: float,
    end: float | None = None,
    step: float = 1,
    *,
    dtype: Dtype | None = None,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Numbers from start by step, below end; int64 when all three are integers, else float32."""
    if end is None:
        start, end = 0, start
    if step == 0 or not math.isfinite(start) or not math.isfinite(end):
        raise ValueError(f"arange: cannot count from {start} to {end} by {step}")
    whole = all(isinstance(n, int | np.integer) for n in (start, end, step))
    kind = as_dtype(dtype) if dtype is not None else int64 if whole else float32
    return _copied(np.arange(start, end, step).astype(kind.numpy), requires_grad, device)


def linspace(
    start: float, end: float, steps: int, *, dtype: Dtype = float32, requires_grad: bool = False
) -> Tensor:
    """`steps` evenly spaced numbers from start to end, both included."""
    return _copied(np.linspace(start, end, steps, dtype=as_dtype(dtype).numpy), requires_grad)


def eye(n: int, m: int | None = None, *, dtype: Dtype = float32) -> Tensor:
    """Ones on the diagonal, zeros elsewhere."""
    return _copied(np.eye(n, m, dtype=as_dtype(dtype).numpy))


# ---- random ----


def _state(generator: Generator | None) -> Array:
    return (generator or current()).state


def _real(name: str, kind: Dtype) -> Any:
    kind = as_dtype(kind)
    if kind.numpy not in (kernels.FLOAT32, kernels.FLOAT64):
        raise DtypeError(f"{name}: dtype must be float32 or float64, got {kind}")
    return kind.numpy


def rand(
    *size: Any,
    generator: Generator | None = None,
    dtype: Dtype = float32,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Uniform numbers in [0, 1)."""
    kind = _real("rand", dtype)
    out = kernels.random_uniform(sizes(size), _state(generator), 0.0, 1.0, kind)
    return _finish(out, requires_grad, device)


def randn(
    *size: Any,
    generator: Generator | None = None,
    dtype: Dtype = float32,
    device: Any = None,
    requires_grad: bool = False,
) -> Tensor:
    """Normal numbers, mean 0 and deviation 1."""
    kind = _real("randn", dtype)
    out = kernels.random_normal(sizes(size), _state(generator), 0.0, 1.0, kind)
    return _finish(out, requires_grad, device)


def rand_like(x: Tensor) -> Tensor:
    """Uniform numbers in x's shape and dtype."""
    return rand(x.shape, dtype=x.dtype)


def randn_like(x: Tensor) -> Tensor:
    """Normal numbers in x's shape and dtype."""
    return randn(x.shape, dtype=x.dtype)


def randint(
    low: int,
    high: Any = None,
    size: Any = None,
    *,
    generator: Generator | None = None,
    dtype: Dtype = int64,
    device: Any = None,
) -> Tensor:
    """Uniform integers from low up to, but not including, high; 0 is the default low."""
    if size is None:
        low, high, size = 0, low, high
    if size is None or high is None:
        raise TypeError("randint: expected randint(high, size) or randint(low, high, size)")
    out = kernels.random_integers(sizes((size,)), _state(generator), int(low), int(high))
    kind = as_dtype(dtype).numpy
    return _finish(out if kind == out.dtype else kernels.cast(out, kind), False, device)


def randperm(n: int, *, generator: Generator | None = None) -> Tensor:
    """The integers 0 to n - 1 in random order."""
    kernels.on_host("randperm")
    keys = kernels.random_uniform((n,), _state(generator), 0.0, 1.0, kernels.FLOAT64)
    return _copied(np.argsort(keys, kind="stable"))


def multinomial(
    input: TensorLike,
    num_samples: int,
    replacement: bool = False,
    *,
    generator: Generator | None = None,
) -> Tensor:
    """Indices drawn with probability proportional to input.  (N,) or (B, N) -> (n,) or (B, n).

    Raises: ValueError for negative, non-finite or all-zero rows, or too few to draw from.
    """
    weights = host(as_tensor(input), "multinomial").astype(np.float64)
    rows = np.atleast_2d(weights)
    if weights.ndim not in (1, 2) or rows.shape[-1] == 0:
        raise ShapeError(f"multinomial: expected (N,) or (B, N), got {weights.shape}")
    if not np.isfinite(rows).all() or (rows < 0).any() or (rows.sum(-1) <= 0).any():
        raise ValueError("multinomial: weights must be finite, not negative, and not all zero")
    if num_samples < 0:
        raise ValueError(f"multinomial: num_samples must not be negative, got {num_samples}")
    if not replacement and num_samples > np.count_nonzero(rows, -1).min():
        raise ValueError(f"multinomial: too few weights for {num_samples} without replacement")
    state = _state(generator)
    if replacement:
        u = kernels.random_uniform((len(rows), num_samples), state, 0.0, 1.0, kernels.FLOAT64)
        both = zip(np.cumsum(rows, -1), u, strict=True)
        out = np.stack([np.searchsorted(edges, x * edges[-1], "right") for edges, x in both])
        out = np.minimum(out, rows.shape[-1] - 1)
    else:  # the largest of log(weight) + Gumbel noise, n of them
        u = kernels.random_uniform(rows.shape, state, 0.0, 1.0, kernels.FLOAT64)
        with np.errstate(divide="ignore"):
            keys = np.log(rows) - np.log(-np.log(u))
        out = np.argsort(-keys, -1, kind="stable")[:, :num_samples]
    return _copied(out.astype(np.int64).reshape((*weights.shape[:-1], num_samples)))
