"""The engine: nodes, recording, the backward pass, gradient modes.

An operation computes an array and calls `record` with its vector-Jacobian product beside it. That
makes a Tensor and, when an input needs a gradient, a Node. A node's inputs are nodes or leaf
tensors, never arrays, so an intermediate that no product saved is freed at once. A product is a
closure over Tensors, written with operations; it must not capture the tensor it belongs to, so a
graph is free of cycles and dies by reference count alone. One that needs its own output says
`keeps_output=True` and is given it as a second argument.

What a product returns per input: a fresh Tensor (the same one never twice), `g` itself, a view of
`g`, a `Partial`, or None where no gradient is needed.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rushlight import kernels
from rushlight.errors import DtypeError, GraphError, ShapeError
from rushlight.kernels import Array, Shape

if TYPE_CHECKING:
    from rushlight.tensor import Tensor

F = TypeVar("F", bound=Callable[..., Any])


class Version:
    """How often a piece of memory was changed in place; shared by all views of it."""

    __slots__ = ("count", "viewed")

    def __init__(self) -> None:
        self.count = 0
        self.viewed = False  # whether a view was made of it


class TensorBase:
    """What the engine needs of a tensor; `Tensor` adds the operations as methods."""

    __slots__ = ("__dict__", "__weakref__", "array", "grad", "needs_grad", "node", "version")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.node: Node | None = None  # None: a leaf
        self.needs_grad = False
        self.grad: Tensor | None = None
        self.version: Version | None = None  # None: never changed in place, no views


class Node:
    """One recorded operation."""

    __slots__ = (
        "__weakref__", "attrs", "inputs", "name", "output", "saved", "seq", "versions", "vjp",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        inputs: tuple[Node | TensorBase | None, ...],
        vjp: Callable[..., tuple[Any, ...]] | None,
        saved: tuple[TensorBase, ...],
        attrs: Mapping[str, Any] | None,
    ) -> None:
        self.name = name
        self.output: Tensor | None = None  # one without this node, for products that need it
        self.inputs = inputs
        self.vjp = vjp
        self.saved = saved
        self.versions = total_versions(saved)
        self.seq = next(_sequence)
        self.attrs = attrs

    def __repr__(self) -> str:
        return f"<{self.name}>"


class Partial:
    """A gradient that is zero but for a part, known as ways of adding it to a buffer."""

    __slots__ = ("adders", "dtype", "name", "shape", "sources")

    def __init__(
        self,
        name: str,
        shape: Shape,
        dtype: Any,
        source: Tensor,
        *adders: Callable[[Array], None],
    ) -> None:
        self.name, self.shape, self.dtype, self.adders = name, shape, dtype, adders
        self.sources: tuple[Tensor, ...] = (source,)  # what the adders read

    def add_to(self, buffer: Array) -> None:
        """Buffer += this gradient."""
        for add in self.adders:
            add(buffer)

    def merge(self, other: Partial) -> Partial:
        """The sum of two, still without a buffer."""
        both = Partial(
            self.name, self.shape, self.dtype, self.sources[0], self.add_to, other.add_to
        )
        both.sources = self.sources + other.sources
        return both

    def materialise(self) -> Tensor:
        """The whole gradient."""
        return self.added_to(kernels.full(self.shape, 0.0, self.dtype))

    def added_to(self, buffer: Array, *others: Tensor) -> Tensor:
        """The sum with a buffer that holds `others`; second derivatives end here, by name."""
        self.add_to(buffer)
        return record(f"{self.name}_backward", buffer, self.sources + others, None)


_sequence = itertools.count(1)
_by_sequence = attrgetter("seq")
_leaf_lock = threading.RLock()  # what dies under it may itself run backward


def new_tensor(array: Array) -> Tensor:
    """A tensor over an array, not recorded."""
    return _tensor_class(array)


_tensor_class: Callable[[Array], Tensor] = cast("Callable[[Array], Tensor]", TensorBase)


def set_tensor_class(tensor_class: Callable[[Array], Tensor]) -> None:
    """What makes a tensor: `tensor.py` names its class, a search for NaN looks at every result."""
    global _tensor_class
    _tensor_class = tensor_class


# ---- gradient modes ----


class _Mode(threading.local):
    enabled = True


_mode = _Mode()


def is_grad_enabled() -> bool:
    """Whether operations of this thread are recorded."""
    return _mode.enabled


class set_grad_enabled:
    """Switch recording on or off, for good or until the end of a `with` block."""

    def __init__(self, mode: bool) -> None:
        self.previous = _mode.enabled
        _mode.enabled = bool(mode)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        _mode.enabled = self.previous

    def __call__(self, function: F) -> F:
        """As a decorator: the function, run in this mode; the mode outside is left alone."""
        mode, _mode.enabled = _mode.enabled, self.previous
        return _in_mode(function, mode)


class no_grad:
    """No recording inside a `with` block, a decorated function or generator; per thread."""

    mode = False

    def __new__(cls, function: F | None = None) -> Any:
        """A context manager, or the wrapped function when used as a bare decorator."""
        return super().__new__(cls) if function is None else _in_mode(function, cls.mode)

    def __init__(self) -> None:
        self.previous: list[bool] = []

    def __enter__(self) -> None:
        self.previous.append(_mode.enabled)
        _mode.enabled = self.mode

    def __exit__(self, *error: object) -> None:
        _mode.enabled = self.previous.pop()

    def __call__(self, function: F) -> F:
        """The function, run in this mode."""
        return _in_mode(function, self.mode)


class enable_grad(no_grad):
    """Recording inside a `with` block or a decorated function, even within `no_grad`."""

    mode = True


class inference_mode(no_grad):
    """`no_grad` under PyTorch's other name; inference_mode(False) is `enable_grad`."""

    def __new__(cls, mode: Any = True) -> Any:
        """A context manager, or the wrapped function when used as a bare decorator."""
        return super().__new__(cls, mode if callable(mode) else None)

    def __init__(self, mode: Any = True) -> None:
        super().__init__()
        self.mode = not mode


