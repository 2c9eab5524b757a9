"""DataLoader: the same batches whoever makes them, resuming anywhere, and what goes wrong."""

import gc
import multiprocessing
import os
import random
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
from rushlight import data
from rushlight.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

FORK = {"multiprocessing_context": "fork"}
KINDS = {
    "none": {},
    "1 thread": {"num_workers": 1},
    "3 threads": {"num_workers": 3, "prefetch_factor": 1},
    "2 processes": {"num_workers": 2, **FORK},
}


class Noisy(Dataset):
    """Samples with random numbers in them."""

    def __init__(self, count=11):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return {"index": i, "noise": rl.rand(2), "name": f"sample {i}"}


class Stream(IterableDataset):
    """0 to count - 1 divided among the workers, with noise."""

    def __init__(self, count=11):
        self.count = count

    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for i in range(first, self.count, step):
            yield i, rl.rand(1)


class Map(Dataset):
    """A function of the index, so that tests can say what a sample does."""

    def __init__(self, function, count=12):
        self.function, self.count = function, count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return self.function(i)


def noisy_collate(samples):
    return [(s if isinstance(s, tuple) else s["index"]) for s in samples], rl.rand(1)


def plain(value):
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value.tolist() if hasattr(value, "tolist") else value


def nothing_left():
    names = [t.name for t in threading.enumerate() if t.name.startswith("rushlight-loader")]
    return not names and not multiprocessing.active_children()


@pytest.fixture(autouse=True)
def _leaves_nothing():
    yield
    gc.collect()
    assert nothing_left()


# ---- the same batches ----


@pytest.mark.parametrize("collate_fn", [None, noisy_collate])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_batches_whoever_makes_them(kind, collate_fn):
    def epochs(**options):
        rl.manual_seed(7)
        loader = DataLoader(Noisy(), 3, shuffle=True, collate_fn=collate_fn, **options)
        found = [[plain(b) for b in loader] for _ in range(2)]
        return found, rl.get_rng_state().tolist()

    expected, got = epochs(), epochs(**KINDS[kind])
    assert got == expected
    first, second = got[0]
    assert first != second
    assert len(first) == 4
    if collate_fn is None:
        noise = [tuple(row) for b in first + second for row in b["noise"]]
        assert len(set(noise)) == 22  # different for every sample and epoch
        assert sorted(i for b in first for i in b["index"]) == list(range(11))
        assert first[3]["name"] == [f"sample {i}" for i in first[3]["index"]]


def test_what_the_user_draws_between_batches_changes_nothing():
    rl.manual_seed(7)
    expected = [plain(b) for b in DataLoader(Noisy(), 3, shuffle=True)]
    rl.manual_seed(7)
    loader, got = DataLoader(Noisy(), 3, shuffle=True, num_workers=2), []
    for batch in loader:
        rl.rand(3)
        got.append(plain(batch))
    assert got == expected


def test_the_same_seed_does_not_replay_the_same_batches():
    loader = DataLoader(Noisy(), 11, shuffle=True)
    epochs = [plain(next(iter(loader))) for _ in range(20)]
    assert len({tuple(e["index"]) for e in epochs}) == 20
    assert len({tuple(e["noise"][0]) for e in epochs}) == 20


def test_python_and_numpy_are_seeded_in_processes():
    def draw(i):
        return random.random(), float(np.random.random()), rl.rand(1)

    def epoch(workers):
        rl.manual_seed(1)
        loader = DataLoader(Map(draw), 2, num_workers=workers, **FORK)
        return [plain(b) for _ in range(2) for b in loader]

    assert epoch(1) == epoch(3)
    for part in zip(*epoch(3), strict=True):
        assert len({str(x) for x in part}) == 12


@pytest.mark.parametrize("kind", KINDS)
def test_loader_without_batches(kind):
    loader = DataLoader(Map(lambda i: np.full(2, i)), batch_size=None, **KINDS[kind])
    assert len(loader) == 12
    assert [x.tolist() for x in loader] == [[i, i] for i in range(12)]
    assert all(isinstance(x, rl.Tensor) for x in loader)


def test_custom_samplers():
    numbers = list(range(10, 20))
    assert [b.tolist() for b in DataLoader(numbers, 2, sampler=[3, 1, 5])] == [[13, 11], [15]]
    loader = DataLoader(numbers, batch_sampler=[[1], [2, 3]], num_workers=2)
    assert [b.tolist() for b in loader] == [[11], [12, 13]]
    assert len(loader) == 2
    by_key = DataLoader({"a": 1, "b": 2}, 2, sampler=["b", "a"])
    assert [b.tolist() for b in by_key] == [[2, 1]]


def test_without_workers_nothing_is_made_before_it_is_asked_for():
    made, drawn = [], []

    def sampler():
        for i in range(4):
            drawn.append(i)
            yield i

    for number, _ in enumerate(
        DataLoader(Map(lambda i: made.append(i) or i), 1, sampler=sampler())
    ):
        assert made == drawn == list(range(number + 1))


@pytest.mark.parametrize("factor", [1, 2, 5])
def test_workers_make_so_many_ahead(factor):
    made = []
    dataset = Map(lambda i: made.append(i) or i, count=60)
    batches = iter(DataLoader(dataset, 1, num_workers=2, prefetch_factor=factor))
    for taken in range(1, 4):
        next(batches)
        _eventually(lambda taken=taken: len(made) == taken + 2 * factor)
        time.sleep(0.02)
        assert len(made) == taken + 2 * factor
    batches.close()


