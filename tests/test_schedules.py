"""Schedules: golden vectors, PyTorch's values, resuming, and what they refuse."""

import json
import math

import numpy as np
import pytest

import rushlight as rl
from rushlight.io import load, save
from rushlight.optim import lr_scheduler as schedules
from vectors import vector

STEPS = 300
RATES = (0.1, 0.003)


def optimizer(kind="SGD", lib=rl, rates=RATES):
    groups = [{"params": [lib.zeros(2, requires_grad=True)], "lr": rate} for rate in rates]
    options = {"momentum": 0.9} if kind == "SGD" else {}
    return getattr(lib.optim, kind)(groups, **options)


def trace(opt, make, steps=STEPS, key="lr"):
    """Rates (steps + 1, groups), the one before any step first."""
    schedule = make(opt)
    rows = [[group[key] for group in opt.param_groups]]
    for _ in range(steps):
        schedule.step()
        rows.append([group[key] for group in opt.param_groups])
    return np.array(rows, np.float64)


@pytest.mark.parametrize(
    ("name", "base", "make"),
    [
        ("cosine_lr1e3_w10_t100_min1e5", 1e-3, lambda o: schedules.CosineWithWarmupLR(o, 10, 100, 1e-5, 1e-5)),
        ("cosine_w0_t50", 3e-4, lambda o: schedules.CosineWithWarmupLR(o, 0, 50)),
        ("cosine_w50_t50", 3e-4, lambda o: schedules.CosineWithWarmupLR(o, 50, 50, 3e-5, 3e-5)),
        ("linear_lr1e3_w10_t100_min1e4", 1e-3, lambda o: schedules.LinearWithWarmupLR(o, 10, 100, 1e-4, 1e-4)),
        (
            "step_lr01_w5_s20_g05",
            0.1,
            lambda o: schedules.SequentialLR(
                o, [schedules.LambdaLR(o, lambda s: s / 5), schedules.StepLR(o, 20, 0.5)], [5]
            ),
        ),
    ],
)  # fmt: skip
def test_golden(name, base, make):
    expected = vector("schedules")[name]
    ours = trace(optimizer(rates=[base]), make, len(expected) - 1)[:, 0]
    rounding = base * 2.0**-24  # of 1 + cos in float32, in which the reference computes
    np.testing.assert_allclose(ours, expected, rtol=1e-6, atol=rounding)


MAKERS = {
    "lambda": lambda s, o: s.LambdaLR(o, [lambda t: 0.95**t, lambda t: 1 / (1 + t)]),
    "step": lambda s, o: s.StepLR(o, 30, 0.5),
    "multi": lambda s, o: s.MultiStepLR(o, [80, 20, 20, 200], 0.3),
    "constant": lambda s, o: s.ConstantLR(o, 0.25, 40),
    "linear": lambda s, o: s.LinearLR(o, 0.1, 0.7, 90),
    "exponential": lambda s, o: s.ExponentialLR(o, 0.97),
    "cosine": lambda s, o: s.CosineAnnealingLR(o, 70, 1e-4),
    "restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 17, 1, 1e-4),
    "growing restarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 9, 2),
    "one cycle": lambda s, o: s.OneCycleLR(o, [0.5, 0.2], STEPS + 1),
    "one cycle, linear": lambda s, o: s.OneCycleLR(o, 0.5, epochs=43, steps_per_epoch=7, anneal_strategy="linear", pct_start=0.0),
    "one cycle, three phases": lambda s, o: s.OneCycleLR(o, 0.5, STEPS + 1, three_phase=True, pct_start=0.4),
    "sequence": lambda s, o: s.SequentialLR(
        o, [s.LinearLR(o, 0.01, 1.0, 20), s.CosineAnnealingLR(o, 100, 1e-3), s.MultiStepLR(o, [10, 50])], [20, 150]
    ),
    "sequence of linear, exponential": lambda s, o: s.SequentialLR(
        o, [s.ConstantLR(o, 0.1, 20), s.ExponentialLR(o, 0.99), s.LinearLR(o, 0.5, 0.1, 30)], [15, 100]
    ),
}  # fmt: skip


@pytest.mark.peer
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_equals_pytorch(name, torch):
    make = MAKERS[name]
    for kind, key in (("SGD", "momentum"), ("AdamW", "betas")):
        for column in ("lr", key):
            ours = trace(optimizer(kind), lambda o: make(schedules, o), key=column)
            theirs = trace(
                optimizer(kind, torch), lambda o: make(torch.optim.lr_scheduler, o), key=column
            )
            np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-15)