def _in_mode(function: F, mode: bool) -> F:
    manager = enable_grad if mode else no_grad
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generate(*args: Any, **kwargs: Any) -> Any:
            generator = function(*args, **kwargs)
            send: Callable[[], Any] = functools.partial(next, generator)
            try:
                while True:
                    with manager():
                        try:
                            item = send()
                        except StopIteration as stop:
                            return stop.value
                    try:  # the consumer runs in its own mode
                        sent = yield item
                        send = functools.partial(generator.send, sent)
                    except GeneratorExit:
                        raise
                    except BaseException as error:
                        send = functools.partial(generator.throw, error)
            finally:
                generator.close()

        return cast("F", generate)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with manager():
            return function(*args, **kwargs)

    return cast("F", call)


# ---- recording ----


def edge(x: TensorBase | None) -> Node | TensorBase | None:
    """Where the gradient of x goes: its node, itself when it is a leaf, or nowhere."""
    if x is None or not x.needs_grad:
        return None
    return x.node or x


def record(
    name: str,
    out: Array,
    inputs: tuple[TensorBase | None, ...],
    vjp: Callable[..., tuple[Any, ...]] | None,
    *,
    saved: tuple[TensorBase, ...] = (),
    keeps_output: bool = False,
    attrs: Mapping[str, Any] | None = None,
) -> Tensor:
    """A Tensor over `out`, with a Node when recording and an input needs a gradient.

    vjp: from the gradient of `out` to those of `inputs`; None says there is no derivative.
    saved: the tensors that vjp captured and that must not change before it runs.
    keeps_output: vjp takes the output, which must not change either, as its second argument.
    attrs: the operation's options, for export and profiling.
    """
    result = _tensor_class(out)
    if _mode.enabled:
        for x in inputs:
            if x is not None and x.needs_grad:
                result.needs_grad = True
                if keeps_output:
                    output = alias(result)
                    result.node = Node(name, tuple(map(edge, inputs)), vjp, (*saved, output), attrs)
                    result.node.output = output
                else:
                    result.node = Node(name, tuple(map(edge, inputs)), vjp, saved, attrs)
                break
    return result


def record_view(
    name: str,
    out: Array,
    x: TensorBase,
    vjp: Callable[[Tensor], tuple[Any, ...]],
    attrs: Mapping[str, Any] | None = None,
) -> Tensor:
    """`record` for an output that shares the memory of x."""
    result = record(name, out, (x,), vjp, attrs=attrs)
    result.version = version = share_version(x)
    version.viewed = True
    return result


def share_version(x: TensorBase) -> Version:
    """The version of x's memory, made when it is first needed."""
    if x.version is None:
        x.version = Version()
    return x.version


def alias(x: TensorBase) -> Tensor:
    """The same memory, outside the graph."""
    result = _tensor_class(x.array)
    result.version = share_version(x)
    return result


def total_versions(saved: tuple[TensorBase, ...]) -> int:
    """Grows when any of the tensors is changed in place."""
    return sum([x.version.count for x in saved if x.version is not None])


def changed_in_place(x: TensorBase) -> None:
    """Note that the memory of x has new contents."""
    share_version(x).count += 1


# ---- the backward pass ----


def backward(
    root: Tensor,
    gradient: Tensor | None = None,
    *,
    retain_graph: bool = False,
    create_graph: bool = False,
) -> None:
    """Add d root / d leaf to the `grad` of every leaf that root depends on.

    Nodes run in reverse order of creation, each once; its closure and gradient are released as soon
    as it has run. Raises GraphError when root has no graph, was freed, or a saved tensor changed.
    """
    start = edge(root)
    if start is None:
        raise GraphError("backward: the tensor does not require grad and has no graph")
    if gradient is None:
        if root.array.size != 1:
            raise GraphError(
                f"backward: grad can be made only for scalar outputs, shape is {root.array.shape}; "
                "pass gradient="
            )
        gradient = new_tensor(kernels.full(root.array.shape, 1.0, root.array.dtype))
    elif not isinstance(gradient, TensorBase) or gradient.array.dtype != root.array.dtype:
        kind = gradient.array.dtype if isinstance(gradient, TensorBase) else type(gradient)
        raise DtypeError(f"backward: gradient is {kind}, expected a {root.array.dtype} tensor")
    elif gradient.array.shape != root.array.shape:
        raise ShapeError(
            f"backward: gradient has shape {gradient.array.shape}, expected {root.array.shape}"
        )
    before = _mode.enabled
    try:
        _mode.enabled = create_graph
        _run(start, gradient, retain_graph or create_graph)
    finally:
        _mode.enabled = before


