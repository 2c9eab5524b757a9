"""Python's side of the door: allocate the output, call the kernel.

Everything here takes and returns NumPy arrays; outputs lie in blocks of the memory pool. What each
kernel computes is written in `csrc/include/rushlight.h`, beside its prototype; the kernels check
shapes, dtypes and indices themselves and raise with their name.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

from rushlight import _core
from rushlight.errors import CompileError, DtypeError, ShapeError

Array: TypeAlias = np.ndarray[Any, Any]
Shape: TypeAlias = tuple[int, ...]

call, empty = _core.call, _core.empty
K = SimpleNamespace(**_core.KERNELS)

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)
INT64, BOOL, UINT64 = np.dtype(np.int64), np.dtype(np.bool_), np.dtype(np.uint64)
KERNEL_DTYPES = (FLOAT32, FLOAT64, INT64, BOOL, UINT64, np.dtype(np.uint16))

_core.setup(
    np.ndarray, KERNEL_DTYPES, (ShapeError, DtypeError, IndexError, ValueError, MemoryError)
)


def check_threads() -> None:
    """Refuse a RUSHLIGHT_NUM_THREADS that is no number of threads."""
    asked = os.environ.get("RUSHLIGHT_NUM_THREADS", "1")
    if not asked.isdigit() or int(asked) < 1:
        raise ValueError(f"RUSHLIGHT_NUM_THREADS={asked}: expected a whole number from 1 on")


def choose_level() -> None:
    """Use the level that RUSHLIGHT_ISA names, or the best that this CPU has."""
    forced = os.environ.get("RUSHLIGHT_ISA")
    if forced and not _core.set_level(forced):
        built = ", ".join(_core.LEVELS)
        raise ValueError(f"RUSHLIGHT_ISA={forced}: not a level of this CPU and build ({built})")
    if not forced:
        any(_core.set_level(name) for name in reversed(_core.LEVELS))


check_threads()
choose_level()


def on_host(name: str) -> None:
    """To be called before NumPy or Python touches the contents of arrays.

    Raises CompileError while this thread records: a replay would not do it again.
    """
    if _core.recording():
        raise CompileError(f"{name}: runs on NumPy, which a recorded step cannot repeat")


# ---- making and copying arrays ----


def full(shape: Shape, value: float, dtype: np.dtype[Any] = FLOAT32) -> Array:
    """An array with one value everywhere."""
    y = empty(shape, dtype)
    if dtype is FLOAT32 or dtype is FLOAT64:
        call(K.fill, y, value)
    else:
        on_host("full")
        y.fill(value)
    return y


def copy(x: Array) -> Array:
    """A contiguous copy, of any dtype."""
    if x.dtype not in KERNEL_DTYPES:
        on_host("copy")
        return np.array(x, order="C")
    y = empty(x.shape, x.dtype)
    copy_into(y, x)
    return y


def copy_into(y: Array, x: Array) -> None:
    """Y = x, with x broadcast to y's shape and converted to its dtype."""
    if x.dtype == y.dtype and x.dtype.kind == "f" and x.dtype.itemsize >= 4:
        call(K.copy, y, x)
    else:
        if _core.recording():  # the message takes longer than a small copy
            on_host(f"copy from {x.dtype} to {y.dtype}")
        np.copyto(y, x, casting="unsafe")


def rows(x: Array, index: Array) -> Array:
    """x[index] along the first axis, index (N,) integers, negative ones from the end; a copy.

    Raises: IndexError.
    """
    y, finish = begin_rows(x, index)
    finish()
    return y


def begin_rows(x: Array, index: Array) -> tuple[Array, Callable[[], None]]:
    """An array for x[index], as of `rows`, and what finishes it.

    Until then idle threads of the pool copy rows, and x must not change.
    """
    on_host("rows")
    if index.dtype == UINT64 and index.size and index.max() >= len(x):
        raise IndexError(f"index {index.max()} is out of bounds for axis 0 with size {len(x)}")
    index = np.ascontiguousarray(index, INT64)
    shape = (len(index), *x.shape[1:])
    y = empty(shape, x.dtype) if x.dtype in KERNEL_DTYPES else np.empty(shape, x.dtype)
    whole = x if x[:1].flags.c_contiguous else np.ascontiguousarray(x)
    return y, _core.rows(y, whole, index).finish


