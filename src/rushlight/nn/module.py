"""Module: parameters, buffers and child modules found by attribute, and their state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from rushlight.autograd import changed_in_place
from rushlight.dtypes import dtype, float32, float64
from rushlight.errors import DeviceError
from rushlight.kernels import copy, copy_into
from rushlight.ops.convert import as_tensor, to_dtype
from rushlight.tensor import Tensor


class Parameter(Tensor):
    """A tensor that a module trains: a leaf that requires grad unless told otherwise."""

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        super().__init__(as_tensor(data).array)
        self.requires_grad = requires_grad


class Buffer(Tensor):
    """A tensor that belongs to a module's state but is not trained."""

    __slots__ = ("persistent",)

    def __init__(self, data: Any, *, persistent: bool = True) -> None:
        super().__init__(as_tensor(data).array)
        self.persistent = persistent


class LoadResult(NamedTuple):
    """What `load_state_dict` found missing in the state and unexpected in it."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module:
    """Base class of every network.

    Assign parameters, buffers and modules as attributes in `__init__`, compute in `forward`.
    """

    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _modules: dict[str, Module | None]

    def __init__(self) -> None:
        for name in ("_parameters", "_buffers", "_modules"):
            object.__setattr__(self, name, {})
        object.__setattr__(self, "_transient", set())
        object.__setattr__(self, "training", True)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the module computes; every subclass writes its own."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What `forward` gives."""
        return self.forward(*args, **kwargs)

    # ---- attributes ----

    def __setattr__(self, name: str, value: Any) -> None:
        if "_parameters" not in self.__dict__:
            if isinstance(value, Parameter | Buffer | Module):
                raise AttributeError(f"call super().__init__() before assigning {name!r}")
            return object.__setattr__(self, name, value)
        kinds: tuple[tuple[type, dict[str, Any]], ...] = (
            (Parameter, self._parameters),
            (Module, self._modules),
            (Buffer, self._buffers),
        )
        for kind, registry in kinds:
            if isinstance(value, kind):
                self._forget(name)
                registry[name] = value
                return None
        for kind, registry in kinds:
            if name in registry:
                if value is None or (kind is Buffer and isinstance(value, Tensor)):
                    registry[name] = value
                    return None
                raise TypeError(f"{name!r} is a {kind.__name__}; got {type(value).__name__}")
        return object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        for registry in ("_parameters", "_modules", "_buffers"):
            found = self.__dict__.get(registry, {})
            if name in found:
                return found[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        if not self._forget(name):
            object.__delattr__(self, name)

    def _forget(self, name: str) -> bool:
        found = name in self.__dict__
        self.__dict__.pop(name, None)
        registries: tuple[dict[str, Any], ...] = (self._parameters, self._modules, self._buffers)
        for registry in registries:
            found = registry.pop(name, self) is not self or found
        return found

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._parameters, *self._modules, *self._buffers]

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Add a parameter, or the name of one that is absent."""
        self._forget(name)
        self._parameters[name] = param

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Add a buffer; one that is not persistent stays out of the state dict."""
        self._forget(name)
        self._buffers[name] = tensor
        (self._transient.discard if persistent else self._transient.add)(name)

    def register_module(self, name: str, module: Module | None) -> None:
        """Add a child module under a name."""
        self._forget(name)
        self._modules[name] = module

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
        for name, child in self._modules.items():
            if child is not None:
                yield from child.named_modules(memo, f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly below, with their names."""
        return ((name, child) for name, child in self._modules.items() if child is not None)

    def children(self) -> Iterator[Module]:
        """The modules directly below."""
        return (child for _, child in self.named_children())

    def get_submodule(self, target: str) -> Module:
        """The module of a dotted name."""
        module = self
        for part in target.split(".") if target else ():
            child = module._modules.get(part)
            if child is None:
                raise AttributeError(f"{type(module).__name__} has no module {part!r}")
            module = child
        return module

    def _named(
        self, registry: str, prefix: str, recurse: bool, duplicates: bool
    ) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        for path, module in self._paths(prefix) if recurse else [(prefix, self)]:
            for name, value in getattr(module, registry).items():
                if value is not None and (duplicates or id(value) not in seen):
                    seen.add(id(value))
                    yield f"{path}.{name}" if path else name, value

    def _paths(self, prefix: str) -> Iterator[tuple[str, Module]]:
        """Like `named_modules`, but a module that stands in two places comes twice."""
        yield prefix, self
        for name, child in self._modules.items():
            if child is not None:
                yield from child._paths(f"{prefix}.{name}" if prefix else name)

    def named_parameters(
        self, prefix: str = "", recurse: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Parameters with dotted names; one that is shared comes once, under its first name."""
        return self._named("_parameters", prefix, recurse, False)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Parameters, each once."""
        return (parameter for _, parameter in self.named_parameters("", recurse))

    def named_buffers(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """Buffers with dotted names, each once."""
        return self._named("_buffers", prefix, recurse, False)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """Buffers, each once."""
        return (buffer for _, buffer in self.named_buffers("", recurse))

    # ---- state ----

    def _state(self) -> Iterator[tuple[str, Tensor]]:
        for path, module in self._paths(""):
            prefix = f"{path}." if path else ""
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    yield prefix + name, parameter
            for name, buffer in module._buffers.items():
                kept = name not in module._transient and getattr(buffer, "persistent", True)
                if buffer is not None and kept:
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
        own = dict(self._state())
        missing = [name for name in own if name not in state_dict]
        unexpected = [name for name in state_dict if name not in own]
        arrays = {name: as_tensor(state_dict[name]).array for name in own if name in state_dict}
        wrong = [
            f"{name}: {array.shape} in the state, {own[name].array.shape} in the module"
            for name, array in arrays.items()
            if array.shape != own[name].array.shape
        ]
        nothing = bool(own) and bool(state_dict) and not arrays
        if wrong or nothing or (strict and (missing or unexpected)):
            raise RuntimeError(_load_report(type(self).__name__, missing, unexpected, wrong))
        for name, array in arrays.items():
            copy_into(own[name].array, array)
            changed_in_place(own[name])
        return LoadResult(missing, unexpected)

    # ---- modes ----

    def train(self, mode: bool = True) -> Module:
        """Switch training behaviour (dropout) on or off, here and below."""
        for module in self.modules():
            object.__setattr__(module, "training", bool(mode))
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
        for wanted in (*args, *kwargs.values()):
            if isinstance(wanted, dtype):
                self._convert(wanted)
            elif isinstance(wanted, str) and wanted != "cpu":
                raise DeviceError(f"to: device {wanted!r}: Rushlight runs on the CPU only")
        return self

    def _convert(self, wanted: dtype) -> None:
        for _, tensor in self._state():
            if tensor.dtype.is_floating_point:
                tensor.array = copy(to_dtype(tensor.detach(), wanted.numpy).array)
                tensor.grad = None

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
            for name, child in self._modules.items()
        ]
        head = f"{type(self).__name__}({self.extra_repr()}"
        return head + ")" if not lines else head + "\n  " + "\n  ".join(lines) + "\n)"


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
