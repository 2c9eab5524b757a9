"""The training loop: gradients of several batches, evaluation, callbacks, saving, resuming."""

import gc
import io
import json
import random
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

import rushlight as rl
import small_run
from rushlight import nn
from rushlight.data import DataLoader, TensorDataset
from rushlight.errors import ConfigError, FormatError, NonFiniteError
from rushlight.nn import functional as F
from rushlight.optim import EMA, SGD
from rushlight.train import Callback, Progress, evaluate, train
from rushlight.train.report import read_metrics
from small_run import line, pairs, squares
from vectors import vector


@pytest.fixture(autouse=True)
def global_streams():
    """Checkpoints keep Python's and NumPy's streams, too."""
    random.seed(0)
    np.random.seed(0)


# ---- the step ----


def test_batches_of_1_and_9_labels_are_a_batch_of_10():
    """Fault 19."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((20, 5)).astype(np.float32)
    labels = rng.integers(0, 3, 20)
    labels[1:10] = -100  # 1 label counts in the first ten, 9 in the others
    labels[10] = -100

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1]), (batch[1] != -100).sum()

    def weights(batches, accumulate):
        rl.manual_seed(1)
        model = nn.Linear(5, 3).double()
        run = train(
            model, batches, loss, optimizer=SGD(model.parameters(), 1.0), accumulate=accumulate
        )
        assert (run.step, run.items) == (1, 10)
        return model.weight.detach().numpy(), run.loss, run.grad_norm

    whole = [(rl.tensor(x).double(), rl.tensor(labels))]
    halves = [(rl.tensor(x[i:j]).double(), rl.tensor(labels[i:j])) for i, j in ((0, 10), (10, 20))]
    one, two = weights(whole, 1), weights(halves, 2)
    np.testing.assert_allclose(two[0], one[0], rtol=1e-13)
    np.testing.assert_allclose(two[1:], one[1:], rtol=1e-13)


def test_accumulation_of_the_golden_vector():
    """The mean of four gradients, in float32 to the bit."""
    golden = vector("accum")
    model = nn.Module()
    model.p0, model.p1 = nn.Parameter(rl.zeros(12)), nn.Parameter(rl.zeros(5))
    batches = [
        (rl.tensor(g0), rl.tensor(g1)) for g0, g1 in zip(golden["g0"], golden["g1"], strict=True)
    ]

    def loss(model, batch):
        return (model.p0 * batch[0]).sum() + (model.p1 * batch[1]).sum()

    train(model, batches, loss, optimizer=SGD(model.parameters(), 1.0), accumulate=4)
    np.testing.assert_array_equal(-model.p0.detach().numpy(), golden["out0"])
    np.testing.assert_array_equal(-model.p1.detach().numpy(), golden["out1"])


def test_a_step_without_items_changes_nothing_but_time():
    model = line(1.0)

    def loss(model, batch):
        return F.cross_entropy(model(batch).expand(2, 3), rl.tensor([-100, -100])), 0

    run = train(model, [rl.ones(1, 1)], loss, optimizer=SGD(model.parameters(), 1.0), steps=2)
    assert (run.loss, run.items, model.weight.item()) == (0.0, 0.0, 1.0)


def test_clipping_and_what_the_run_tells():
    model = line()
    optimizer = SGD(model.parameters(), lr=0.5)
    run = train(model, [pairs(1.0, 3.0)], squares, optimizer=optimizer, clip_norm=2.0)
    # loss = mean(4 x^2) = 20, gradient = mean(-4 x^2) = -20, clipped to -2
    assert run.loss == pytest.approx(20)
    assert run.grad_norm == pytest.approx(20)
    assert model.weight.item() == pytest.approx(0.5 * 2, rel=1e-5)
    assert (run.step, run.total_steps, run.items, run.lr) == (1, 1, 2, 0.5)


def test_no_steps_means_once_through_the_batches():
    model, seen = line(), []

    def loss(model, batch):
        seen.append(float(batch[0][0].item()))
        return squares(model, batch)

    batches = [pairs(float(i)) for i in range(1, 6)]
    assert train(model, batches, loss).step == 5
    assert seen == [1, 2, 3, 4, 5]
    assert train(model, batches, loss, steps=7).step == 7
    assert seen[5:] == [1, 2, 3, 4, 5, 1, 2]
    with pytest.raises(ConfigError, match="how many steps"):
        train(model, iter(batches), loss)
    with pytest.raises(ConfigError, match="ran out: a pass after 5"):
        train(model, iter(batches), loss, steps=6)
    with pytest.raises(ConfigError, match="none"):
        train(model, [], loss, steps=1)


def with_error(model, batch):
    """Squares, and the mean absolute error as a tensor or a number, on every second batch."""
    value, count = squares(model, batch)
    error = (model(batch[0]) - batch[1]).abs().mean()
    return (value, count, {"error": error, "twice": 2 * error.item()} if count > 1 else {})


def test_metrics_are_means_over_the_items_that_have_them(tmp_path):
    seen = []

    class Watch(Callback):
        def step(self, run):
            seen.append((dict(run.metrics), dict(run.val_metrics)))

    batches = [pairs(1.0, 3.0), pairs(9.0), pairs(2.0, 2.0, 5.0)]  # errors of the same sizes
    model = line(1.0)
    frozen = rl.optim.SGD(model.parameters(), lr=0.0)
    options = {"optimizer": frozen, "callbacks": [Watch()], "folder": tmp_path, "log_every": 1}
    train(model, batches, with_error, steps=1, accumulate=3, held_out=batches[:2], **options)
    # errors 1, 3 and 2, 2, 5 of the first and third batch; 9 does not count
    assert seen == [
        (
            {"error": pytest.approx(13 / 5), "twice": pytest.approx(26 / 5)},
            {"error": 2.0, "twice": 4.0},
        )
    ]
    told = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert (told["error"], told["val_error"]) == (pytest.approx(13 / 5), 2.0)


@pytest.mark.parametrize("metrics", [3, {1: 2.0}, [("a", 1)]])
def test_metrics_are_numbers_by_name(metrics):
    with pytest.raises(ConfigError, match="metrics are numbers by name"):
        train(line(), [pairs(1.0)], lambda m, b: (*squares(m, b), metrics))


@pytest.mark.parametrize("result", [1.0, None, rl.ones(2), (rl.ones(2), 2)])
def test_a_loss_is_one_number(result):
    with pytest.raises(ValueError, match="a loss function gives one number"):
        train(line(), [pairs(1.0)], lambda model, batch: result)


def test_evaluate_weighs_by_items_and_restores_modes():
    model = nn.Sequential(line(1.0), nn.Dropout(0.5), nn.Dropout(0.5))
    model[2].eval()
    batches = [pairs(1.0), pairs(2.0, 2.0, 2.0)]  # squared errors: 1, and 4 three times
    assert evaluate(model, batches, squares) == pytest.approx(13 / 4)
    assert [module.training for module in model.modules()] == [True, True, True, False]
    with pytest.raises(ConfigError, match="no items"):
        evaluate(model, [], squares)


def test_evaluation_does_not_move_random_numbers():
    def losses(held_out):
        rl.manual_seed(0)
        model = nn.Sequential(nn.Linear(1, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        found = []

        class Note(Callback):
            def step(self, run):
                found.append(run.loss)

        loader = DataLoader(TensorDataset(*pairs(*range(9))), 2, shuffle=True)
        held = DataLoader(TensorDataset(*pairs(1.0, 2.0)), 1) if held_out else None
        train(model, loader, squares, steps=9, held_out=held, eval_every=2, callbacks=[Note()])
        return found

    assert losses(held_out=False) == losses(held_out=True)


# ---- callbacks ----


def test_callbacks_and_stopping():
    told = []

    class Note(Callback):
        def start(self, run):
            told.append("start")

        def step(self, run):
            told.append((run.step, run.val_loss is not None))
            run.stop = run.step == 3

        def stop(self, run):
            told.append("stop")

    held_out = [pairs(1.0)]
    run = train(
        line(), [pairs(1.0)], squares, steps=9, eval_every=2, held_out=held_out, callbacks=[Note()]
    )
    assert told == ["start", (1, False), (2, True), (3, False), "stop"]
    assert run.step == 3


def test_metrics(tmp_path):
    small_run.start(tmp_path, 20, log_every=4)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [4, 7, 8, 12, 14, 16, 20]
    assert [line["step"] for line in lines if "val_loss" in line] == [7, 14, 20]
    assert {"step", "loss", "lr", "grad_norm", "items", "items_per_s"} <= set(lines[0])
    assert lines[-1]["items"] == 6 * 23 + 4 * 4  # 40 batches: 6 epochs and 4 batches


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": 3}, "did you mean 'steps'"),
        ({"steps": -1}, "from 0 on"),
        ({"steps": 1.5}, "from 0 on"),
        ({"accumulate": 0}, "from 1 on"),
        ({"clip_norm": float("nan")}, "clip_norm"),
        ({"resume": True}, "folder"),
    ],
)
def test_options(options, message):
    with pytest.raises(ConfigError, match=message):
        train(line(), [pairs(1.0)], squares, **options)


# ---- saving and resuming ----


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("half", range(1, small_run.TOTAL))
def test_resuming_anywhere_gives_the_same_bytes(tmp_path, half, workers):
    """Fault 22: weights, optimizer, schedule, averages, sampler, random streams, loader."""
    whole = small_run.start(tmp_path / "whole", small_run.TOTAL)
    random.seed(0)
    np.random.seed(0)
    small_run.start(tmp_path / "parts", half, workers=workers)
    random.seed(99)  # a new process begins anywhere
    np.random.seed(99)
    parts = small_run.start(
        tmp_path / "parts", small_run.TOTAL, workers=workers, resume=True, seed=99
    )
    # A run that ends early evaluates at its end; the same steps are the same all the same.
    assert (parts.loss, parts.step) == (whole.loss, whole.step)
    found, expected = small_run.contents(tmp_path / "parts"), small_run.contents(tmp_path / "whole")
    assert found["last.safetensors"] == expected["last.safetensors"]
    if parts.best_loss == whole.best_loss:
        assert found == expected
    numbers = [{k: v for k, v in x.items() if k in ("step", "loss", "lr")} for x in
               read_metrics(tmp_path / "parts" / "metrics.jsonl")]  # fmt: skip
    assert numbers == [{k: v for k, v in x.items() if k in ("step", "loss", "lr")} for x in
                       read_metrics(tmp_path / "whole" / "metrics.jsonl")]  # fmt: skip


def test_same_seed_does_not_replay_batches(tmp_path):
    seen = []

    def loss(model, batch):
        seen.append(batch[0].flatten().tolist())
        return squares(model, batch)

    def go(steps):
        rl.manual_seed(0)
        loader = DataLoader(TensorDataset(*pairs(*range(12))), 3, shuffle=True)
        train(line(), loader, loss, steps=steps, folder=tmp_path, resume=True)

    go(3)
    go(8)
    assert sorted(chain(*seen[:4])) == list(range(12))
    assert sorted(chain(*seen[4:8])) == list(range(12))
    assert seen[:4] != seen[4:8]


def test_plain_batches_resume_in_their_place(tmp_path):
    seen = []

    def loss(model, batch):
        seen.append(batch[0].item())
        return squares(model, batch)

    for steps in (3, 8):
        batches = [pairs(float(i)) for i in range(5)]
        train(line(), batches, loss, steps=steps, folder=tmp_path, resume=True)
    assert seen == [0, 1, 2, 3, 4, 0, 1, 2]


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    small_run.start(tmp_path, 2)
    before = small_run.contents(tmp_path)
    with pytest.raises(ConfigError, match="already holds a run"):
        small_run.start(tmp_path, 4)
    assert small_run.contents(tmp_path) == before


def test_a_checkpoint_is_there_from_the_start(tmp_path):
    class Look(Callback):
        def step(self, run):
            assert run.saved == 0
            assert rl.load(tmp_path / "resume.safetensors")["progress"]["step"] == 0
            run.stop = True

    train(line(), [pairs(1.0)], squares, steps=9, folder=tmp_path, callbacks=[Look()])
    assert rl.load(tmp_path / "last.safetensors").keys() == {"weight"}


def test_resuming_before_any_checkpoint_begins(tmp_path):
    run = small_run.start(tmp_path / "new", 3, resume=True)
    assert run.step == 3


def test_resuming_a_finished_run_changes_nothing(tmp_path):
    small_run.start(tmp_path, 6)
    before = small_run.contents(tmp_path)
    (tmp_path / "last.safetensors").unlink()
    run = small_run.start(tmp_path, 6, resume=True)
    assert run.step == 6
    assert small_run.contents(tmp_path) == before


def test_checkpoints_of_something_else_are_refused(tmp_path):
    small_run.start(tmp_path, 2)
    path = tmp_path / "resume.safetensors"
    good = path.read_bytes()
    model = line()
    other = rl.optim.AdamW(model.named_parameters())
    with pytest.raises(FormatError, match="does not fit this run: load_state_dict"):
        train(model, [pairs(1.0)], squares, steps=3, folder=tmp_path, resume=True, accumulate=2, ema=EMA(model, 0.9), optimizer=other, schedule=rl.optim.lr_scheduler.OneCycleLR(other, 0.1, 20))  # fmt: skip
    with pytest.raises(FormatError, match="differ in what they have: ema, schedule"):
        train(line(), [pairs(1.0)], squares, steps=3, folder=tmp_path, resume=True, accumulate=2)
    for cut in (0, 7, 100, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:cut])
        with pytest.raises(FormatError, match=r"resume\.safetensors"):
            small_run.start(tmp_path, 4, resume=True)
    rl.save({"weight": rl.ones(1)}, path)
    with pytest.raises(FormatError, match="no checkpoint"):
        small_run.start(tmp_path, 4, resume=True)


# ---- memory ----


def resident():
    """Bytes of this process in memory."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_is_flat_over_10000_steps_without_the_collector(tmp_path):
    sizes = {}

    class Measure(Callback):
        def step(self, run):
            if run.step in (1000, 10_000):
                sizes[run.step] = resident(), rl.memory_stats()["in_use"]

    def loss(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1]), len(batch[1])

    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 2))
    loader = DataLoader(TensorDataset(*small_run.data()), 4, shuffle=True)
    gc.collect()
    gc.disable()
    try:
        train(
            model,
            loader,
            loss,
            held_out=[small_run.data()],
            ema=EMA(model, 0.99),
            callbacks=[Measure()],
            steps=10_000,
            eval_every=500,
            save_every=2000,
            clip_norm=1.0,
            folder=tmp_path,
        )
    finally:
        gc.enable()
    assert sizes[10_000][1] <= sizes[1000][1]
    assert sizes[10_000][0] - sizes[1000][0] < 1 << 20


