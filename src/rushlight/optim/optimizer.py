"""What all optimizers share: groups, state that exists from construction, and its saving."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from rushlight import kernels
from rushlight.autograd import changed_in_place, enable_grad, no_grad
from rushlight.errors import DtypeError, ShapeError
from rushlight.kernels import Array
from rushlight.ops.convert import as_tensor
from rushlight.tensor import Tensor

Group = dict[str, Any]
_KINDS = (kernels.FLOAT32, kernels.FLOAT64)
_OWN_ENTRIES = ("params", "names", "lr_arrays")  # of a group; all others are the user's


def not_negative(options: Mapping[str, Any], *names: str) -> None:
    """Raise ValueError unless these options are numbers from 0 on."""
    for name in names:
        if not options[name] >= 0:  # NaN is not
            raise ValueError(f"{name} must not be negative, got {options[name]}")


class Optimizer:
    """Base class.  params: tensors, `(name, tensor)` pairs, or groups `{"params": ..., ...}`.

    A subclass says what state an element has (`make_state`) and how a group steps
    (`step_fused`, `step_readable`).  A parameter whose grad is None is left alone, state included.
    """

    def __init__(self, params: Iterable[Any], defaults: Mapping[str, Any]) -> None:
        self.defaults = dict(defaults)
        self.param_groups: list[Group] = []
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        listed: list[Any] = [params] if isinstance(params, Tensor) else list(params)
        if not listed:
            raise ValueError("the optimizer got no parameters")
        for group in listed if isinstance(listed[0], dict) else [{"params": listed}]:
            self.add_param_group(group)

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Add parameters with options of their own.

        Entries that are no options are kept for the user and for schedules. Raises: ValueError for
        options misspelt or out of range, non-leaf or repeated parameters.
        """
        for name in set(group) - set(self.defaults) - {"params"}:
            import difflib  # here: nobody who spells it right needs it

            meant = difflib.get_close_matches(name, self.defaults, 1, 0.8)
            if meant:
                raise ValueError(
                    f"option {name!r} of a parameter group: did you mean {meant[0]!r}?"
                )
        self.check({**self.defaults, **group})
        params = group["params"]
        params = [params] if isinstance(params, Tensor) else list(params)
        names = [p[0] if isinstance(p, tuple) else None for p in params]
        params = [p[1] if isinstance(p, tuple) else p for p in params]
        for p in params:
            if not isinstance(p, Tensor) or not p.is_leaf:
                raise ValueError(f"an optimizer takes leaf tensors, got {type(p).__name__}")
            if p.array.dtype not in _KINDS:
                raise ValueError(f"a parameter of {p.dtype}: only float32 and float64 are trained")
            if not p.array.flags.c_contiguous:
                raise ValueError(
                    f"a parameter {p.array.shape} must be contiguous; use nn.Parameter"
                )
            if p in self.state or [q is p for q in params].count(True) > 1:
                raise ValueError("a parameter appears twice")
        named = [name for name in names if name is not None]
        if len(set(named)) != len(named):
            raise ValueError("two parameters have one name")
        self.state.update({p: self.make_state(p, {**self.defaults, **group}) for p in params})
        if any(name is not None for name in names):
            names = [
                str(n) if n is not None else f"{len(self.param_groups)}.{i}"
                for i, n in enumerate(names)
            ]
        new = {**self.defaults, **group, "params": params, "names": names}
        new["lr_arrays"] = {kind: np.zeros(1, kind) for kind in _KINDS}
        self.param_groups.append(new)

    def check(self, options: Mapping[str, Any]) -> None:
        """Raise ValueError for options out of range."""

    def make_state(self, p: Tensor, options: Mapping[str, Any]) -> dict[str, Tensor]:
        """State of one parameter before the first step."""
        raise NotImplementedError

    def step_fused(self, group: Group, params: list[Tensor], lr: Array) -> None:
        """One kernel call for all parameters."""
        raise NotImplementedError

    def step_readable(self, group: Group, p: Array, g: Array, state: dict[str, Array]) -> None:
        """The rule as written in its paper, on NumPy arrays, in place."""
        raise NotImplementedError

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, or fill them with zeros."""
        for group in self.param_groups:
            for p in group["params"]:
                if set_to_none:
                    p.grad = None
                elif p.grad is not None:
                    p.grad.zero_()

    @no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; with a closure, compute the loss first."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        for group in self.param_groups:
            for kind in _KINDS:
                params = [
                    p for p in group["params"] if p.grad is not None and p.array.dtype == kind
                ]
                if params:
                    self._step(group, params)
        return loss

    def _step(self, group: Group, params: list[Tensor]) -> None:
        dtype = params[0].array.dtype
        for name, value in self.state[params[0]].items():
            if value.array.dtype != dtype:
                raise DtypeError(
                    f"step: {name} is {value.array.dtype} and its parameter {dtype}; "
                    "convert a model before making its optimizer"
                )
        if group["foreach"] is False:
            kernels.on_host("step(foreach=False)")
            for p in params:
                assert p.grad is not None
                g = p.grad.array
                if g.shape != p.array.shape or g.dtype != p.array.dtype:
                    raise ShapeError(
                        f"step: a gradient {g.dtype} {g.shape} of a parameter {p.array.dtype} "
                        f"{p.array.shape}"
                    )
                state = {name: value.array for name, value in self.state[p].items()}
                self.step_readable(group, p.array, g, state)
        else:
            self.step_fused(group, params, self._lr(group, dtype))
        for p in params:
            changed_in_place(p)

    def _lr(self, group: Group, dtype: Any) -> Array:
        """The learning rate in an array of its own, which a recorded step reads anew."""
        lr: Array = group["lr_arrays"][dtype]
        lr[0] = float(group["lr"])
        return lr

    def column(self, params: list[Tensor], name: str) -> list[Array]:
        """One kind of state of many parameters."""
        try:
            return [self.state[p][name].array for p in params]
        except KeyError:
            raise ValueError(
                f"step: no {name}: the option that needs it was off when the optimizer was made"
            ) from None

    def __repr__(self) -> str:
        groups = [
            ", ".join(f"{k}={v}" for k, v in group.items() if k not in _OWN_ENTRIES)
            for group in self.param_groups
        ]
        return f"{type(self).__name__}({'; '.join(groups)})"

    # ---- saving ----

    def state_dict(self) -> dict[str, Any]:
        """Options per group, and state by parameter name (by position where none were given)."""
        groups, state = [], {}
        for index, group in enumerate(self.param_groups):
            keys = self._keys(index)
            options = {k: v for k, v in group.items() if k not in _OWN_ENTRIES}
            groups.append({**options, "params": keys})
            for key, p in zip(keys, group["params"], strict=True):
                state[key] = {name: value.clone() for name, value in self.state[p].items()}
        return {"state": state, "param_groups": groups}

    def _keys(self, index: int) -> list[str]:
        names = self.param_groups[index]["names"]
        return [f"{index}.{i}" if name is None else name for i, name in enumerate(names)]

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a saved state.  Raises ValueError, unchanged, when names or shapes differ."""
        groups, saved = state_dict["param_groups"], state_dict["state"]
        if len(groups) != len(self.param_groups):
            raise ValueError(
                f"the state has {len(groups)} groups, the optimizer {len(self.param_groups)}"
            )
        for index, group in enumerate(groups):
            keys, params = self._keys(index), self.param_groups[index]["params"]
            if list(group["params"]) != keys:
                odd = sorted(set(group["params"]) ^ set(keys)) or "their order"
                raise ValueError(f"group {index}: the parameters differ from the saved ones: {odd}")
            self.check({**self.defaults, **group})
            for key, p in zip(keys, params, strict=True):
                self._check_state(key, saved.get(key, {}), self.state[p])
        for index, group in enumerate(groups):
            own = self.param_groups[index]
            own.update({k: v for k, v in group.items() if k not in _OWN_ENTRIES})
            for key, p in zip(self._keys(index), own["params"], strict=True):
                for name, value in self.state[p].items():
                    kernels.copy_into(value.array, as_tensor(saved[key][name]).array)

    @staticmethod
    def _check_state(key: str, saved: Mapping[str, Any], own: Mapping[str, Tensor]) -> None:
        if set(saved) != set(own):
            raise ValueError(f"{key}: state {sorted(saved)} in the file, {sorted(own)} expected")
        for name, value in own.items():
            shape = as_tensor(saved[name]).array.shape
            if shape != value.array.shape:
                raise ValueError(
                    f"{key}.{name}: shape {shape} in the file, {value.array.shape} expected"
                )