def apart(x: Array, y: Array) -> Array:
    """The array itself, or a copy where it may share memory with y, which is to be written."""
    return copy(x) if np.may_share_memory(x, y) else x


def contiguous(x: Array) -> Array:
    """The array itself when it is row-major without gaps, a copy otherwise."""
    return x if x.flags.c_contiguous else copy(x)


def cast(x: Array, dtype: np.dtype[Any]) -> Array:
    """A copy in another dtype."""
    y = empty(x.shape, dtype) if dtype in KERNEL_DTYPES else np.empty(x.shape, dtype)
    copy_into(y, x)
    return y


def expanded(x: Array, shape: Shape) -> Array:
    """X repeated to a shape it broadcasts to, as a read-only view."""
    if x.ndim > 0:
        return np.broadcast_to(x, shape)
    y: Array = np.ndarray(shape, x.dtype, x, 0, (0,) * len(shape))  # a tenth of the time
    y.flags.writeable = False
    return y


# ---- element-wise ----


def _unary(name: str) -> Callable[[Array], Array]:
    kernel = _core.KERNELS[name]

    def run(x: Array) -> Array:
        y = empty(x.shape, x.dtype)
        call(kernel, y, x)
        return y

    return run


def _unary_backward(name: str) -> Callable[[Array, Array], Array]:
    kernel = _core.KERNELS[name]

    def run(g: Array, saved: Array) -> Array:
        gx = empty(saved.shape, saved.dtype)
        call(kernel, gx, g, saved)
        return gx

    return run


def _binary(name: str) -> Callable[[Array, Array], Array]:
    kernel = _core.KERNELS[name]

    def run(x: Array, y: Array) -> Array:
        z = empty(x.shape if x.shape == y.shape else broadcast(name, x.shape, y.shape), x.dtype)
        call(kernel, z, x, y)
        return z

    return run


neg, absolute, sign = _unary("neg"), _unary("abs"), _unary("sign")
exp, log, sqrt, sin, cos = (_unary(n) for n in ("exp", "log", "sqrt", "sin", "cos"))
erf, tanh, sigmoid, relu = (_unary(n) for n in ("erf", "tanh", "sigmoid", "relu"))
silu, gelu, gelu_tanh = _unary("silu"), _unary("gelu"), _unary("gelu_tanh")
tanh_backward, sigmoid_backward = (
    _unary_backward("tanh_backward"),
    _unary_backward("sigmoid_backward"),
)
relu_backward, silu_backward = _unary_backward("relu_backward"), _unary_backward("silu_backward")
gelu_backward, gelu_tanh_backward = (
    _unary_backward("gelu_backward"),
    _unary_backward("gelu_tanh_backward"),
)
add, sub, mul, div = _binary("add"), _binary("sub"), _binary("mul"), _binary("div")
power, maximum, minimum = _binary("pow"), _binary("maximum"), _binary("minimum")


