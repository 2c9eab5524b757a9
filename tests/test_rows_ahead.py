"""Rows copied by idle threads of the kernels, and the batches that are begun so."""

import os
import threading

import numpy as np
import pytest

import rushlight as rl
from loader_data import Noisy
from rushlight.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)
from rushlight.data.sampler import index_arrays
from rushlight.kernels import begin_rows, rows

DTYPES = ("float32", "float64", "int64", "bool", "uint64", "uint16", "int8", "complex64")
LAYOUTS = {
    "contiguous": lambda x: x,
    "reversed": lambda x: x[::-1],
    "every second": lambda x: x[::2],
    "transposed": lambda x: x.T,
    "columns": lambda x: x[:, ::2],
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
    "one column": lambda x: x[:, :1],
    "vector": lambda x: x[:, 0],
    "three axes": lambda x: x.reshape(x.shape[0], 5, -1),
    "empty rows": lambda x: x[:, :0],
}


@pytest.fixture(autouse=True)
def two_threads():
    before = rl.get_num_threads()
    rl.set_num_threads(2)
    (rl.rand(300, 300) @ rl.rand(300, 300)).sum()  # the helper is there
    yield
    rl.set_num_threads(before)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_is_numpys_indexing(dtype, layout):
    rng = np.random.default_rng(0)
    x = LAYOUTS[layout](rng.integers(0, 2, (40, 1000)).astype(dtype))
    for count in (0, 1, 3, 500):
        for kind in ("int64", "int32", "int8", "uint8", "uint64"):
            low = 0 if kind.startswith("u") else -len(x)
            index = rng.integers(max(low, -128), min(len(x), 127), count).astype(kind)
            result = rows(x, index)
            assert result.dtype == x.dtype
            np.testing.assert_array_equal(result, x[index])
    np.testing.assert_array_equal(rows(x, np.arange(len(x))[::-2]), x[::-2])


@pytest.mark.parametrize("index", [[3], [-4], [0, 2**62], [-(2**63)]])
def test_rows_refuses_what_is_not_there(index):
    with pytest.raises(IndexError, match=rf"index {index[-1]} is out of bounds .* with size 3"):
        rows(np.zeros((3, 2), np.float32), np.array(index))


def test_rows_refuses_large_unsigned_numbers():
    with pytest.raises(IndexError, match=f"index {2**64 - 1} is out of bounds"):
        rows(np.zeros((3, 2), np.float32), np.array([2**64 - 1], np.uint64))


def test_the_array_may_go_and_the_index_change_while_rows_are_copied():
    x = np.arange(4_000_000, dtype=np.float32).reshape(4000, 1000)
    index = np.random.default_rng(0).integers(0, 4000, 3000)
    expected = x[index]
    y, finish = begin_rows(x, index)
    index[:] = 10**9
    del x
    finish()
    finish()
    np.testing.assert_array_equal(y, expected)
    begin_rows(np.ones((1000, 1000)), np.arange(1000))  # nobody finishes it


def test_several_begun_at_once():
    x = np.random.default_rng(0).random((2000, 500), np.float32)
    orders = [np.random.default_rng(i).integers(0, 2000, 1500) for i in range(6)]
    for turn in (1, -1):
        begun = [begin_rows(x, order) for order in orders]
        for (y, finish), order in list(zip(begun, orders, strict=True))[::turn]:
            finish()
            np.testing.assert_array_equal(y, x[order])


def numbered(count=5000, width=500):
    """Row i is all i."""
    column = np.arange(count, dtype=np.float32)[:, None]
    return TensorDataset(rl.tensor(np.repeat(column, width, 1)), rl.arange(count))


def check(batch):
    x, y = batch
    np.testing.assert_array_equal(x.numpy(), np.repeat(y.numpy()[:, None], x.shape[1], 1))
    return y.tolist()


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", [7, 64, 4000])  # 4000 rows of 2 kB are a task by themselves
def test_batches_are_the_samples_beside_kernels(size, threads):
    rl.set_num_threads(threads)
    data = numbered()
    a = rl.rand(200, 200)
    rl.manual_seed(0)
    loader = DataLoader(data, size, shuffle=True)
    orders = []
    for batch in loader:
        a @ a
        orders += check(batch)
    assert sorted(orders) == list(range(5000))
    rl.manual_seed(0)
    slow = DataLoader(data, size, shuffle=True, collate_fn=lambda s: [y.item() for _, y in s])
    assert orders == [y for batch in slow for y in batch]


def test_passes_beside_each_other_and_passes_left():
    data = numbered()
    rl.manual_seed(1)
    loaders = [
        DataLoader(part, 50, shuffle=True) for part in (data, Subset(data, range(0, 5000, 3)))
    ]
    for _ in range(3):
        first, second = map(iter, loaders)
        seen = [check(next(which)) for _ in range(30) for which in (first, second)]
        assert len({i for batch in seen[::2] for i in batch}) == 1500
        assert {i % 3 for batch in seen[1::2] for i in batch} == {0}


@pytest.mark.parametrize("size", [50, 1000])  # many to a task, and one
@pytest.mark.parametrize("part", [None, range(0, 3000, 2)])
def test_changes_in_place_are_seen_by_the_next_batch(part, size):
    x = rl.zeros(3000, 1200)
    data = TensorDataset(x) if part is None else Subset(TensorDataset(x), part)
    for number, (batch,) in enumerate(DataLoader(data, size)):
        assert (batch == number).all()
        x += 1
    again = iter(DataLoader(data, size))
    x[:] = -1
    assert (next(again)[0] == -1).all()