def _eventually(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


# ---- what crosses a pipe ----


class Box:
    """A batch of a user's own type."""

    def __init__(self, samples):
        self.x = rl.stack(samples)
        self.nothing = None


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", "uint8", "bool"])
def test_tensors_cross_a_pipe(dtype):
    values = np.arange(12).reshape(4, 3).astype(dtype)
    loader = DataLoader(
        TensorDataset(rl.from_numpy(values).transpose(0, 1)), 3, num_workers=1, **FORK
    )
    (batch,) = next(iter(loader))
    assert batch.dtype is rl.from_numpy(values).dtype
    np.testing.assert_array_equal(batch.numpy(), values.T)
    batch.zero_()  # it can be written to


def test_batches_of_any_type_and_size_cross_a_pipe():
    loader = DataLoader([rl.ones(2)] * 4, 2, collate_fn=Box, num_workers=1, **FORK)
    assert [b.x.shape for b in loader] == [(2, 2)] * 2
    loader = DataLoader(Map(lambda i: np.full(100_000, i)), 3, num_workers=2, **FORK)
    assert [b.numpy().sum() for b in loader] == [300_000 * (3 * i + 1) for i in range(4)]


def test_large_tasks_and_large_results_do_not_block_each_other():
    order = np.random.default_rng(0).integers(0, 1000, (6, 200_000)).tolist()
    dataset = TensorDataset(rl.arange(1000))
    loader = DataLoader(
        dataset, batch_sampler=order, num_workers=1, timeout=60, prefetch_factor=4, **FORK
    )
    assert [b[0].tolist() == o for b, o in zip(loader, order, strict=True)] == [True] * 6


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_other_start_methods(method):
    rl.manual_seed(3)
    expected = [plain(b) for b in DataLoader(TensorDataset(rl.arange(6), rl.ones(6, 2)), 2)]
    dataset = TensorDataset(rl.arange(6), rl.ones(6, 2))  # its tensors are sent to the workers
    context = multiprocessing.get_context(method)
    loader = DataLoader(dataset, 2, num_workers=1, multiprocessing_context=context)
    assert [plain(b) for b in loader] == expected


# ---- iterable datasets ----


@pytest.mark.parametrize("options", [{"num_workers": 3}, {"num_workers": 3, **FORK}], ids=str)
@pytest.mark.parametrize("drop_last", [False, True])
def test_iterable_dataset_in_turn(options, drop_last):
    rl.manual_seed(2)
    loader = DataLoader(Stream(11), 2, drop_last=drop_last, **options)
    got = [plain(b) for b in loader]
    shards = [list(range(w, 11, 3)) for w in range(3)]  # 0 3 6 9, 1 4 7 10, 2 5 8
    expected = [shards[w][i : i + 2] for i in (0, 2) for w in range(3)]
    if drop_last:
        expected = [b for b in expected if len(b) == 2]
    assert [b[0] for b in got] == expected
    assert len({str(x) for b in got for x in b[1]}) == sum(map(len, expected))
    rl.manual_seed(2)
    assert [plain(b) for b in DataLoader(Stream(11), 2, drop_last=drop_last, num_workers=3)] == got


class Uneven(IterableDataset):
    """Worker w has as many samples as sizes say."""

    def __init__(self, *sizes):
        self.sizes = sizes

    def __iter__(self):
        worker = get_worker_info().id
        return iter([10 * worker + i for i in range(self.sizes[worker])])


@pytest.mark.parametrize("factor", [1, 2, 7])
def test_a_worker_that_ended_is_left_out(factor):
    loader = DataLoader(Uneven(1, 0, 4, 2), None, num_workers=4, prefetch_factor=factor)
    assert list(loader) == [0, 20, 30, 21, 31, 22, 23]


def test_iterable_dataset_without_workers():
    assert [b.tolist() for b, _ in DataLoader(Stream(5), 2)] == [[0, 1], [2, 3], [4]]
    assert [i for i, _ in DataLoader(Stream(3), None)] == [0, 1, 2]
    with pytest.raises(TypeError):
        len(DataLoader(Stream(5)))


def test_worker_info_and_init():
    seen = []

    def init(worker):
        info = get_worker_info()
        info.dataset.count = 3 + worker  # PyTorch's way: every worker has its own copy
        seen.append((worker, info.id, info.num_workers, info.seed, rl.rand(1).item()))

    dataset = Stream(99)
    loader = DataLoader(dataset, None, num_workers=2, worker_init_fn=init)
    assert sorted(i for i, _ in loader) == [0, 1, 2, 3]
    list(loader)
    rl.manual_seed(0)
    list(loader)
    assert dataset.count == 99
    assert get_worker_info() is None
    by_epoch = [sorted(seen[i : i + 2]) for i in (0, 2, 4)]
    assert [s[:3] for s in by_epoch[0]] == [(0, 0, 2), (1, 1, 2)]
    assert len({s[3:] for s in seen[:4]}) == 4
    assert by_epoch[0] == by_epoch[2]  # reproducible: both began from seed 0
    assert (
        DataLoader(Map(lambda i: 0 if get_worker_info() is None else 1))
        .__iter__()
        .__next__()
        .item()
        == 0
    )


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
    "single": (lambda: Noisy(4), {"batch_size": None, "shuffle": True}),
    "iterable": (Stream, {"batch_size": 3}),
    "iterable collated": (
        Stream,
        {"batch_size": 2, "collate_fn": noisy_collate, "drop_last": True},
    ),
}


THREADS, PROCESSES = {"num_workers": 2}, {"num_workers": 2, **FORK}
RESUMED = [(s, o) for s in SOURCES for o in ({}, THREADS)]
RESUMED += [(s, PROCESSES) for s in ("shuffled", "own generators", "iterable collated")]


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
    _eventually(nothing_left)
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
        _eventually(lambda: not any(map(_running, children)))
    finally:
        parent.kill()
        parent.communicate()