@functools.lru_cache(1024)
def broadcast(name: str, *shapes: Shape) -> Shape:
    """The common shape under NumPy's rules.  Raises ShapeError naming the operation."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        listed = " and ".join(map(str, shapes))
        rule = "aligned at the last axis, sizes must be equal or 1"
        raise ShapeError(f"{name}: shapes {listed} do not broadcast: {rule}") from None


def check_fits(name: str, shape: Shape, target: Shape) -> None:
    """Raise ShapeError, naming the operation, unless shape broadcasts to target as it is."""
    if broadcast(name, shape, target) != target:
        raise ShapeError(f"{name}: shape {shape} does not fit into {target}")


def where(condition: Array, x: Array, y: Array) -> Array:
    """X where condition holds, y elsewhere."""
    z = empty(broadcast("where", condition.shape, x.shape, y.shape), x.dtype)
    call(K.where, z, condition, x, y)
    return z


def accumulate(y: Array, x: Array) -> None:
    """Y += x, x broadcast to y."""
    call(K.accumulate, y, x)


# ---- reductions and rows ----


def _keep(shape: Shape, axes: Sequence[int]) -> Shape:
    return tuple(1 if d in axes else n for d, n in enumerate(shape))


def sum_axes(x: Array, axes: Sequence[int], scale: float = 1.0) -> Array:
    """Scale * sum over the axes, which stay as 1."""
    y = empty(_keep(x.shape, axes), x.dtype)
    call(K.sum, y, x, scale)
    return y


def amax(x: Array, axes: Sequence[int]) -> Array:
    """The largest over the axes, which stay as 1."""
    y = empty(_keep(x.shape, axes), x.dtype)
    call(K.amax, y, x)
    return y


def amin(x: Array, axes: Sequence[int]) -> Array:
    """The smallest over the axes, which stay as 1."""
    y = empty(_keep(x.shape, axes), x.dtype)
    call(K.amin, y, x)
    return y


softmax, log_softmax = _unary("softmax"), _unary("log_softmax")
softmax_backward = _unary_backward("softmax_backward")
log_softmax_backward = _unary_backward("log_softmax_backward")


def logsumexp(x: Array) -> Array:
    """log(sum(exp(x))) over the last axis."""
    y = empty(x.shape[:-1], x.dtype)
    call(K.logsumexp, y, x)
    return y


def logsumexp_backward(g: Array, x: Array, y: Array) -> Array:
    """Gradient of `logsumexp`."""
    gx = empty(x.shape, x.dtype)
    call(K.logsumexp_backward, gx, g, x, y)
    return gx


def _rows(x: Array) -> int:
    return int(x.size // max(x.shape[-1], 1))


def layer_norm(
    x: Array, weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array]:
    """The normalised rows, and their mean and reciprocal deviation (R, 2)."""
    y, stats = empty(x.shape, x.dtype), empty((_rows(x), 2), x.dtype)
    call(K.layer_norm, y, stats, x, weight, bias, eps)
    return y, stats


def layer_norm_backward(
    g: Array, x: Array, stats: Array, weight: Array | None, with_bias: bool
) -> tuple[Array, Array | None, Array | None]:
    """Gradients of x, weight, bias; those of absent parameters are None."""
    gx = empty(x.shape, x.dtype)
    gweight = None if weight is None else empty(weight.shape, x.dtype)
    gbias = empty(x.shape[-1:], x.dtype) if with_bias else None
    call(K.layer_norm_backward, gx, gweight, gbias, g, x, stats, weight, None)
    return gx, gweight, gbias


def rms_norm(x: Array, weight: Array | None, eps: float) -> tuple[Array, Array]:
    """The normalised rows, and 0 and the reciprocal root mean square (R, 2)."""
    y, stats = empty(x.shape, x.dtype), empty((_rows(x), 2), x.dtype)
    call(K.rms_norm, y, stats, x, weight, eps)
    return y, stats


def rms_norm_backward(
    g: Array, x: Array, stats: Array, weight: Array | None
) -> tuple[Array, Array | None]:
    """Gradients of x and weight."""
    gx = empty(x.shape, x.dtype)
    gweight = None if weight is None else empty(weight.shape, x.dtype)
    call(K.rms_norm_backward, gx, gweight, g, x, stats, weight, None)
    return gx, gweight


# ---- embedding, matrix product, attention ----


def embedding(table: Array, index: Array) -> Array:
    """table[index]."""
    y = empty((*index.shape, table.shape[1]), table.dtype)
    call(K.embedding, y, table, index)
    return y


def embedding_backward(table: Array, g: Array, index: Array, skip: int = -1) -> None:
    """table[index] += g, repeated indices add up."""
    call(K.embedding_backward, table, g, index, skip)


# rl_activation of the header
ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}


def gemm(
    c: Array,
    a: Array,
    b: Array,
    *,
    bias: Array | None = None,
    residual: Array | None = None,
    pre: Array | None = None,
    row_sum: Array | None = None,
    activation: str | None = None,
    accumulate: bool = False,
) -> Array:
    """C = activation(A B + bias) + residual, or c += …; leading axes are batches that broadcast."""
    call(
        K.gemm, c, a, b, bias, residual, pre, row_sum, 1.0, ACTIVATIONS[activation], int(accumulate)
    )
    return c


def attention(
    q: Array,
    k: Array,
    v: Array,
    keep: Array | None,
    bias: Array | None,
    scale: float,
    causal: bool,
    state: Array | None,
    p: float,
) -> tuple[Array, Array, Array | None]:
    """Output (B, H, T, K), laid out as (B, T, H, K), and log-sum-exp of the scores (B, H, T).

    The third is the generator's state that dropout began with, None without a state.
    """
    batch, heads, time, _ = q.shape
    o = empty((batch, time, heads, v.shape[3]), q.dtype).transpose(0, 2, 1, 3)
    lse = empty((batch, heads, time), q.dtype)
    drawn = None if state is None else empty((2,), UINT64)
    call(K.attention, o, lse, q, k, v, keep, bias, scale, int(causal), state, drawn, p)
    return o, lse, drawn


def attention_backward(
    gq: Array,
    gk: Array,
    gv: Array,
    g: Array,
    q: Array,
    k: Array,
    v: Array,
    o: Array,
    lse: Array,
    keep: Array | None,
    bias: Array | None,
    scale: float,
    causal: bool,
    drawn: Array | None,
    p: float,
) -> None:
    """Write the gradients of q, k, v into the arrays given."""
    options = (scale, int(causal), drawn, p)
    call(K.attention_backward, gq, gk, gv, g, q, k, v, o, lse, keep, bias, *options)


# ---- losses ----


def cross_entropy(
    logits: Array, target: Array, ignore_index: int, mean: bool
) -> tuple[Array, Array, Array, Array]:
    """Loss per row (R,), what the gradient needs (R, 2), sum or mean (1,), rows counted (1,)."""
    rows, dtype = logits.shape[0], logits.dtype
    loss, log_total = empty((rows,), dtype), empty((rows, 2), dtype)
    reduced, valid = empty((1,), dtype), empty((1,), dtype)
    call(K.cross_entropy, loss, log_total, reduced, valid, logits, target, ignore_index, int(mean))
    return loss, log_total, reduced, valid


def cross_entropy_backward(
    g: Array,
    logits: Array,
    target: Array,
    log_total: Array,
    divide: Array | None,
    ignore_index: int,
    out: Array | None = None,
) -> Array:
    """Gradient of the logits; `out` may be the logits themselves."""
    glogits = empty(logits.shape, logits.dtype) if out is None else out
    call(K.cross_entropy_backward, glogits, g, logits, target, log_total, divide, ignore_index)
    return glogits


# ---- random numbers ----


def random_uniform(
    shape: Shape, state: Array, low: float, high: float, dtype: np.dtype[Any]
) -> Array:
    """Uniform numbers in [low, high)."""
    y = empty(shape, dtype)
    call(K.random_uniform, y, state, low, high)
    return y


def random_normal(
    shape: Shape, state: Array, mean: float, std: float, dtype: np.dtype[Any]
) -> Array:
    """Normal numbers."""
    y = empty(shape, dtype)
    call(K.random_normal, y, state, mean, std)
    return y


def random_integers(shape: Shape, state: Array, low: int, high: int) -> Array:
    """Integers in [low, high), int64."""
    y = empty(shape, INT64)
    call(K.random_integers, y, state, low, high)
    return y


def dropout(x: Array, state: Array, p: float) -> tuple[Array, Array]:
    """The output and the mask of kept elements."""
    y, keep = empty(x.shape, x.dtype), empty(x.shape, BOOL)
    call(K.dropout, y, keep, x, state, p)
    return y, keep


def dropout_backward(g: Array, keep: Array, p: float) -> Array:
    """Gradient of `dropout`."""
    gx = empty(g.shape, g.dtype)
    call(K.dropout_backward, gx, g, keep, p)
    return gx