PLATEAUS = (
    {},
    {"patience": 3, "cooldown": 4, "factor": 0.5, "min_lr": [0.001, 0.0005]},
    {"mode": "max", "patience": 0, "threshold": 0.1},
    {"mode": "max", "patience": 2, "threshold": 0.1, "threshold_mode": "abs"},
    {"patience": 1, "threshold": 0.01, "threshold_mode": "abs", "eps": 1e-4},
)


@pytest.mark.peer
@pytest.mark.parametrize("options", PLATEAUS)
def test_plateau_equals_pytorch(options, torch, rng):
    metrics = [*(1 / (1 + np.arange(40)) + 0.1 * rng.standard_normal(40)), math.nan, math.inf]
    rows = []
    for opt, lib in ((optimizer(), schedules), (optimizer("SGD", torch), torch.optim.lr_scheduler)):
        schedule = lib.ReduceLROnPlateau(opt, **options)
        rows.append([])
        for metric in metrics:
            schedule.step(metric)
            rows[-1].append([group["lr"] for group in opt.param_groups])
    np.testing.assert_allclose(*rows, rtol=1e-12)


def test_warmup_does_not_start_at_zero():
    ours = trace(optimizer(), lambda o: schedules.CosineWithWarmupLR(o, 4, 12, 0.001), 20)
    np.testing.assert_allclose(ours[:5, 0], 0.1 * np.arange(1, 6) / 5)
    assert (ours[12:] == 0.001).all()
    assert ours.min() == 0.003 / 5  # the second group's first
    assert trace(optimizer(), lambda o: schedules.LinearWithWarmupLR(o, 1, 2), 1)[0, 0] == 0.05


OURS = {
    **{name: (lambda o, make=make: make(schedules, o)) for name, make in MAKERS.items()},
    "cosine with warm-up": lambda o: schedules.CosineWithWarmupLR(o, 20, 100, 1e-4),
    "linear with warm-up": lambda o: schedules.LinearWithWarmupLR(o, 20, 100, 1e-4, 1e-3),
}


@pytest.mark.parametrize("name", OURS)
def test_resume(name, tmp_path):
    """Fault 20: in whichever order optimizer and schedule are built and loaded."""
    make = OURS[name]
    opt = optimizer()
    schedule = make(opt)
    for _ in range(123):
        schedule.step()
    save({"optimizer": opt.state_dict(), "schedule": schedule.state_dict()}, tmp_path / "s")
    json.dumps(schedule.state_dict(), allow_nan=False)
    at = [dict(group, params=0, lr_arrays=0) for group in opt.param_groups]
    for _ in range(50):
        schedule.step()
    for first in ("optimizer", "schedule"):
        saved = load(tmp_path / "s")
        resumed = optimizer(rates=[7.0, 8.0])
        if first == "optimizer":
            resumed.load_state_dict(saved["optimizer"])
            again = make(resumed)
            assert [g["lr"] for g in resumed.param_groups] == [g["lr"] for g in at]
        else:
            again = make(resumed)
            resumed.load_state_dict(saved["optimizer"])
        again.load_state_dict(saved["schedule"])
        assert [dict(group, params=0, lr_arrays=0) for group in resumed.param_groups] == at
        assert again.get_last_lr() == [g["lr"] for g in at]
        for _ in range(50):
            again.step()
        assert again.state_dict() == schedule.state_dict()
        assert again.get_last_lr() == schedule.get_last_lr()


def test_a_sequence_begins_with_its_first_whatever_was_built_last():
    opt = optimizer()
    later, first = schedules.ExponentialLR(opt, 0.5), schedules.ConstantLR(opt, 0.25, 9)
    schedules.SequentialLR(opt, [first, later], [3])
    assert [group["lr"] for group in opt.param_groups] == [rate * 0.25 for rate in RATES]


def test_last_epoch_goes_on():
    opt = optimizer()
    expected = trace(opt, lambda o: schedules.ExponentialLR(o, 0.9), 12)
    assert (
        trace(opt, lambda o: schedules.ExponentialLR(o, 0.9, last_epoch=6), 5) == expected[7:]
    ).all()


