"""Module: parameters, buffers and child modules found by attribute, and their state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, cast

from rushlight.autograd import changed_in_place
from rushlight.dtypes import float32, float64
from rushlight.errors import DtypeError
from rushlight.kernels import FLOAT32, FLOAT64, contiguous, copy_into
from rushlight.ops.convert import as_tensor, to_dtype
from rushlight.ops.shape import conversion
from rushlight.tensor import Tensor


class Parameter(Tensor):
    """A tensor that a module trains: a leaf that requires grad unless told otherwise."""

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        super().__init__(contiguous(as_tensor(data).array))
        self.requires_grad = requires_grad

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        copied = super().__deepcopy__(memo)
        copied.grad = None
        return cast("Parameter", copied)


class Buffer(Tensor):
    """A tensor that belongs to a module's state but is not trained."""

    __slots__ = ()

    def __init__(self, data: Any, *, persistent: bool = True) -> None:
        super().__init__(as_tensor(data).array)
        self.persistent = persistent


class _Transient(Buffer):
    """The kind of a buffer that stays out of the state dict."""

    __slots__ = ()


class LoadResult(NamedTuple):
    """What `load_state_dict` found missing in the state and unexpected in it."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module:
    """Base class of every network.

    Assign parameters, buffers and modules as attributes in `__init__`, compute in `forward`.
    """

    training: bool
    _members: dict[str, type]  # of which kind the attribute of a name is: one of _KINDS

    def __init__(self) -> None:
        self.__dict__.update(_members={}, training=True)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; every subclass writes its own."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What `forward` gives."""
        return self.forward(*args, **kwargs)

    # ---- attributes ----

    def __setattr__(self, name: str, value: Any) -> None:
        kind = next((kind for kind in _KINDS if isinstance(value, kind)), None)
        if isinstance(value, Buffer) and not value.persistent:
            kind = _Transient
        known = self.__dict__.get("_members", {}).get(name)
        if kind is not None:
            self._register(name, value, kind)
        elif known and value is not None and not _fits(value, known):
            raise TypeError(f"{name!r} must be a {known.__name__}, got {type(value).__name__}")
        else:
            object.__setattr__(self, name, value)

    def __copy__(self) -> Module:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__, _members=dict(self._members))
        return twin

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        self._members.pop(name, None)

    def _register(self, name: str, value: Any, kind: type) -> None:
        if "_members" not in self.__dict__:
            raise AttributeError(f"call super().__init__() before assigning {name!r}")
        shadowed = getattr(type(self), name, None)
        reserved = callable(shadowed) or isinstance(shadowed, property) or name in _RESERVED
        if reserved or name == "" or "." in name:
            raise KeyError(f"{type(self).__name__} cannot have a member named {name!r}")
        if value is not None and not _fits(value, kind):
            raise TypeError(f"{name!r} must be a {kind.__name__}, got {type(value).__name__}")
        if value is self:
            raise ValueError(f"{name!r}: a module cannot be its own child")
        self._members[name] = kind
        self.__dict__[name] = value

    def _of(self, kind: type) -> dict[str, Any]:
        """The members of a kind, without those that are None."""
        own = self.__dict__
        return {
            name: own[name]
            for name, its_kind in self._members.items()
            if issubclass(its_kind, kind) and own[name] is not None
        }

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter, or the name of one that is absent."""
        self._register(name, param, Parameter)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a buffer; one that is not persistent stays out of the state dict."""
        self._register(name, tensor, Buffer if persistent else _Transient)

    def register_module(self, name: str, module: Module | None) -> None:
        """Add a child module under a name."""
        self._register(name, module, Module)

    add_module = register_module

    # ---- walking ----

    def named_modules(
        self, memo: set[int] | None = None, prefix: str = ""
    ) -> Iterator[tuple[str, Module]]:
        """This module and all below it, each once, with dotted names."""
        memo = set() if memo is None else memo
        if id(self) in memo:
            return
        memo.add(id(self))
        yield prefix, self
        for name, child in self.named_children():
            yield from child.named_modules(memo, f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly below, with their names."""
        return iter(self._of(Module).items())

    def children(self) -> Iterator[Module]:
        """The modules directly below."""
        return iter(self._of(Module).values())

    def get_submodule(self, target: str) -> Module:
        """The module of a dotted name."""
        module = self
        for part in target.split(".") if target else ():
            child = module._of(Module).get(part)
            if child is None:
                raise AttributeError(f"{type(module).__name__} has no module {part!r}")
            module = child
        return module

    def _named(self, kind: type, prefix: str, recurse: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for path, module in self._paths(prefix) if recurse else [(prefix, self)]:
            for name, value in module._of(kind).items():
                if id(value) not in seen:
                    seen.add(id(value))
                    yield f"{path}.{name}" if path else name, value

    def _paths(self, prefix: str) -> Iterator[tuple[str, Module]]:
        """Like `named_modules`, but a module that stands in two places comes twice."""
        yield prefix, self
        for name, child in self.named_children():
            yield from child._paths(f"{prefix}.{name}" if prefix else name)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Parameters with dotted names; one that is shared comes once, under its first name."""
        return self._named(Parameter, prefix, recurse)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Parameters, each once."""
        return (parameter for _, parameter in self.named_parameters("", recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Buffers with dotted names, each once."""
        return self._named(Buffer, prefix, recurse)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Buffers, each once."""
        return (buffer for _, buffer in self.named_buffers("", recurse))

    # ---- state ----

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        for path, module in self._paths(""):
            prefix = f"{path}." if path else ""
            for name, parameter in module._of(Parameter).items():
                yield prefix + name, parameter
            for name, buffer in module._of(Buffer).items():
                if module._members[name] is Buffer:
                    yield prefix + name, buffer

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and persistent buffers by name, sharing memory; a tied one has both names."""
        return {name: tensor.detach() for name, tensor in self._state()}

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> LoadResult:
        """Copy values in by name.

        strict: names must agree. Raises RuntimeError that lists every missing and unexpected name
        and every shape that differs; the module is unchanged then. A state without one name in
        common with the module is refused in any case.
        """
        return copy_state(type(self).__name__, dict(self._state()), state_dict, strict)

    # ---- modes ----

    def train(self, mode: bool = True) -> Module:
        """Switch training behaviour (dropout) on or off, here and below."""
        for module in self.modules():
            module.training = bool(mode)
        return self

    def eval(self) -> Module:
        """`train(False)`."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Train all parameters, or none."""
        for parameter in self.parameters():
            parameter.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or fill them with zeros."""
        for parameter in self.parameters():
            if set_to_none:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad.zero_()

    def apply(self, function: Callable[[Module], Any]) -> Module:
        """Call a function on every module, children first."""
        for child in self.children():
            child.apply(function)
        function(self)
        return self

    def to(self, *args: Any, **kwargs: Any) -> Module:
        """Convert floating-point parameters and buffers to a dtype, in place."""
        wanted = conversion("to", args, kwargs)
        if wanted is not None and wanted not in (FLOAT32, FLOAT64):
            raise DtypeError(f"to: a module computes in float32 or float64, not in {wanted}")
        for tensor in (*self.parameters(), *self.buffers()):
            own = tensor.array.dtype
            if wanted is not None and own.kind == "f" and own != wanted:
                tensor.array = to_dtype(tensor.detach(), wanted).array
                changed_in_place(tensor)
                if tensor.grad is not None:
                    tensor.grad = to_dtype(tensor.grad.detach(), wanted)
        return self

    def float(self) -> Module:
        """Convert to float32."""
        return self.to(float32)

    def double(self) -> Module:
        """Convert to float64."""
        return self.to(float64)

    def cpu(self) -> Module:
        """The module itself: everything is on the CPU."""
        return self

    def extra_repr(self) -> str:
        """What the module's line in a printed network says in its brackets."""
        return ""

    def __repr__(self) -> str:
        lines = [
            f"({name}): " + repr(child).replace("\n", "\n  ")
            for name, child in self.named_children()
        ]
        head = f"{type(self).__name__}({self.extra_repr()}"
        return head + ")" if not lines else head + "\n  " + "\n  ".join(lines) + "\n)"


_KINDS = (Parameter, Module, Buffer)
_RESERVED = ("training", "_members")


def _fits(value: Any, kind: type) -> bool:
    return isinstance(value, Tensor if issubclass(kind, Buffer) else kind)


def copy_state(
    owner: str, own: Mapping[str, Tensor], saved: Mapping[str, Any], strict: bool = True
) -> LoadResult:
    """Copy saved values into tensors of the same names, or raise as `Module.load_state_dict`."""
    missing = [name for name in own if name not in saved]
    unexpected = [name for name in saved if name not in own]
    arrays = {
        name: as_tensor(saved[name], own[name].array.dtype).array for name in own if name in saved
    }
    wrong = [
        f"{name}: {array.shape} in the state, {own[name].array.shape} in the module"
        for name, array in arrays.items()
        if array.shape != own[name].array.shape
    ]
    nothing = bool(own) and bool(saved) and not arrays
    if wrong or nothing or (strict and (missing or unexpected)):
        raise RuntimeError(_load_report(owner, missing, unexpected, wrong))
    for name, array in arrays.items():
        copy_into(own[name].array, array)
        changed_in_place(own[name])
    return LoadResult(missing, unexpected)


def _load_report(name: str, missing: list[str], unexpected: list[str], wrong: list[str]) -> str:
    parts = [f"load_state_dict: the state does not fit {name}"]
    for title, names in (
        ("missing", missing),
        ("unexpected", unexpected),
        ("shapes differ", wrong),
    ):
        if names:
            parts.append(f"  {title}: {', '.join(names)}")
    return "\n".join(parts)
