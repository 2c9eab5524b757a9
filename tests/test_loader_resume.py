"""The loader resumed in the middle of an epoch, and what goes wrong in its workers."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import rushlight as rl
from loader_data import (
    FORK,
    KINDS,
    Map,
    Noisy,
    Stream,
    eventually,
    noisy_collate,
    nothing_left,
    plain,
)
from rushlight import data
from rushlight.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)


@pytest.fixture(autouse=True)
def _leaves_nothing():
    yield
    gc.collect()
    assert nothing_left()


# ---- resuming ----

SOURCES = {
    "shuffled": (Noisy, {"batch_size": 3, "shuffle": True}),
    "collated": (
        Noisy,
        {"batch_size": 3, "shuffle": True, "drop_last": True, "collate_fn": noisy_collate},
    ),
    "replacement": (Noisy, {"batch_size": 2, "sampler": lambda: RandomSampler(range(11), True, 7)}),
    "own generators": (
        Noisy,
        {
            "batch_size": 3,
            "sampler": lambda: WeightedRandomSampler(np.ones(11), 9, generator=rl.Generator()),
            "generator": rl.Generator,
        },
    ),
    "batch sampler": (
        Noisy,
        {
            "batch_sampler": lambda: BatchSampler(
                RandomSampler(range(11), generator=rl.Generator()), 4, False
            )
        },
    ),
    "taken together": (
        lambda: TensorDataset(rl.arange(11), rl.arange(22).view(11, 2)),
        {"batch_size": 2, "shuffle": True},
    ),
    "single": (lambda: Noisy(4), {"batch_size": None, "shuffle": True}),
    "iterable": (Stream, {"batch_size": 3}),
    "iterable collated": (
        Stream,
        {"batch_size": 2, "collate_fn": noisy_collate, "drop_last": True},
    ),
}


THREADS, PROCESSES = {"num_workers": 2}, {"num_workers": 2, **FORK}
RESUMED = [(s, o) for s in SOURCES for o in ({}, THREADS)]
RESUMED += [
    (s, PROCESSES) for s in ("shuffled", "own generators", "taken together", "iterable collated")
]


@pytest.mark.parametrize(("source", "options"), RESUMED, ids=str)
def test_resume_at_every_position(source, options):
    dataset, arguments = SOURCES[source]

    def loader():
        made = {k: v() if callable(v) and k != "collate_fn" else v for k, v in arguments.items()}
        return DataLoader(dataset(), **made, **options)

    def rest(loader, epochs):
        return [[plain(b) for b in loader] for _ in range(epochs)]

    rl.manual_seed(5)
    whole = rest(loader(), 3)
    assert whole[0] != whole[1]
    for epoch in range(2):
        # before the epoch, after each of its batches, and once more when it has ended
        for position in range(len(whole[epoch]) + 1):
            rl.manual_seed(5)
            first = loader()
            assert rest(first, epoch) == whole[:epoch]
            if position > 0:
                batches = iter(first)
                assert [plain(next(batches)) for _ in range(position)] == whole[epoch][:position]
            state, generator = first.state_dict(), rl.get_rng_state()
            if position > 0:
                batches.close()

            second = loader()
            rl.manual_seed(99)
            second.load_state_dict(state)
            rl.set_rng_state(generator)
            assert second.state_dict() == state
            got = rest(second, 3 - epoch)
            assert got == [whole[epoch][position:], *whole[epoch + 1 :]], (epoch, position)


def test_state_after_an_epoch_is_that_before_the_next():
    loader = DataLoader(Noisy(), 3, shuffle=True)
    fresh = loader.state_dict()
    list(loader)
    assert loader.state_dict() == fresh
    assert fresh["seed"] is None
    assert fresh["batches"] == 0


def test_state_counts_what_was_given_not_what_was_made():
    loader = DataLoader(Noisy(), 1, num_workers=2)
    for number, _ in enumerate(loader, 1):
        assert loader.state_dict()["batches"] == number
        if number == 4:
            break
    assert loader.state_dict()["batches"] == 4  # left early: that is where it goes on
    iter(loader)
    assert loader.state_dict()["batches"] == 0  # unless a new epoch has begun


def test_skipping_loads_no_data():
    loaded = []
    loader = DataLoader(Map(lambda i: loaded.append(i) or i), 2)
    batches = iter(loader)
    next(batches), next(batches)
    state = loader.state_dict()
    loaded.clear()
    loader.load_state_dict(state)
    assert next(iter(loader)).tolist() == [4, 5]
    assert loaded == [4, 5]


def test_a_map_style_state_fits_any_workers():
    rl.manual_seed(0)
    whole = [plain(b) for b in DataLoader(Noisy(), 2, shuffle=True)]
    rl.manual_seed(0)
    loader = DataLoader(Noisy(), 2, shuffle=True, num_workers=3)
    next(iter(loader))
    other = DataLoader(Noisy(), 2, shuffle=True)
    other.load_state_dict(loader.state_dict())
    assert [plain(b) for b in other] == whole[1:]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DataLoader(Noisy(12), 3, shuffle=True), "samples=11, this loader samples=12"),
        (lambda: DataLoader(Noisy(), 2, shuffle=True), "batch_size=3, this loader batch_size=2"),
        (lambda: DataLoader(Noisy(), 3), "shuffle=1, this loader shuffle=0"),
        (
            lambda: DataLoader(Noisy(), 3, True, drop_last=True),
            "drop_last=0, this loader drop_last=1",
        ),
        (lambda: DataLoader(Noisy(), 3, True, generator=rl.Generator()), "other generators"),
        (
            lambda: DataLoader(
                Noisy(), 3, sampler=RandomSampler(range(9), generator=rl.Generator())
            ),
            "other generators",
        ),
    ],
)
def test_a_state_that_does_not_fit(make, message):
    state = DataLoader(Noisy(), 3, shuffle=True).state_dict()
    loader = make()
    before = loader.state_dict()
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict(state)
    assert loader.state_dict() == before


def test_a_state_that_is_none():
    loader = DataLoader(Noisy(), 3)
    state = loader.state_dict()
    with pytest.raises(ValueError, match="'batches'"):
        loader.load_state_dict({k: v for k, v in state.items() if k != "batches"})
    for name, value in (
        ("batches", -1),
        ("batches", None),
        ("batches", "2"),
        ("seed", 1.5),
        ("generator", [1]),
        ("samplers", [[1, -2]]),
    ):
        with pytest.raises(ValueError, match=re.escape(f"cannot have {name}={value!r}")):
            loader.load_state_dict({**state, name: value})
    for workers in (0, 2):
        with pytest.raises(ValueError, match="num_workers=3, this loader num_workers"):
            DataLoader(Stream(), 3, num_workers=workers).load_state_dict(
                DataLoader(Stream(), 3, num_workers=3).state_dict()
            )


# ---- what goes wrong ----


class Odd(Exception):
    def __init__(self, first, second):  # cannot be unpickled
        super().__init__(f"{first} {second}")


def failing(i):
    if i == 5:
        raise KeyError("no such thing")
    return i


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_is_raised_where_the_batch_is_asked_for(kind):
    got = []
    with pytest.raises(KeyError, match="no such thing") as caught:
        got.extend(b.tolist() for b in DataLoader(Map(failing), 2, **KINDS[kind]))
    assert got == [[0, 1], [2, 3]]
    notes = "\n".join(caught.value.__notes__)
    assert "in batch 2 of the epoch" in notes
    if kind != "none":
        assert "made by loader worker" in notes
    if kind == "2 processes":
        assert "in failing\n    raise KeyError" in notes  # the traceback of the other process
        assert "(pid " in notes
    assert nothing_left()


def test_an_exception_leaves_no_cycle():
    gc.collect()
    gc.disable()
    try:
        for options in ({}, {"num_workers": 1}):
            with pytest.raises(KeyError):
                list(DataLoader(Map(failing), 2, **options))
            assert nothing_left()
    finally:
        gc.enable()


def test_exceptions_that_cannot_be_sent():
    def odd(i):
        raise Odd("too", "odd")

    with pytest.raises(RuntimeError, match="Odd: too odd"):
        list(DataLoader(Map(odd), num_workers=1, **FORK))
    with pytest.raises(Odd, match="too odd"):
        list(DataLoader(Map(odd), num_workers=1))
    with pytest.raises(Exception, match=r"lambda|local"):  # a batch that cannot be pickled
        list(DataLoader(Map(lambda i: i), collate_fn=lambda s: lambda: s, num_workers=1, **FORK))


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 2, **FORK}], ids=str)
def test_an_exception_at_the_start_and_system_exit(options):
    def refuse(worker):
        raise OSError(f"worker {worker} finds no disk")

    with pytest.raises(OSError, match="worker 0 finds no disk"):
        list(DataLoader(Map(failing), worker_init_fn=refuse, **options))
    with pytest.raises(SystemExit):
        list(DataLoader(Map(lambda i: sys.exit(3)), **options))


def test_a_killed_process_is_named():
    def die(i):
        if i == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getpid()

    got = []
    with pytest.raises(RuntimeError, match="loader worker 1") as caught:
        got.extend(b.item() for b in DataLoader(Map(die), 1, num_workers=2, **FORK))
    assert len(got) == 3
    assert str(caught.value) == f"loader worker 1 (pid {got[1]}) was killed by signal SIGKILL"
    assert "in batch 3 of the epoch" in caught.value.__notes__
    assert nothing_left()


def test_a_process_that_leaves_is_named():
    with pytest.raises(RuntimeError, match=r"loader worker 0 \(pid \d+\) ended with exit code 7"):
        list(DataLoader(Map(lambda i: os._exit(7)), num_workers=2, **FORK))


def test_timeout_names_the_worker(monkeypatch):
    monkeypatch.setattr(data.loader, "GRACE", 0.1)
    release = threading.Event()
    loader = DataLoader(Map(lambda i: release.wait(60)), num_workers=1, timeout=0.2)
    with pytest.raises(
        RuntimeError, match=r"timed out after 0.2 s waiting for loader worker 0 \(thr"
    ):
        list(loader)
    release.set()
    eventually(nothing_left)
    loader = DataLoader(Map(lambda i: time.sleep(60)), num_workers=2, timeout=0.3, **FORK)
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"waiting for loader worker 0 \(pid"):
        list(loader)
    assert time.monotonic() - start < 30
    assert nothing_left()


@pytest.mark.parametrize("options", [{"num_workers": 3}, {"num_workers": 3, **FORK}], ids=str)
def test_leaving_early_leaves_nothing(options):
    large = Map(lambda i: np.ones(300_000), 40)  # more than a pipe holds
    for _ in DataLoader(large, 1, **options):
        break
    assert nothing_left()
    with pytest.raises(ZeroDivisionError):
        [1 / int(b.sum() * 0) for b in DataLoader(large, 1, **options)]
    assert nothing_left()
    batches = iter(DataLoader(large, 1, **options))
    next(batches)
    assert not nothing_left()
    del batches
    assert nothing_left()


def test_a_process_that_does_not_stop_is_ended(monkeypatch):
    monkeypatch.setattr(data.loader, "GRACE", 0.1)

    def slow(i):
        if i > 0:
            time.sleep(60)
        return i

    start = time.monotonic()
    for _ in DataLoader(Map(slow), 1, num_workers=2, **FORK):
        break
    assert time.monotonic() - start < 30
    assert nothing_left()


def test_matmul_before_and_after_fork():
    rl.set_num_threads(2)
    x = rl.randn(300, 300)
    expected = (x @ x).numpy()
    loader = DataLoader(Map(lambda i: x @ x, 8), 1, num_workers=4, timeout=60, **FORK)
    for batch in loader:
        np.testing.assert_array_equal(batch[0].numpy(), expected)
        np.testing.assert_array_equal((x @ x).numpy(), expected)


SCRIPT = """
import os, sys, time
import rushlight as rl
from rushlight.data import DataLoader, Dataset
class Pids(Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, i):
        return os.getpid()
for number, pid in enumerate(DataLoader(Pids(), 1, num_workers=3, multiprocessing_context="fork")):
    print(pid.item(), flush=True)
    if number >= 2:
        time.sleep(60)
"""


def _running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("how", ["Ctrl-C", "killed"])
def test_no_process_outlives_its_parent(how):
    parent = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        children = [int(parent.stdout.readline()) for _ in range(3)]
        assert len(set(children)) == 3
        assert all(map(_running, children))
        if how == "Ctrl-C":
            os.killpg(parent.pid, signal.SIGINT)  # as a terminal does: to all of them
        else:
            parent.kill()
        _, errors = parent.communicate(timeout=30)
        if how == "Ctrl-C":
            assert parent.returncode == -signal.SIGINT
            assert errors.count("Traceback") == 1  # the parent's own
            assert not any(map(_running, children))
        eventually(lambda: not any(map(_running, children)))
    finally:
        parent.kill()
        parent.communicate()
