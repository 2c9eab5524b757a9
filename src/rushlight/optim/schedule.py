"""What all schedules share, and those that are more than one formula of the step."""

from __future__ import annotations

import copy
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from rushlight.optim.optimizer import Optimizer


def cosine(start: float, end: float, share: float) -> float:
    """From start (share 0) to end (share 1) along half a cosine."""
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def line(start: float, end: float, share: float) -> float:
    """From start (share 0) to end (share 1) in a line."""
    return start + (end - start) * share


def check_whole(name: str, value: Any, least: int = 1) -> None:
    """Raise ValueError unless value is a whole number from least on."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number from {least} on, got {value!r}")


def check_range(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Raise ValueError unless low <= value <= high."""
    if not low <= value <= high:
        raise ValueError(f"{name} must lie between {low} and {high}, got {value}")


def per_group(name: str, value: Any, optimizer: Optimizer) -> list[float]:
    """One number for all groups, or one for each.  Raises ValueError when their number differs."""
    count = len(optimizer.param_groups)
    values = list(value) if isinstance(value, list | tuple) else [value] * count
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} values, the optimizer {count} groups")
    return values


class LRScheduler:
    """Sets the rates of an optimizer's groups; `step()` after each of the optimizer's steps.

    A schedule is a formula of `last_epoch`, the number of steps so far, and `base_lrs`: no drift,
    and a resumed run has the same rates. A subclass writes `get_lr`. As rates are computed and not
    multiplied, two schedules on one optimizer do not compound: the one that steps last wins.

    The base is `initial_lr` of each group, or, where there is none yet, its `lr`. A new schedule
    sets the rates, as in PyTorch; but one on an optimizer whose state was loaded, which has
    `initial_lr`, leaves them until `step()` or `load_state_dict` (PyTorch sets them back).
    last_epoch: -1 to begin, or the last step done.
    Raises: ValueError for a last_epoch from 0 on without `initial_lr`.
    """

    optimizer: Optimizer
    base_lrs: list[float]
    last_epoch: int
    unsaved: tuple[str, ...] = ("optimizer", "begins")  # attributes that are no state

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"expected an Optimizer, got {type(optimizer).__name__}")
        check_whole("last_epoch", last_epoch, -1)
        groups = optimizer.param_groups
        new = not all("initial_lr" in group for group in groups)
        if new and last_epoch >= 0:
            raise ValueError("last_epoch: a group has no initial_lr; load the optimizer first")
        for group in groups:
            group.setdefault("initial_lr", float(group["lr"]))
        self.optimizer = optimizer
        self.base_lrs = [group["initial_lr"] for group in groups]
        self.last_epoch = last_epoch + 1
        self.begins = new or last_epoch >= 0
        if self.begins:
            self.apply()

    def get_lr(self) -> list[float]:
        """The rate of every group at step `last_epoch`."""
        raise NotImplementedError(f"{type(self).__name__} has no get_lr")

    def get_last_lr(self) -> list[float]:
        """The groups' current rates."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def apply(self) -> None:
        """Set the rates of step `last_epoch`."""
        groups, rates = self.optimizer.param_groups, self.get_lr()
        if len(groups) != len(rates):
            raise ValueError(f"{len(rates)} rates for {len(groups)} groups; make a new schedule")
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate

    def step(self) -> None:
        """Go on to the next step's rates."""
        self.last_epoch += 1
        self.apply()

    def state_dict(self) -> dict[str, Any]:
        """All attributes as plain values, without the optimizer and functions."""
        return {k: copy.deepcopy(v) for k, v in vars(self).items() if k not in self.unsaved}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a saved state, options included, and set the rates.

        Raises: ValueError, unchanged, for the state of another schedule or number of groups.
        """
        self.check_state(state_dict)
        self.restore(state_dict)
        self.apply()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a checked state without setting the rates."""
        vars(self).update(copy.deepcopy(dict(state)))
        for group, base in zip(self.optimizer.param_groups, self.base_lrs, strict=True):
            group["initial_lr"] = base

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError unless the state is of such a schedule."""
        name, odd = type(self).__name__, sorted(set(state) ^ set(self.state_dict()))
        if odd:
            raise ValueError(f"{name}: missing or unexpected in the state: {', '.join(odd)}")
        groups = len(self.optimizer.param_groups)
        if len(state["base_lrs"]) != groups:
            raise ValueError(f"{name}: {len(state['base_lrs'])} rates saved, {groups} groups")


class SequentialLR(LRScheduler):
    """One schedule after the other: `schedulers[i]` counts from 0 at `milestones[i - 1]`.

    Raises: ValueError for milestones that do not increase or are not one fewer than the schedules,
    schedules of another optimizer, ReduceLROnPlateau.
    """

    unsaved = (*LRScheduler.unsaved, "schedulers")

    def __init__(
        self,
        optimizer: Optimizer,
        schedulers: Sequence[LRScheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
    ) -> None:
        between = len(schedulers) - 1
        if len(milestones) != between:
            raise ValueError(f"milestones: expected {between}, got {len(milestones)}")
        for i, milestone in enumerate(milestones):
            check_whole(f"milestones[{i}]", milestone, milestones[i - 1] + 1 if i else 0)
        for scheduler in schedulers:
            if scheduler.optimizer is not optimizer:
                raise ValueError(f"{type(scheduler).__name__} belongs to another optimizer")
            if isinstance(scheduler, ReduceLROnPlateau):
                raise ValueError("ReduceLROnPlateau needs a metric and cannot stand in a sequence")
        self.schedulers, self.milestones = list(schedulers), list(milestones)
        super().__init__(optimizer, last_epoch)
        if not self.begins and any(scheduler.begins for scheduler in schedulers):
            self.apply()  # one of them made initial_lr, so nothing was loaded

    def get_lr(self) -> list[float]:
        """Rates of the schedule whose turn it is."""
        return self._current().get_lr()

    def apply(self) -> None:
        """Let the schedule whose turn it is set what it sets."""
        self._current().apply()

    def _current(self) -> LRScheduler:
        i = bisect_right(self.milestones, self.last_epoch)
        scheduler = self.schedulers[i]
        scheduler.last_epoch = self.last_epoch - (self.milestones[i - 1] if i else 0)
        return scheduler

    def state_dict(self) -> dict[str, Any]:
        """Its own state and that of every schedule."""
        states = [scheduler.state_dict() for scheduler in self.schedulers]
        return {**super().state_dict(), "schedulers": states}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Also those of its schedules."""
        super().check_state(state)
        if len(state["schedulers"]) != len(self.schedulers):
            raise ValueError(f"SequentialLR: {len(state['schedulers'])} schedules saved")
        for scheduler, its_state in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.check_state(its_state)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Also those of its schedules."""
        own = dict(state)
        for scheduler, its_state in zip(self.schedulers, own.pop("schedulers"), strict=True):
            scheduler.restore(its_state)
        super().restore(own)


class OneCycleLR(LRScheduler):
    """One cycle: up to max_lr, then down to almost nothing; momentum goes the other way.

    From max_lr / div_factor up within pct_start of the steps, then down to that start over
    final_div_factor; three_phase: down to the start as fast as up, then on. cycle_momentum: the
    momentum, or first beta, goes from max_momentum to base_momentum and back. The steps are
    total_steps, or epochs * steps_per_epoch.
    Raises: ValueError for options out of range, and from `step` after the last one.
    Source: Smith & Topin 2018, arXiv:1708.07120, in PyTorch's form; at last_epoch == total_steps
    the rate stays at its end, where PyTorch's formula runs past it.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | Sequence[float] = 0.85,
        max_momentum: float | Sequence[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("OneCycleLR needs total_steps, or epochs and steps_per_epoch")
            check_whole("epochs", epochs)
            check_whole("steps_per_epoch", steps_per_epoch)
            total_steps = epochs * steps_per_epoch
        check_whole("total_steps", total_steps)
        check_range("pct_start", pct_start, 0, 1)
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy must be 'cos' or 'linear', got {anneal_strategy!r}")
        if cycle_momentum and not {"momentum", "betas"} & set(optimizer.defaults):
            raise ValueError("cycle_momentum: the optimizer has neither momentum nor betas")
        self.total_steps, self.pct_start = total_steps, pct_start
        self.anneal_strategy, self.three_phase = anneal_strategy, three_phase
        self.div_factor, self.final_div_factor = div_factor, final_div_factor
        self.cycle_momentum = cycle_momentum
        self.max_lrs = per_group("max_lr", max_lr, optimizer)
        self.base_momentums = per_group("base_momentum", base_momentum, optimizer)
        self.max_momentums = per_group("max_momentum", max_momentum, optimizer)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = [top / div_factor for top in self.max_lrs]
        for group, base in zip(optimizer.param_groups, self.base_lrs, strict=True):
            group["initial_lr"] = base

    def get_lr(self) -> list[float]:
        """The rate of every group at step `last_epoch`."""
        rates = []
        for top in self.max_lrs:
            start = top / self.div_factor
            rates.append(self._between([start, top, start], start / self.final_div_factor))
        return rates

    def apply(self) -> None:
        """Set rates and momenta."""
        super().apply()
        if not self.cycle_momentum:
            return
        groups = self.optimizer.param_groups
        for group, low, high in zip(groups, self.base_momentums, self.max_momentums, strict=True):
            momentum = self._between([high, low, high], high)
            if "betas" in group:
                group["betas"] = (momentum, *group["betas"][1:])
            else:
                group["momentum"] = momentum

    def _between(self, knots: list[float], last: float) -> float:
        """The value now on a way along the knots (two, three in three phases) to the last one."""
        if self.last_epoch > self.total_steps:
            raise ValueError(f"OneCycleLR has {self.total_steps} steps, this is one more")
        up = self.pct_start * self.total_steps
        ends = [up - 1, 2 * up - 2] if self.three_phase else [up - 1]
        i = next((i for i, end in enumerate(ends) if self.last_epoch <= end), len(ends))
        begin = ends[i - 1] if i else 0.0
        end = ends[i] if i < len(ends) else self.total_steps - 1
        share = min((self.last_epoch - begin) / (end - begin), 1) if end > begin else 1
        anneal = cosine if self.anneal_strategy == "cos" else line
        return anneal(knots[i], knots[i + 1] if i < len(ends) else last, share)


class ReduceLROnPlateau(LRScheduler):
    """Multiplies the rates by factor when a metric has not improved for more than patience steps.

    mode: whether "min" or "max" is better.  threshold: what counts as better, "rel" or "abs".
    cooldown: steps after a reduction that do not count.  eps: a smaller reduction is left out.
    Raises: ValueError for options out of range.
    Source: PyTorch.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | Sequence[float] = 0.0,
        eps: float = 1e-8,
    ) -> None:
        if mode not in ("min", "max"):
            raise ValueError(f"mode must be 'min' or 'max', got {mode!r}")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold_mode must be 'rel' or 'abs', got {threshold_mode!r}")
        if not 0 <= factor < 1:
            raise ValueError(f"factor must lie in [0, 1), got {factor}")
        check_whole("patience", patience, 0)
        check_whole("cooldown", cooldown, 0)
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.eps = cooldown, eps
        self.min_lrs = per_group("min_lr", min_lr, optimizer)
        self.best = math.inf if mode == "min" else -math.inf
        self.num_bad_epochs = self.cooldown_counter = self.last_epoch = 0
        self.optimizer = optimizer
        self.base_lrs = self.get_last_lr()  # here: the rates of now

    def get_lr(self) -> list[float]:
        """The rates since the last step."""
        return list(self.base_lrs)

    def step(self, metrics: Any) -> None:  # type: ignore[override]
        """Judge a metric, a number or tensor of one element; NaN is no improvement."""
        metric = float(metrics)
        self.base_lrs = self.get_last_lr()
        self.last_epoch += 1
        if self._is_better(metric):
            self.best, self.num_bad_epochs = metric, 0
        else:
            self.num_bad_epochs += 1
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
            self.base_lrs = [
                self._reduced(*each) for each in zip(self.base_lrs, self.min_lrs, strict=True)
            ]
            self.apply()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over a checked state; the groups' `initial_lr` is not this schedule's."""
        vars(self).update(copy.deepcopy(dict(state)))

    def _reduced(self, rate: float, least: float) -> float:
        new = max(rate * self.factor, least)
        return new if rate - new > self.eps else rate

    def _is_better(self, metric: float) -> bool:
        sign = 1 if self.mode == "min" else -1
        if self.threshold_mode == "rel":
            return sign * metric < sign * self.best * (1 - sign * self.threshold)
        return sign * metric < sign * self.best - self.threshold
