"""Training that is interrupted, runs out of disk, or meets numbers that are not finite."""

import io
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import rushlight as rl
import small_run
from rushlight import nn
from rushlight.errors import NonFiniteError
from rushlight.optim import SGD
from rushlight.train import Callback, Progress, interrupt, train
from rushlight.train.report import read_metrics
from small_run import line, pairs, squares


@pytest.fixture(autouse=True)
def global_streams():
    """Checkpoints keep Python's and NumPy's streams, too."""
    random.seed(0)
    np.random.seed(0)


# ---- interruptions ----


class At(Callback):
    """Does something after a step, once."""

    def __init__(self, step, action):
        self.when, self.action = step, action

    def step(self, run):
        if run.step == self.when:
            self.when = None
            self.action()


def test_ctrl_c_saves_and_goes_on(tmp_path):
    small_run.start(tmp_path / "whole", small_run.TOTAL)
    random.seed(0)
    np.random.seed(0)
    with pytest.raises(KeyboardInterrupt):
        small_run.start(
            tmp_path / "cut",
            small_run.TOTAL,
            callbacks=[At(9, lambda: signal.raise_signal(signal.SIGINT))],
        )
    assert rl.load(tmp_path / "cut" / "resume.safetensors")["progress"]["step"] == 9
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    small_run.start(tmp_path / "cut", small_run.TOTAL, resume=True)
    assert small_run.contents(tmp_path / "cut") == small_run.contents(tmp_path / "whole")


def test_ctrl_c_in_an_evaluation_repeats_it(tmp_path):
    class Interrupting:
        """Held-out batches, interrupted at the first."""

        def __iter__(self):
            signal.raise_signal(signal.SIGINT)
            yield small_run.data()

    small_run.start(tmp_path / "whole", small_run.TOTAL)
    random.seed(0)
    np.random.seed(0)
    with pytest.raises(KeyboardInterrupt):
        small_run.start(tmp_path / "cut", small_run.TOTAL, held_out=Interrupting())
    assert rl.load(tmp_path / "cut" / "resume.safetensors")["progress"] | {"reported": 6} == rl.load(tmp_path / "cut" / "resume.safetensors")["progress"]  # fmt: skip
    progress = Progress(out=io.StringIO())
    small_run.start(tmp_path / "cut", small_run.TOTAL, resume=True, callbacks=[progress])
    assert "step 7/20  loss " in progress.out.getvalue()
    assert small_run.contents(tmp_path / "cut") == small_run.contents(tmp_path / "whole")
    steps = [x["step"] for x in read_metrics(tmp_path / "cut" / "metrics.jsonl")]
    assert steps == list(range(1, small_run.TOTAL + 1))


def test_a_signal_that_comes_twice_at_once_is_one(tmp_path):
    def twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        small_run.start(tmp_path, 9, save_every=3, callbacks=[At(5, twice)])
    assert rl.load(tmp_path / "resume.safetensors")["progress"]["step"] == 5


def test_the_second_ctrl_c_acts_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(interrupt, "PATIENCE", -1.0)

    def twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        small_run.start(tmp_path, 9, save_every=3, callbacks=[At(5, twice)])
    assert rl.load(tmp_path / "resume.safetensors")["progress"]["step"] == 3


def test_foreign_handlers_stay(tmp_path):
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        run = small_run.start(
            tmp_path, 9, callbacks=[At(5, lambda: signal.raise_signal(signal.SIGINT))]
        )
    finally:
        signal.signal(signal.SIGINT, before)
    assert (seen, run.step) == ([1], 9)


