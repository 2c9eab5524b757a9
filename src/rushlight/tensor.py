"""Tensor: storage, operators and methods; the methods are the operations themselves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from rushlight import autograd, dtypes, kernels, ops, printing
from rushlight.autograd import TensorBase, alias, changed_in_place
from rushlight.compat import device
from rushlight.errors import DeviceError, DtypeError, GraphError, ShapeError
from rushlight.kernels import Array
from rushlight.ops.convert import host
from rushlight.ops.shape import axis


class Size(tuple[int, ...]):
    """A shape: a tuple that knows its number of elements."""

    __slots__ = ()

    def numel(self) -> int:
        """The product of the sizes."""
        return math.prod(self)

    def __repr__(self) -> str:
        return f"rushlight.Size({list(self)})"


def _comparable(compare: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Any]:
    """The operator of a comparison, which leaves to Python what holds no numbers, such as None."""

    def run(x: Tensor, y: Any) -> Any:
        return NotImplemented if y is None or isinstance(y, str) else compare(x, y)

    return run


class Tensor(TensorBase):
    """A multi-dimensional array of one dtype that can record how it was made.

    Make one with `rushlight.tensor`, `zeros`, `randn` and the like. Every method is the function of
    the same name; what it does is written there.
    """

    __slots__ = ()
    __array_priority__ = 1000  # NumPy's scalars and arrays on the left of an operator give way

    # ---- what it is ----

    @property
    def shape(self) -> Size:
        """Sizes of the axes."""
        return Size(self.array.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.array.ndim

    @property
    def dtype(self) -> dtypes.dtype:
        """Element type."""
        return dtypes.from_numpy(self.array.dtype)

    @property
    def device(self) -> device:
        """Always the CPU."""
        return device("cpu")

    @property
    def requires_grad(self) -> bool:
        """Whether `backward` brings a gradient here. Raises DtypeError when set on integers."""
        return self.needs_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if self.node is not None:
            if value:
                return
            raise GraphError("requires_grad can be changed on leaves only; use .detach()")
        if value and not self.dtype.is_floating_point:
            raise DtypeError(f"only floating-point tensors can require grad, this is {self.dtype}")
        self.needs_grad = bool(value)

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation made it."""
        return self.node is None

    @property
    def grad_fn(self) -> autograd.Node | None:
        """The recorded operation that made it."""
        return self.node

    @property
    def data(self) -> Tensor:
        """The same memory outside the graph."""
        return alias(self)

    @data.setter
    def data(self, value: Tensor) -> None:
        if value.array.shape != self.array.shape or value.array.dtype != self.array.dtype:
            raise ShapeError(
                f"data: {tuple(value.shape)} {value.dtype} cannot replace "
                f"{tuple(self.shape)} {self.dtype}"
            )
        self.array = value.array
        changed_in_place(self)

    T = property(ops.transposed)
    mT = property(ops.matrix_transposed)

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one axis."""
        return self.shape if dim is None else self.shape[axis("size", dim, self.array.ndim)]

    def dim(self) -> int:
        """Number of axes."""
        return self.array.ndim

    def numel(self) -> int:
        """Number of elements."""
        return self.array.size

    def element_size(self) -> int:
        """Bytes per element."""
        return self.array.itemsize

    def stride(self) -> tuple[int, ...]:
        """Elements to step over per axis."""
        return tuple(step // self.array.itemsize for step in self.array.strides)

    def is_contiguous(self) -> bool:
        """Whether the elements lie in row-major order without gaps."""
        return self.array.flags.c_contiguous

    def is_floating_point(self) -> bool:
        """Whether the dtype has fractions."""
        return self.dtype.is_floating_point

    # ---- leaving the framework ----

    def numpy(self) -> Array:
        """The NumPy array that shares this memory. Raises GraphError when it requires grad."""
        if self.needs_grad:
            raise GraphError("numpy: the tensor requires grad; use .detach().numpy()")
        return host(self, "numpy")

    def item(self) -> Any:
        """The one element as a Python number."""
        if self.array.size != 1:
            raise ShapeError(f"item: expected one element, shape is {self.array.shape}")
        return host(self, "item").item()

    def tolist(self) -> Any:
        """Nested lists of Python numbers."""
        return host(self, "tolist").tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __index__(self) -> int:
        if self.dtype.is_floating_point:
            raise DtypeError(f"a {self.dtype} tensor is not an index")
        return int(self.item())

    def __len__(self) -> int:
        if self.array.ndim == 0:
            raise TypeError("len() of a tensor without axes")
        return int(self.array.shape[0])

    def __iter__(self) -> Iterator[Tensor]:
        return iter(ops.unbind(self, 0))

    def __contains__(self, value: Any) -> bool:
        return bool((host(self, "in") == value).any())

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.array.ndim == 0 else super().__format__(spec)

    def __repr__(self) -> str:
        return printing.describe(self)

    __hash__ = object.__hash__

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        if self.node is not None:
            raise GraphError("deepcopy: only leaves can be copied; use .detach().clone()")
        copied = object.__new__(type(self))
        TensorBase.__init__(copied, kernels.copy(self.array))
        copied.needs_grad = self.needs_grad
        copied.__dict__.update(self.__dict__)
        memo[id(self)] = copied
        if self.grad is not None:
            copied.grad = Tensor(kernels.copy(self.grad.array))
        return copied

    def __reduce__(self) -> Any:
        raise TypeError("tensors are not pickled: save a state_dict with safetensors")

    # ---- the graph ----

    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: bool = False,
        create_graph: bool = False,
    ) -> None:
        """Add the gradient of this tensor to every leaf it depends on; see `autograd.backward`."""
        autograd.backward(self, gradient, retain_graph=retain_graph, create_graph=create_graph)

    def detach(self) -> Tensor:
        """The same memory, outside the graph."""
        return alias(self)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set `requires_grad` and return self."""
        self.requires_grad = requires_grad
        return self

    def new_zeros(self, *size: Any) -> Tensor:
        """Zeros of this dtype."""
        return Tensor(kernels.full(ops.sizes(size), 0, self.array.dtype))

    def new_ones(self, *size: Any) -> Tensor:
        """Ones of this dtype."""
        return Tensor(kernels.full(ops.sizes(size), 1, self.array.dtype))

    def cuda(self, *_: Any, **__: Any) -> Tensor:
        """There is none: raises DeviceError."""
        raise DeviceError("Rushlight runs on the CPU only")

    # ---- operators ----

    __add__ = __radd__ = add = ops.add
    __sub__ = sub = ops.sub
    __rsub__ = ops.rsub
    __mul__ = __rmul__ = mul = ops.mul
    __truediv__ = div = ops.div
    __rtruediv__ = ops.rdiv
    __pow__ = pow = ops.pow
    __rpow__ = ops.rpow
    __neg__ = neg = ops.neg
    __abs__ = abs = ops.abs
    __floordiv__ = ops.floor_divide
    __mod__ = remainder = ops.remainder
    __matmul__ = matmul = mm = bmm = ops.matmul
    __rmatmul__ = ops.rmatmul
    __eq__, eq = _comparable(ops.eq), ops.eq
    __ne__, ne = _comparable(ops.ne), ops.ne
    __lt__ = lt = ops.lt
    __le__ = le = ops.le
    __gt__ = gt = ops.gt
    __ge__ = ge = ops.ge
    __and__ = __rand__ = bitwise_and = ops.bitwise_and
    __or__ = __ror__ = bitwise_or = ops.bitwise_or
    __xor__ = __rxor__ = bitwise_xor = ops.bitwise_xor
    __invert__ = bitwise_not = ops.bitwise_not
    logical_and, logical_or = ops.logical_and, ops.logical_or
    logical_not = ops.logical_not
    __getitem__ = ops.getitem
    __setitem__ = ops.setitem
    __iadd__ = add_ = ops.add_
    __isub__ = sub_ = ops.sub_
    __imul__ = mul_ = ops.mul_
    __itruediv__ = div_ = ops.div_
    __ifloordiv__ = floor_divide_ = ops.floor_divide_
    __imod__ = remainder_ = ops.remainder_
    __ipow__ = pow_ = ops.pow_
    __iand__ = bitwise_and_ = ops.bitwise_and_
    __ior__ = bitwise_or_ = ops.bitwise_or_
    __ixor__ = bitwise_xor_ = ops.bitwise_xor_

    # ---- methods ----

    exp, log, sqrt, sin, cos = ops.exp, ops.log, ops.sqrt, ops.sin, ops.cos
    tanh, sigmoid, relu, erf = ops.tanh, ops.sigmoid, ops.relu, ops.erf
    square, reciprocal, rsqrt, sign = ops.square, ops.reciprocal, ops.rsqrt, ops.sign
    maximum, minimum, clamp, clip = ops.maximum, ops.minimum, ops.clamp, ops.clamp
    masked_fill, where = ops.masked_fill, ops.where_method
    isnan, isinf, isfinite = ops.isnan, ops.isinf, ops.isfinite

    sum, mean, var, std, norm = ops.sum, ops.mean, ops.var, ops.std, ops.norm
    max, min, amax, amin = ops.max, ops.min, ops.amax, ops.amin
    argmax, argmin, any, all = ops.argmax, ops.argmin, ops.any, ops.all
    softmax, log_softmax, logsumexp = ops.softmax, ops.log_softmax, ops.logsumexp

    view, reshape, view_as = ops.view, ops.reshape_method, ops.view_as
    flatten, unflatten, repeat = ops.flatten, ops.unflatten, ops.repeat
    transpose, swapaxes, permute, t = ops.transpose, ops.transpose, ops.permute_method, ops.t
    squeeze, unsqueeze, expand, expand_as = ops.squeeze, ops.unsqueeze, ops.expand, ops.expand_as
    split, chunk, unbind, narrow = ops.split, ops.chunk, ops.unbind, ops.narrow
    tril, triu, contiguous, clone = ops.tril, ops.triu, ops.contiguous, ops.clone
    gather, index_select, dot = ops.gather, ops.index_select, ops.dot

    to, type_as, cpu = ops.to, ops.type_as, ops.to_cpu
    float, double, long, int, bool = (
        ops.to_float,
        ops.to_double,
        ops.to_long,
        ops.to_int,
        ops.to_bool,
    )

    zero_, fill_, copy_, clamp_ = ops.zero_, ops.fill_, ops.copy_, ops.clamp_
    masked_fill_, normal_, uniform_ = ops.masked_fill_, ops.normal_, ops.uniform_


autograd.set_tensor_class(Tensor)
