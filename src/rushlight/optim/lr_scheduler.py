"""Learning-rate schedules under PyTorch's names; `schedule.py` has what they share."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from rushlight.optim.optimizer import Optimizer
from rushlight.optim.schedule import LRScheduler, check_range, check_whole, cosine, line
from rushlight.optim.schedule import OneCycleLR as OneCycleLR
from rushlight.optim.schedule import ReduceLROnPlateau as ReduceLROnPlateau
from rushlight.optim.schedule import SequentialLR as SequentialLR


class LambdaLR(LRScheduler):
    """Base times a function of the step, one function or one for each group.

    The functions are not part of the state.  Raises: ValueError for another number of functions.
    """

    unsaved = (*LRScheduler.unsaved, "lr_lambdas")

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
        last_epoch: int = -1,
    ) -> None:
        count = len(optimizer.param_groups)
        self.lr_lambdas = [lr_lambda] * count if callable(lr_lambda) else list(lr_lambda)
        if len(self.lr_lambdas) != count:
            raise ValueError(f"lr_lambda: {len(self.lr_lambdas)} functions, {count} groups")
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        """Base * function(step)."""
        pairs = zip(self.base_lrs, self.lr_lambdas, strict=True)
        return [base * float(factor(self.last_epoch)) for base, factor in pairs]


class _OfBase(LRScheduler):
    """A formula of the base and the step that is the same for all groups."""

    def rate(self, base: float) -> float:
        """The rate at step `last_epoch`."""
        raise NotImplementedError

    def get_lr(self) -> list[float]:
        """The rate of every group at step `last_epoch`."""
        return [self.rate(base) for base in self.base_lrs]


class StepLR(_OfBase):
    """Base * gamma^floor(step / step_size).  Raises: ValueError for a step_size below 1."""

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        check_whole("step_size", step_size)
        check_range("gamma", gamma, 0)
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float) -> float:
        """Base * gamma^floor(step / step_size)."""
        return base * self.gamma ** (self.last_epoch // self.step_size)


class MultiStepLR(_OfBase):
    """Base * gamma^(milestones reached).

    Raises: ValueError for no milestones, or such as are no whole numbers from 0 on.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        milestones: Sequence[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:
        if not milestones:
            raise ValueError("milestones: at least one is needed")
        for i, milestone in enumerate(milestones):
            check_whole(f"milestones[{i}]", milestone, 0)
        check_range("gamma", gamma, 0)
        self.milestones, self.gamma = sorted(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float) -> float:
        """Base * gamma^(milestones reached)."""
        return base * self.gamma ** bisect_right(self.milestones, self.last_epoch)


class ConstantLR(_OfBase):
    """Base * factor for the first total_iters steps, then base.

    Raises: ValueError for a factor outside [0, 1] or negative total_iters.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        factor: float = 1 / 3,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        check_range("factor", factor, 0, 1)
        check_whole("total_iters", total_iters, 0)
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float) -> float:
        """Base * factor, or base."""
        return base * (self.factor if self.last_epoch < self.total_iters else 1.0)


class LinearLR(_OfBase):
    """Base times a factor that goes in a line from start_factor to end_factor in total_iters steps.

    Raises: ValueError for a start_factor outside (0, 1], an end_factor outside [0, 1], or
    total_iters below 1.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if not 0 < start_factor <= 1:
            raise ValueError(f"start_factor must lie in (0, 1], got {start_factor}")
        check_range("end_factor", end_factor, 0, 1)
        check_whole("total_iters", total_iters)
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float) -> float:
        """On the line, then at its end."""
        share = min(self.last_epoch, self.total_iters) / self.total_iters
        return base * line(self.start_factor, self.end_factor, share)


class ExponentialLR(_OfBase):
    """Base * gamma^step.  Raises: ValueError for a negative gamma."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        check_range("gamma", gamma, 0)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float) -> float:
        """Base * gamma^step."""
        return base * float(self.gamma**self.last_epoch)


class CosineAnnealingLR(_OfBase):
    """eta_min + (base - eta_min) (1 + cos(pi step / T_max)) / 2: down in T_max steps, up again.

    Raises: ValueError for T_max below 1.
    Source: Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5.
    """

    def __init__(
        self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1
    ) -> None:
        check_whole("T_max", T_max)
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float) -> float:
        """On the wave."""
        return cosine(base, self.eta_min, self.last_epoch / self.T_max)


class CosineAnnealingWarmRestarts(_OfBase):
    """Half a cosine from base to eta_min in T_0 steps, then from base again, T_mult times as long.

    Raises: ValueError for T_0 or T_mult below 1.
    Source: Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        check_whole("T_0", T_0)
        check_whole("T_mult", T_mult)
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float) -> float:
        """On the half cosine of the current run."""
        length, done = self.T_0, self.last_epoch
        if self.T_mult == 1:
            done %= length
        while done >= length:
            done, length = done - length, length * self.T_mult
        return cosine(base, self.eta_min, done / length)


class _WithWarmup(_OfBase):
    """A rise to base in warmup_steps, then a curve to min_lr at total_steps; it stays there."""

    curve: Callable[[float, float, float], float]

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_steps: int,
        total_steps: int,
        min_lr: float = 0.0,
        start_lr: float | None = None,
        last_epoch: int = -1,
    ) -> None:
        check_whole("warmup_steps", warmup_steps, 0)
        check_whole("total_steps", total_steps, max(warmup_steps, 1))
        check_range("min_lr", min_lr, 0)
        if start_lr is not None:
            check_range("start_lr", start_lr, 0)
        self.warmup_steps, self.total_steps = warmup_steps, total_steps
        self.min_lr, self.start_lr = min_lr, start_lr
        super().__init__(optimizer, last_epoch)

    def rate(self, base: float) -> float:
        """In the warm-up, on the curve, or at its end."""
        step, warmup = self.last_epoch, self.warmup_steps
        if step < warmup and self.start_lr is not None:
            return line(self.start_lr, base, step / warmup)
        if step < warmup:
            return base * (step + 1) / (warmup + 1)
        length = self.total_steps - warmup
        share = min((step - warmup) / length, 1) if length else 0
        return self.curve(base, self.min_lr, share)


class CosineWithWarmupLR(_WithWarmup):
    """A rise to base in warmup_steps, half a cosine to min_lr at total_steps; it stays there.

    Step s of the rise has base (s + 1) / (warmup_steps + 1), never 0, or, with a start_lr,
    start_lr + s / warmup_steps (base - start_lr). With total_steps == warmup_steps there is no
    curve and the rate stays at base.
    Raises: ValueError for total_steps below warmup_steps or 1, negative rates.
    Source: nanoGPT; Loshchilov & Hutter 2017, arXiv:1608.03983, eq. 5.
    """

    curve = staticmethod(cosine)


class LinearWithWarmupLR(_WithWarmup):
    """The same as `CosineWithWarmupLR` with a line for the half cosine."""

    curve = staticmethod(line)
