"""Modules that hold modules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from rushlight.nn.module import Module


class Sequential(Module):
    """Modules applied one after the other: given in order, or as one dict of named ones."""

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            named: Iterable[tuple[str, Module]] = modules[0].items()
        else:
            named = ((str(i), module) for i, module in enumerate(modules))
        for name, module in named:
            self.add_module(name, module)

    def forward(self, x: Any) -> Any:
        """Last(… first(x))."""
        for module in self.children():
            x = module(x)
        return x

    def __len__(self) -> int:
        return len(self._of(Module))

    def __iter__(self) -> Iterator[Any]:
        return self.children()

    def __getitem__(self, index: int | slice) -> Any:
        modules = list(self.children())[index]
        return Sequential(*modules) if isinstance(modules, list) else modules

    def append(self, module: Module) -> Sequential:
        """Add one at the end."""
        self.add_module(str(len(self)), module)
        return self


class ModuleList(Module):
    """A list of modules."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    def append(self, module: Module) -> ModuleList:
        """Add one at the end."""
        self.add_module(str(len(self)), module)
        return self

    def extend(self, modules: Iterable[Module]) -> ModuleList:
        """Add several at the end."""
        for module in modules:
            self.append(module)
        return self

    def __len__(self) -> int:
        return len(self._of(Module))

    def __iter__(self) -> Iterator[Any]:
        return self.children()

    def __getitem__(self, index: int | slice) -> Any:
        modules: Any = list(self.children())[index]
        return ModuleList(modules) if isinstance(modules, list) else modules

    def __setitem__(self, index: int, module: Module) -> None:
        self.add_module(list(self._of(Module))[index], module)


class ModuleDict(Module):
    """A dict of modules."""

    def __init__(self, modules: Mapping[str, Module] | None = None) -> None:
        super().__init__()
        self.update(modules or {})

    def update(self, modules: Mapping[str, Module]) -> None:
        """Add several."""
        for name, module in modules.items():
            self.add_module(name, module)

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
