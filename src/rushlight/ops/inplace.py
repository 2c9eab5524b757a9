"""Operations that change a tensor in place.

Each computes the new value with the ordinary operation and writes it into the tensor's memory,
whose version moves on, so a backward pass that saved the old value raises. A leaf that requires
grad is changed under `no_grad` only; a tensor that shares memory with a recorded view cannot be
changed while recording.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rushlight import kernels
from rushlight.autograd import (
    changed_in_place,
    is_grad_enabled,
    new_tensor,
    share_version,
    total_versions,
)
from rushlight.errors import DtypeError, GraphError, ShapeError
from rushlight.ops import elementwise
from rushlight.ops.convert import TensorLike, as_tensor, host, is_real, to_dtype
from rushlight.ops.shape import clone
from rushlight.random import Generator, current

if TYPE_CHECKING:
    from rushlight.tensor import Tensor


def _write(name: str, x: Tensor, value: Tensor) -> Tensor:
    """Make x's memory hold value, and x's node value's."""
    if value.array.shape != x.array.shape:
        raise ShapeError(f"{name}: the result {value.array.shape} does not fit {x.array.shape}")
    if x.array.dtype.kind != "f":
        value = new_tensor(value.array)  # integers have no gradient
    elif value.node is None and value.needs_grad and value.array.dtype == x.array.dtype:
        value = clone(value)  # a leaf: x is not that leaf, but depends on it
    value = to_dtype(value, x.array.dtype)
    recorded = is_grad_enabled() and (x.needs_grad or value.needs_grad)
    if recorded:
        if x.needs_grad and x.node is None:
            raise GraphError(f"{name}: a leaf that requires grad can be changed under no_grad only")
        if x.version is not None and x.version.viewed:
            raise GraphError(
                f"{name}: the tensor shares memory with a view; write x = x.{name[:-1]}(...)"
            )
    kernels.copy_into(x.array, kernels.apart(value.array, x.array))
    if recorded:
        x.node, x.needs_grad = value.node, value.needs_grad
    changed_in_place(x)
    return x


def _in_place(name: str, operation: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def run(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        before = new_tensor(x.array)  # not x, whose node would hold x itself
        before.node, before.needs_grad, before.version = x.node, x.needs_grad, share_version(x)
        value = operation(before, *(before if a is x else a for a in args), **kwargs)
        if value.array.dtype.kind == "f" and x.array.dtype.kind != "f":
            raise DtypeError(f"{name}: {value.array.dtype} does not fit into {x.array.dtype}")
        node = value.node
        if node is not None and any(kept is before for kept in node.saved):
            before.array, before.version = kernels.copy(x.array), None
            node.versions = total_versions(node.saved)
        return _write(name, x, value)

    run.__name__ = name
    run.__doc__ = f"`{name[:-1]}`, in place."
    return run


add_, sub_ = _in_place("add_", elementwise.add), _in_place("sub_", elementwise.sub)
mul_, div_ = _in_place("mul_", elementwise.mul), _in_place("div_", elementwise.div)
pow_, remainder_ = (
    _in_place("pow_", elementwise.pow),
    _in_place("remainder_", elementwise.remainder),
)
floor_divide_, clamp_ = (
    _in_place("floor_divide_", elementwise.floor_divide),
    _in_place("clamp_", elementwise.clamp),
)
masked_fill_ = _in_place("masked_fill_", elementwise.masked_fill)
bitwise_and_, bitwise_or_, bitwise_xor_ = (
    _in_place("bitwise_and_", elementwise.bitwise_and),
    _in_place("bitwise_or_", elementwise.bitwise_or),
    _in_place("bitwise_xor_", elementwise.bitwise_xor),
)


def copy_(x: Tensor, source: TensorLike) -> Tensor:
    """Take over another tensor's values, broadcast and converted."""
    source = as_tensor(source, x.array.dtype)
    kernels.check_fits("copy_", source.array.shape, x.array.shape)
    return _write("copy_", x, elementwise.expand_to(source, x.array.shape))


def fill_(x: Tensor, value: float) -> Tensor:
    """One value everywhere."""
    _refuse_recorded("fill_", x)
    if is_real(x):
        kernels.call(kernels.K.fill, x.array, value)
    else:
        host(x, "fill_").fill(value)
    changed_in_place(x)
    return x


def zero_(x: Tensor) -> Tensor:
    """Zero everywhere."""
    return fill_(x, 0)


def _refuse_recorded(name: str, x: Tensor) -> None:
    if x.needs_grad and is_grad_enabled():
        raise GraphError(f"{name}: the tensor requires grad; change it under no_grad")


def normal_(
    x: Tensor, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Normal numbers."""
    _refuse_recorded("normal_", x)
    state = (generator or current()).state
    kernels.copy_into(
        x.array, kernels.random_normal(x.array.shape, state, mean, std, x.array.dtype)
    )
    changed_in_place(x)
    return x


def uniform_(
    x: Tensor, low: float = 0.0, high: float = 1.0, *, generator: Generator | None = None
) -> Tensor:
    """Uniform numbers in [low, high)."""
    _refuse_recorded("uniform_", x)
    state = (generator or current()).state
    kernels.copy_into(
        x.array, kernels.random_uniform(x.array.shape, state, low, high, x.array.dtype)
    )
    changed_in_place(x)
    return x