def test_plateau_resumes(tmp_path):
    opt = optimizer()
    schedule = schedules.ReduceLROnPlateau(opt, patience=2)
    for _ in range(8):
        schedule.step(1.0)
    save(schedule.state_dict(), tmp_path / "s")
    resumed = optimizer()
    again = schedules.ReduceLROnPlateau(resumed, patience=2)
    again.load_state_dict(load(tmp_path / "s"))
    for each in (schedule, again):
        for _ in range(4):
            each.step(rl.tensor(1.0))
    assert again.get_last_lr() == schedule.get_last_lr() != list(RATES)
    assert again.state_dict() == schedule.state_dict()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda o: schedules.StepLR(o, 0), "step_size"),
        (lambda o: schedules.StepLR(o, 2.5), "step_size"),
        (lambda o: schedules.StepLR(o, 2, -0.1), "gamma"),
        (lambda o: schedules.MultiStepLR(o, []), "milestones"),
        (lambda o: schedules.MultiStepLR(o, [3, -1]), r"milestones\[1\]"),
        (lambda o: schedules.ConstantLR(o, 1.5), "factor"),
        (lambda o: schedules.LinearLR(o, 0.0), "start_factor"),
        (lambda o: schedules.LinearLR(o, total_iters=0), "total_iters"),
        (lambda o: schedules.ExponentialLR(o, math.nan), "gamma"),
        (lambda o: schedules.CosineAnnealingLR(o, 0), "T_max"),
        (lambda o: schedules.CosineAnnealingWarmRestarts(o, 5, 0), "T_mult"),
        (lambda o: schedules.OneCycleLR(o, 0.1), "total_steps"),
        (lambda o: schedules.OneCycleLR(o, 0.1, -1), "total_steps"),
        (lambda o: schedules.OneCycleLR(o, [0.1], 5), "max_lr has 1"),
        (lambda o: schedules.OneCycleLR(o, 0.1, 5, pct_start=2.0), "pct_start"),
        (lambda o: schedules.OneCycleLR(o, 0.1, 5, anneal_strategy="exp"), "anneal_strategy"),
        (lambda o: schedules.LambdaLR(o, [abs]), "1 functions, 2 groups"),
        (lambda o: schedules.SequentialLR(o, [schedules.StepLR(o, 2)], [4]), "milestones"),
        (lambda o: schedules.SequentialLR(o, [schedules.StepLR(o, 2)] * 3, [4, 4]), r"milestones\[1\]"),
        (lambda o: schedules.SequentialLR(o, [schedules.ReduceLROnPlateau(o)], []), "ReduceLROnPlateau"),
        (lambda o: schedules.SequentialLR(o, [schedules.StepLR(optimizer(), 2)], []), "another optimizer"),
        (lambda o: schedules.CosineWithWarmupLR(o, 10, 9), "total_steps"),
        (lambda o: schedules.CosineWithWarmupLR(o, -1, 9), "warmup_steps"),
        (lambda o: schedules.LinearWithWarmupLR(o, 1, 9, -0.1), "min_lr"),
        (lambda o: schedules.ReduceLROnPlateau(o, factor=1.0), "factor"),
        (lambda o: schedules.ReduceLROnPlateau(o, mode="least"), "mode"),
        (lambda o: schedules.ExponentialLR(o, 0.9, last_epoch=3), "initial_lr"),
        (lambda o: schedules.ExponentialLR(o, 0.9).load_state_dict({"last_epoch": 3}), "base_lrs, gamma"),
        (lambda o: schedules.ExponentialLR(o, 0.9).load_state_dict(schedules.ExponentialLR(optimizer(rates=[1.0]), 0.9).state_dict()), "1 rates saved, 2 groups"),
    ],
)  # fmt: skip
def test_refuses(make, message):
    with pytest.raises(ValueError, match=message):
        make(optimizer())


def test_one_cycle_ends():
    opt = optimizer()
    schedule = schedules.OneCycleLR(opt, 0.1, 10)
    for _ in range(10):
        schedule.step()
    assert opt.param_groups[0]["lr"] == pytest.approx(0.1 / 25 / 1e4)
    with pytest.raises(ValueError, match="10 steps"):
        schedule.step()


def test_a_schedule_of_the_user():
    class Halves(schedules.LRScheduler):
        def get_lr(self):
            return [base / 2**self.last_epoch for base in self.base_lrs]

    assert (trace(optimizer(), Halves, 4)[4] == np.array(RATES) / 16).all()
