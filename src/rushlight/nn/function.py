"""Layers that are a function with options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rushlight.nn.module import Module


class FunctionLayer(Module):
    """Calls a function with its input and with attributes of its own.

    Subclasses say which: the function, its options in order, and those that `repr` shows.
    """

    function: Callable[..., Any]
    options: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()

    def forward(self, x: Any) -> Any:
        """See the function."""
        return type(self).function(x, *[getattr(self, name) for name in self.options])

    def extra_repr(self) -> str:
        """The options."""
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in self.shown)
