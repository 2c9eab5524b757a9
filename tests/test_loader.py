"""DataLoader: the same batches whoever makes them, resuming anywhere, and what goes wrong."""

import gc
import multiprocessing
import random
import time

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
from rushlight.data import (
    DataLoader,
    IterableDataset,
    Subset,
    TensorDataset,
    get_worker_info,
    random_split,
)


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
        eventually(lambda taken=taken: len(made) == taken + 2 * factor)
        time.sleep(0.02)
        assert len(made) == taken + 2 * factor
    batches.close()


@pytest.mark.parametrize(
    "make", [lambda d: Subset(d, range(11)), lambda d: random_split(d, [11])[0]]
)
def test_parts_of_random_datasets(make):
    """A part makes batches at once only if the dataset that it is a part of does."""

    def epoch(**options):
        rl.manual_seed(0)
        return [plain(b) for b in DataLoader(make(Noisy()), 2, **options)]

    assert epoch() == epoch(num_workers=2) == epoch(num_workers=2, **FORK)


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


# ---- several batches at once ----


@pytest.mark.parametrize("options", [{}, {"num_workers": 1}, {"num_workers": 3}], ids=str)
def test_small_batches_are_taken_together(options):
    """After the first, whose size tells how many; each has memory and a version of its own."""
    asked = []

    class Asked(TensorDataset):
        def take(self, indices):
            asked.append(len(indices))
            return super().take(indices)

    x, y = rl.randn(1000, 3), rl.arange(1000)
    loader = DataLoader(Asked(x, y), 7, **options)
    for number, (a, b) in enumerate(loader):
        start = 7 * number
        assert a.tolist() == x[start : start + 7].tolist()
        assert b.tolist() == list(range(start, min(start + 7, 1000)))
        a.zero_()
    assert number == 142
    assert sum(asked) == 1000
    assert asked[0] == 7
    assert max(asked) == 32 * 7


def test_a_take_that_is_no_batch_is_refused():
    class Odd(TensorDataset):
        def take(self, indices):
            return [rl.ones(2)]

    with pytest.raises(rl.ShapeError, match="one row for each"):
        list(DataLoader(Odd(rl.ones(20)), 2))


def test_large_batches_are_taken_alone():
    asked = []

    class Asked(TensorDataset):
        def take(self, indices):
            asked.append(len(indices))
            return super().take(indices)

    for _ in DataLoader(Asked(rl.ones(20, 300_000)), 4):
        pass
    assert asked == [4] * 5