# ---- what is trained ----


def test_a_head_alone():
    """Gradients of what the optimizer does not have neither pile up nor count."""

    def run(steps, again=0):
        rl.manual_seed(0)
        model = nn.Sequential(nn.Linear(1, 3), nn.Linear(3, 1))
        optimizer = SGD(model[1].parameters(), lr=0.01)
        options = {"optimizer": optimizer, "clip_norm": 0.5}
        train(model, [pairs(1.0, 2.0)], squares, steps=steps, **options)
        return train(model, [pairs(1.0, 2.0)], squares, steps=again, **options), model

    (_, whole), (_, parts) = run(6), run(3, again=3)
    assert whole[1].weight.tolist() == parts[1].weight.tolist()
    model = line(1.0)
    optimizer = SGD(model.parameters(), lr=0.0)
    norms = []

    class Note(Callback):
        def step(self, run):
            norms.append(run.grad_norm)

    train(model, [pairs(1.0)], squares, optimizer=optimizer, steps=3, callbacks=[Note()])
    assert norms == [2.0, 2.0, 2.0]


def test_a_parameter_of_the_loss():
    scale = nn.Parameter(rl.ones(1))
    model = line(1.0)

    def loss(model, batch):
        return (model(batch) * scale).mean()

    optimizer = SGD([*model.parameters(), scale], lr=1.0)
    train(model, [rl.ones(2, 1)], loss, optimizer=optimizer, accumulate=2, steps=2)
    # w and s both go down by the other: (1, 1) -> (0, 0) -> (0, 0)
    assert (model.weight.item(), scale.item()) == (0.0, 0.0)