def _run(start: Node | TensorBase, gradient: Tensor, retain_graph: bool) -> None:
    if not isinstance(start, Node):
        _add_to_leaf(start, gradient, False)
        return
    pending: dict[Node, Any] = {start: gradient}
    owned: set[Node] = set()  # those whose pending gradient is a buffer nobody else can see
    for node in _reachable(start):
        g = pending.pop(node, None)
        if g is None:
            continue
        if isinstance(g, Partial):
            g = g.materialise()
        owned.discard(node)
        vjp, inputs = _enter(node)
        gradients = vjp(g) if node.output is None else vjp(g, _own_output(node))
        if not retain_graph:
            node.vjp, node.inputs, node.saved, node.output = _freed, (), (), None
        for target, new in zip(inputs, gradients, strict=True):
            if target is None or new is None:
                continue
            # g may be pending elsewhere too, and views share memory, an expanded one with itself
            fresh = new is not g and not isinstance(new, Partial) and new.version is None
            if type(target) is Node:
                _add_pending(pending, owned, target, new, fresh)
            else:
                _add_to_leaf(target, new, fresh)
        del g, new, gradients  # a buffer must not outlive its use


def _reachable(start: Node) -> list[Node]:
    """All nodes that start depends on, last created first."""
    seen = {start}
    nodes = [start]
    for node in nodes:
        for target in node.inputs:
            if type(target) is Node and target not in seen:
                seen.add(target)
                nodes.append(target)
    nodes.sort(key=_by_sequence, reverse=True)
    return nodes


def _enter(node: Node) -> tuple[Callable[..., Iterable[Any]], tuple[Any, ...]]:
    if node.vjp is None:
        raise GraphError(f"{node.name}: no derivative of its own; second derivatives stop here")
    if node.vjp is _freed:
        raise GraphError(
            f"{node.name}: backward a second time through a graph that was freed; "
            "pass retain_graph=True to the first backward"
        )
    if node.saved and total_versions(node.saved) != node.versions:
        shapes = ", ".join(str(x.array.shape) for x in node.saved)
        raise GraphError(
            f"{node.name}: a tensor saved for backward was changed in place since (saved: {shapes})"
        )
    return node.vjp, node.inputs


def _own_output(node: Node) -> Tensor:
    """The output that a product needs; as the node's own where its derivative is recorded too."""
    assert node.output is not None
    if not _mode.enabled:
        return node.output
    output = alias(node.output)
    output.node, output.needs_grad = node, True
    return output


def _freed(_: Tensor) -> tuple[Any, ...]:
    raise AssertionError("never called")


def _add_pending(
    pending: dict[Node, Any], owned: set[Node], target: Node, new: Any, fresh: bool
) -> None:
    held = pending.get(target)
    if held is None:
        pending[target] = new
        if fresh:
            owned.add(target)
        return
    in_place = not _mode.enabled  # with create_graph the sum itself must be recorded
    if target in owned and in_place:
        _accumulate(held, new)
    elif fresh and in_place:
        _accumulate(new, held)
        pending[target] = new
        owned.add(target)
    else:
        pending[target] = total = _sum(held, new)
        if not isinstance(total, Partial):
            owned.add(target)


def _accumulate(buffer: Tensor, new: Any) -> None:
    if isinstance(new, Partial):
        new.add_to(buffer.array)
    else:
        kernels.accumulate(buffer.array, new.array)


def _sum(held: Any, new: Any) -> Any:
    if isinstance(held, Partial) and isinstance(new, Partial):
        return held.merge(new)
    if isinstance(held, Partial):
        held, new = new, held
    if isinstance(new, Partial):
        return new.added_to(kernels.copy(held.array), held)
    return held + new


def _add_to_leaf(leaf: TensorBase, new: Any, fresh: bool) -> None:
    with _leaf_lock:
        if leaf.grad is not None and not _mode.enabled:
            _accumulate(leaf.grad, new)
            changed_in_place(leaf.grad)
        elif leaf.grad is not None:
            leaf.grad = _sum(leaf.grad, new)
        elif isinstance(new, Partial):
            leaf.grad = new.materialise()
        elif fresh and new.array.flags.c_contiguous:
            leaf.grad = new
        else:  # what others may hold or see
            leaf.grad = record("clone", kernels.copy(new.array), (new,), lambda g: (g,))
