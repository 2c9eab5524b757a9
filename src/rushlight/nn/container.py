"""Modules that hold modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, TypeAlias

from rushlight.nn.module import Module

NamedModules: TypeAlias = Mapping[str, Module] | Iterable[tuple[str, Module]]


class _Numbered(Module):
    """What Sequential and ModuleList share: children in order, named by their position."""

    def __len__(self) -> int:
        return len(self._of(Module))

    def __iter__(self) -> Iterator[Any]:
        return self.children()

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._like(dict(list(self.named_children())[index]))
        return list(self.children())[index]

    def __setitem__(self, index: int, module: Module) -> None:
        self.add_module(list(self._of(Module))[index], module)

    def __delitem__(self, index: int | slice) -> None:
        modules = list(self.children())
        del modules[index]
        self._number(modules)

    def __add__(self, other: Iterable[Module]) -> Any:
        return self._like(dict(enumerate([*self, *other])))

    def append(self, module: Module) -> Self:
        """Add one at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add several at the end."""
        for module in list(modules):
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> None:
        """Add one before that at a position."""
        modules = list(self.children())
        modules.insert(index, module)
        self._number(modules)

    def pop(self, index: int = -1) -> Module:
        """Take one out and return it."""
        module: Module = self[index]
        del self[index]
        return module

    def _like(self, modules: Mapping[Any, Module]) -> Any:
        """A container of this kind with other modules."""
        raise NotImplementedError

    def _number(self, modules: list[Module]) -> None:
        for name in list(self._of(Module)):
            delattr(self, name)
        self.extend(modules)


class Sequential(_Numbered):
    """Modules applied one after the other: given in order, or as one dict of named ones."""

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.add_module(name, module)
        else:
            self.extend(modules)

    def forward(self, x: Any) -> Any:
        """Last(… first(x))."""
        own = self.__dict__
        for name, kind in self._members.items():
            if kind is Module and own[name] is not None:
                x = own[name](x)
        return x

    def _like(self, modules: Mapping[Any, Module]) -> Sequential:
        return Sequential({str(name): module for name, module in modules.items()})


class ModuleList(_Numbered):
    """A list of modules."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    def _like(self, modules: Mapping[Any, Module]) -> ModuleList:
        return ModuleList(modules.values())


class ModuleDict(Module):
    """A dict of modules."""

    def __init__(self, modules: NamedModules = ()) -> None:
        super().__init__()
        self.update(modules)

    def update(self, modules: NamedModules) -> None:
        """Add several, from a mapping or pairs."""
        for name, module in dict(modules).items():
            self.add_module(name, module)

    def pop(self, name: str) -> Module:
        """Take one out and return it."""
        module: Module = self[name]
        del self[name]
        return module

    def clear(self) -> None:
        """Take all out."""
        for name in list(self.keys()):
            del self[name]

    def __len__(self) -> int:
        return len(self._of(Module))

    def __iter__(self) -> Iterator[str]:
        return iter(self._of(Module))

    def __contains__(self, name: str) -> bool:
        return name in self._of(Module)

    def __getitem__(self, name: str) -> Any:
        return self._of(Module)[name]

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, module)

    def __delitem__(self, name: str) -> None:
        delattr(self, name)

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._of(Module).keys()

    def values(self) -> Iterable[Any]:
        """The modules."""
        return self._of(Module).values()

    def items(self) -> Iterable[tuple[str, Any]]:
        """Names and modules."""
        return self._of(Module).items()