def test_masks_of_minus_infinity_are_no_fault(tmp_path):
    model = line(1.0)
    model.register_buffer("mask", rl.full((2,), -float("inf")))
    train(model, [pairs(1.0)], squares, steps=2, folder=tmp_path)
    bad = (rl.full((2,), -float("inf")), *pairs(float("nan")))
    with pytest.raises(NonFiniteError, match=r"first not finite: batch\.1: 1 of 1"):
        train(model, [bad], lambda m, b: squares(m, b[1:]), steps=1)


def test_stopping_early_evaluates(tmp_path):
    class Stop(Callback):
        def step(self, run):
            run.stop = run.step == 3

    run = train(
        line(), [pairs(1.0)], squares, steps=9, held_out=[pairs(2.0)], callbacks=[Stop()],
        folder=tmp_path,
    )  # fmt: skip
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [line["step"] for line in lines] == [3]
    assert lines[0]["val_loss"] == run.val_loss == run.best_loss
    assert (tmp_path / "best.safetensors").exists()


def test_evaluation_leaves_pythons_and_numpys_streams():
    def loss(model, batch):
        return squares(model, batch)[0] * (1 + random.random() + np.random.rand()), 1

    def weights(every):
        random.seed(1)
        np.random.seed(1)
        model = line(0.1)
        optimizer = SGD(model.parameters(), 0.01)
        train(
            model, [pairs(1.0)], loss, optimizer=optimizer, steps=5, held_out=[pairs(1.0)],
            eval_every=every,
        )  # fmt: skip
        return model.weight.item()

    assert weights(0) == weights(1)


