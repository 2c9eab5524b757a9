"""Finding the first number that is not finite: in a state, in a batch, in a forward pass."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from rushlight import autograd
from rushlight.autograd import enable_grad
from rushlight.kernels import Array
from rushlight.nn import Module
from rushlight.tensor import Tensor


def first_non_finite(tree: Any, path: str = "", *, masks: bool = False) -> str | None:
    """Where in nested dicts, lists and tuples the first tensor is that is not finite, and how much.

    masks: -inf is fine. Returns for example "h.0.mlp.c_fc.weight: 3 of 65536 elements are not
    finite", or None.
    """
    if isinstance(tree, Tensor | np.ndarray):
        return _describe(tree.array if isinstance(tree, Tensor) else tree, path, masks)
    if isinstance(tree, Mapping):
        children: Any = tree.items()
    elif isinstance(tree, list | tuple):
        children = enumerate(tree)
    else:
        return None
    for key, child in children:
        found = first_non_finite(child, f"{path}.{key}" if path else str(key), masks=masks)
        if found:
            return found
    return None


def _describe(array: Array, path: str, masks: bool) -> str | None:
    if array.dtype.kind != "f":
        return None
    fine = np.isfinite(array)
    if masks:
        fine |= np.isneginf(array)
    wrong = array.size - int(np.count_nonzero(fine))
    return f"{path}: {wrong} of {array.size} elements are not finite" if wrong else None


def first_in_forward(model: Module, compute: Callable[[], Any]) -> str | None:
    """Run `compute` once more and name the first operation whose result is not finite.

    Returns for example "the result of gelu in h.3.mlp", or None. A result with -inf only counts
    when there is no other: masks are made of it.
    """
    found: dict[bool, tuple[str, Tensor]] = {}  # by whether it has -inf only
    thread = threading.get_ident()
    with _module_names(model) as names:

        def note(tensor: Tensor) -> None:
            array = tensor.array
            if threading.get_ident() != thread:
                return  # a loader's
            if array.dtype.kind == "f" and not (fine := np.isfinite(array)).all():
                found.setdefault(bool(np.isneginf(array[~fine]).all()), (names[-1], tensor))

        with _every_result(note), enable_grad():  # whose nodes know the operations' names
            compute()
    where, tensor = found.get(False) or found.get(True) or ("", None)
    if tensor is None:
        return None
    return f"the result of {tensor.node.name if tensor.node else 'an operation'} in {where}"


@contextmanager
def _module_names(model: Module) -> Iterator[list[str]]:
    """A list whose last item names the module whose forward is running."""
    names = ["the loss function"]

    def named(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            names.append(name or type(model).__name__)
            try:
                return forward(*args, **kwargs)
            finally:
                names.pop()

        return run

    modules = [(name, m) for name, m in model.named_modules() if "forward" not in vars(m)]
    for name, module in modules:
        vars(module)["forward"] = named(name, module.forward)
    try:
        yield names
    finally:
        for _, module in modules:
            del vars(module)["forward"]


@contextmanager
def _every_result(note: Callable[[Tensor], None]) -> Iterator[None]:
    """Call `note` with every tensor that is made."""

    def make(array: Array) -> Tensor:
        tensor = Tensor(array)
        note(tensor)
        return tensor

    autograd.set_tensor_class(make)
    try:
        yield
    finally:
        autograd.set_tensor_class(Tensor)