def test_a_full_disk_keeps_the_checkpoint(tmp_path):
    """Fault 23; a limit on the size of files stands for the disk."""
    code = f"""
import resource, signal, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import small_run
from rushlight.train import Callback
class Fill(Callback):
    def step(self, run):
        if run.step == 7:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
try:
    small_run.start({str(tmp_path)!r}, 20, callbacks=[Fill()], log_every=100, eval_every=0)
except OSError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "resume.safetensors" in done.stdout
    assert "nothing was written or replaced" in done.stdout
    assert rl.load(tmp_path / "resume.safetensors")["progress"]["step"] == 5
    assert not list(tmp_path.glob("*.part"))


# ---- numbers that are not finite ----


def diverging(tmp_path, loss, batches=None, model=None, **options):
    """The message of a run that stops at step 3, with its checkpoint of step 2."""
    model = model or nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 1))
    batches = batches or [rl.ones(4, 2)]
    with pytest.raises(NonFiniteError) as error:
        train(model, batches, loss, folder=tmp_path, steps=9, save_every=1, **options)
    assert rl.load(tmp_path / "resume.safetensors")["progress"]["step"] == 2
    assert f"the checkpoint in {tmp_path} is intact" in str(error.value)
    return str(error.value)


def test_a_batch_with_nan_is_named(tmp_path):
    bad = rl.ones(4, 2)
    bad[1, 1] = float("nan")
    batches = [rl.ones(4, 2), rl.ones(4, 2), bad]
    message = diverging(tmp_path, lambda model, x: model(x).mean(), batches)
    assert message.startswith(
        "step 3, batch 3: the loss is nan; first not finite: batch: 1 of 8 elements"
    )


def test_a_weight_that_is_not_finite_is_named(tmp_path):
    calls = []

    def loss(model, x):
        calls.append(1)
        if len(calls) == 3:
            with rl.no_grad():
                model[2].weight.fill_(float("inf"))
        return model(x).mean()

    assert "2.weight: 3 of 3 elements" in diverging(tmp_path, loss)


def test_an_operation_is_named(tmp_path):
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(2, 2)
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            h = self.fc(x)
            return h / (h * 0) if self.calls >= 3 else h

    model = nn.Sequential(nn.Linear(2, 2), Odd(), nn.ReLU())
    message = diverging(tmp_path, lambda model, x: model(x).sum(), model=model)
    assert "first not finite: the result of div in 1" in message
    assert "forward" not in vars(model[1])


def test_a_loss_function_is_named(tmp_path):
    calls = []

    def loss(model, x):
        calls.append(1)
        y = model(x).mean()
        return y * 1e30 * 1e30 if len(calls) >= 3 else y

    assert "first not finite: the result of mul in the loss function" in diverging(tmp_path, loss)


def test_dropout_draws_the_same_when_it_is_searched(tmp_path):
    model = nn.Sequential(nn.Linear(2, 200), nn.Dropout(0.5), nn.Linear(200, 1))
    calls = []

    def loss(model, x):
        calls.append(1)
        hidden = model[1](model[0](x))
        sizes.append(hidden.detach().numpy().copy())
        return model[2](hidden).mean() * (float("inf") if len(calls) >= 3 else 1.0)

    sizes = []
    diverging(tmp_path, loss, model=model)
    assert np.array_equal(sizes[-1], sizes[-2])


def test_a_gradient_that_is_not_finite_is_named(tmp_path):
    calls = []

    def loss(model, x):
        calls.append(1)
        y = model(x)
        return (y * 0).abs().sqrt().sum() if len(calls) >= 3 else y.sum()

    message = diverging(tmp_path, loss)
    assert "the norm of the gradient is nan; first not finite: 0.weight" in message


def test_a_held_out_batch_is_named(tmp_path):
    held_out = [pairs(1.0), pairs(float("nan"))]
    with pytest.raises(NonFiniteError) as error:
        train(
            line(), [pairs(1.0)], squares, held_out=held_out, steps=4, eval_every=2, folder=tmp_path
        )
    assert "step 2: held-out batch 2: the loss is nan; first not finite: batch.0: 1 of 1" in str(
        error.value
    )


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    model = line(1.0)
    optimizer = SGD(model.parameters(), lr=1.0)

    class Ruin(Callback):
        def step(self, run):
            if run.step == 2:
                with rl.no_grad():
                    model.weight.fill_(float("inf"))

    with pytest.raises(
        NonFiniteError, match=r"step 2 is not saved; first not finite: model\.weight"
    ):
        train(
            model,
            [pairs(1.0)],
            squares,
            optimizer=optimizer,
            steps=5,
            save_every=1,
            folder=tmp_path,
            callbacks=[Ruin()],
        )
    assert rl.load(tmp_path / "resume.safetensors")["progress"]["step"] == 1