@pytest.mark.parametrize("make", [lambda d: d, lambda d: Subset(d, [*range(40), 100, 3])])
def test_an_error_comes_in_its_turn(make):
    data = make(numbered(100, 10))
    order = {} if isinstance(data, Subset) else {"sampler": [*range(40), 100]}
    seen = []
    with pytest.raises(IndexError, match="100") as caught:
        seen.extend(i for batch in DataLoader(data, 1, **order) for i in check(batch))
    assert seen == list(range(40))
    assert caught.value.__notes__ == ["in batch 40 of the epoch"]


def test_samplers_of_the_users_are_read_when_their_batch_is_made():
    class Adaptive:
        chosen = 0

        def __iter__(self):
            while True:
                yield self.chosen

    sampler, seen = Adaptive(), []
    for x, y in DataLoader(numbered(100, 3), 1, sampler=sampler):
        seen += check((x, y))
        sampler.chosen = len(seen)
        if len(seen) == 70:
            break
    assert seen == list(range(70))


def test_the_dataset_may_get_other_tensors():
    data = TensorDataset(rl.zeros(300, 2))
    for number, (x,) in enumerate(DataLoader(data, 3)):
        assert (x == number).all()
        data.tensors = (rl.full((300, 2), number + 1.0),)


def test_gradients_that_are_wanted_later():
    x = rl.zeros(300, 2, requires_grad=True)
    loader = iter(DataLoader(TensorDataset(x), 3))
    with rl.no_grad():
        assert not next(loader)[0].requires_grad
    assert next(loader)[0].requires_grad
    plain = rl.zeros(300, 2)
    batches = iter(DataLoader(TensorDataset(plain), 3))
    assert [next(batches)[0].requires_grad for _ in range(5)] == [False] * 5
    plain.requires_grad_()
    assert next(batches)[0].requires_grad


class Mine(Subset):
    """A subclass that changes nothing."""


class Fetched(TensorDataset):
    def __getitems__(self, indices):
        return [("fetched", i) for i in indices]


def test_subclasses_make_their_batches_as_they_say():
    noisy = Noisy(60)
    kinds = ({}, {"num_workers": 2}, {"num_workers": 2, "multiprocessing_context": "fork"})
    results = []
    for kind in (Subset, Mine):
        for options in kinds:
            rl.manual_seed(4)
            loader = DataLoader(kind(noisy, range(60)), 3, **options)
            results.append([b["noise"].tolist() for b in loader])
    assert all(r == results[0] for r in results)
    assert sorted(i for b in DataLoader(Mine(numbered(9, 2), range(9)), 2) for i in check(b)) == [
        *range(9)
    ]
    for data in (Fetched(rl.zeros(4, 2)), Subset(Fetched(rl.zeros(4, 2)), range(4))):
        assert [b[1].tolist() for b in DataLoader(data, 2)] == [[0, 1], [2, 3]]


def test_indices_that_are_no_numbers():
    data = numbered(10, 4)
    for wrong in ([0.5, 1.7], ["0", "1"]):
        with pytest.raises((IndexError, TypeError)):
            next(iter(DataLoader(Subset(data, wrong), 2)))
        with pytest.raises((IndexError, TypeError)):
            next(iter(DataLoader(data, 2, sampler=wrong)))
    nested = next(iter(DataLoader(Subset(data, [[0, 1], [2, 3]]), 2)))
    assert nested[1].tolist() == [[0, 1], [2, 3]]
    for several in ({3, 4}, {3: 0, 4: 0}, np.array([3, 4]), rl.tensor([3, 4])):
        assert check(next(iter(DataLoader(data, batch_sampler=[several])))) == [3, 4]
    for order in (np.array([4, 2, 0]), rl.tensor([4, 2, 0])):
        assert [check(b) for b in DataLoader(data, 2, sampler=order)] == [[4, 2], [0]]


def test_threads_are_for_datasets_that_need_them():
    data = numbered(100, 3)
    names = []
    for options in ({}, {"worker_init_fn": lambda number: None}):
        batches = iter(DataLoader(data, 10, num_workers=3, **options))
        check(next(batches))
        names.append([t.name for t in threading.enumerate() if "rushlight-loader" in t.name])
        assert sum(len(check(b)) for b in batches) == 90
    assert names[0] == []
    assert len(names[1]) == 3


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_in_the_middle():
    batches = iter(DataLoader(numbered(), 64, shuffle=True))
    check(next(batches))
    for number in range(2, 30):
        check(next(batches))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = int(sum(len(check(b)) for b in batches) != 5000 - 64 * number)
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [1, 7, 1024, 3000])
@pytest.mark.parametrize("count", [1, 2500])
def test_arrays_of_indices_are_the_lists(count, size, drop_last):
    data = range(count)
    for make in (
        lambda: SequentialSampler(data),
        lambda: RandomSampler(data),
        lambda: RandomSampler(data, num_samples=4000),
        lambda: RandomSampler(data, replacement=True, num_samples=2100),
    ):
        rl.manual_seed(0)
        lists = list(BatchSampler(make(), size, drop_last))
        rl.manual_seed(0)
        arrays = list(index_arrays(BatchSampler(make(), size, drop_last)))
        assert [a.tolist() for a in arrays] == lists
        assert all(a.dtype == np.int64 for a in arrays)


def test_no_arrays_of_samplers_that_are_not_known():
    class Reversed(SequentialSampler):
        def __iter__(self):
            return reversed(range(len(self.data_source)))

    data = numbered(20, 2)
    assert index_arrays(BatchSampler(Reversed(data), 4, False)) is None
    loader = DataLoader(data, 4, sampler=Reversed(data))
    assert [i for b in loader for i in check(b)] == list(range(20))[::-1]