def test_changed_options_and_too_few_steps_are_refused(tmp_path):
    train(line(), [pairs(1.0)], squares, steps=5, folder=tmp_path)
    for changed, message in (
        ({"accumulate": 2}, "accumulate was 1"),
        ({"clip_norm": 1.0}, r"clip_norm was 0\.0"),
        ({"steps": 2}, "at step 5, and 2 are asked for"),
    ):
        options = {"steps": 9, "folder": tmp_path, "resume": True} | changed
        with pytest.raises(ConfigError, match=message):
            train(line(), [pairs(1.0)], squares, **options)


def test_schedules_that_want_a_metric_are_refused():
    model = line()
    optimizer = SGD(model.parameters(), 0.1)
    schedule = rl.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    with pytest.raises(ConfigError, match="wants a metric"):
        train(model, [pairs(1.0)], squares, optimizer=optimizer, schedule=schedule)


def test_parts_that_are_none():
    other = SGD(line().parameters(), 0.1)
    for options, message in (
        ({"optimizer": other}, "none of the model's parameters"),
        ({"schedule": "cosine"}, "schedule: expected LRScheduler, got 'cosine'"),
        ({"ema": 0.9}, r"ema: expected EMA, got 0\.9"),
        ({"callbacks": [print]}, "callbacks: expected Callback"),
    ):
        with pytest.raises(ConfigError, match=message):
            train(line(), [pairs(1.0)], squares, **options)


def test_the_package_is_the_loop():
    assert rl.train(line(), [pairs(1.0)], squares).step == 1


def test_progress_that_nobody_reads_stops_nothing():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    assert (
        train(line(), [pairs(1.0)], squares, steps=3, callbacks=[Progress(out=Closed())]).step == 3
    )
