"""The errors of the framework, each also a subclass of the built-in that fits."""

from __future__ import annotations


class ShapeError(ValueError):
    """Shapes do not fit each other or the operation."""


class DtypeError(TypeError):
    """A dtype that the operation does not take, or dtypes that do not go together."""


class GraphError(RuntimeError):
    """Differentiation is not possible as asked: freed graph, changed input, missing derivative."""


class CompileError(RuntimeError):
    """A step that is being recorded does something that a recording cannot repeat."""


class FormatError(ValueError):
    """A file is not what it claims to be."""


class ConfigError(ValueError):
    """A configuration or an option that makes no sense."""


class DeviceError(RuntimeError):
    """A device other than the CPU was asked for."""


class NonFiniteError(FloatingPointError):
    """Training met a number that is not finite."""
