"""Datasets, samplers and collating: against lists in plain Python, and against PyTorch."""

import collections
import threading
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rushlight as rl
import rushlight.utils.data
from rushlight import data, random
from rushlight.data import (
    BatchSampler,
    ChainDataset,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    default_convert,
    random_split,
)

Point = collections.namedtuple("Point", ["x", "y"])


def plain(value):
    """A batch with dtypes and lists in place of tensors, of either framework."""
    if hasattr(value, "tolist"):
        return str(value.dtype).split(".")[-1], list(value.shape), value.tolist()
    if isinstance(value, collections.abc.Mapping):
        return type(value).__name__, {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value).__name__, [plain(v) for v in value]
    return value


# ---- random.py ----


def test_stream_nests_restores_and_is_of_one_thread():
    assert random.current() is random.default_generator
    before = rl.get_rng_state().tolist()
    one, two = rl.Generator().manual_seed(1), rl.Generator().manual_seed(2)
    seen = []
    with random.stream(one):
        first = rl.rand(3).tolist()
        with random.stream(two):
            rl.nn.functional.dropout(rl.ones(4), 0.5)
            rl.zeros(4).normal_()
            assert random.current() is two
        with pytest.raises(ZeroDivisionError), random.stream(two):
            raise ZeroDivisionError
        assert random.current() is one
        thread = threading.Thread(target=lambda: seen.append(random.current()))
        thread.start()
        thread.join()
    assert seen == [random.default_generator]
    assert first == rl.rand(3, generator=rl.Generator().manual_seed(1)).tolist()
    assert two.get_state().tolist() != rl.Generator().manual_seed(2).get_state().tolist()
    assert rl.get_rng_state().tolist() == before
    with random.stream(one):
        rl.manual_seed(5)  # goes on meaning the default generator
    assert rl.initial_seed() == 5


def test_mix_is_splitmix64_and_spreads_near_numbers():
    assert random.mix(0) == 0xE220A8397B1DCDAF  # first output of SplitMix64 seeded with 0
    assert random.mix(-1) == random.mix(2**64 - 1)
    seeds = [random.mix(a, b) for a in range(50) for b in range(50)]
    assert len(set(seeds)) == 2500
    bits = np.unpackbits(np.array(seeds, np.uint64).view(np.uint8)).reshape(2500, 64)
    assert np.abs(bits.mean(0) - 0.5).max() < 0.06


def test_draw_seed():
    generator = rl.Generator().manual_seed(0)
    seeds = [random.draw_seed(generator) for _ in range(100)]
    assert len(set(seeds)) == 100
    assert all(0 <= s < 2**63 for s in seeds)
    assert max(seeds) > 2**62


# ---- collating ----

SAMPLES = {
    "tensor": [np.arange(3.0, dtype=np.float32), np.ones(3, np.float32)],
    "array float64": [np.arange(6.0).reshape(2, 3), np.ones((2, 3))],
    "array int32": [np.arange(3, dtype=np.int32), np.ones(3, np.int32)],
    "array uint8": [np.arange(3, dtype=np.uint8)] * 3,
    "array bool": [np.array([True, False])] * 2,
    "no axes": [np.array(1.5, np.float32), np.array(2.5, np.float32)],
    "floats": [1.0, 2.5],
    "ints": [1, 2],
    "ints and floats": [1, 2.5],
    "bools": [True, False],
    "float32 scalars": [np.float32(1), np.float32(2)],
    "float64 scalars": [np.float64(1), np.float64(2)],
    "int32 scalars": [np.int32(1), np.int32(2)],
    "bool scalars": [np.bool_(True), np.bool_(False)],
    "strings": ["a", "b"],
    "bytes": [b"a", b"b"],
    "tuples": [(1, 2.0), (3, 4.0)],
    "lists": [[1, 2.0], [3, 4.0]],
    "named": [Point(1, "a"), Point(2, "b")],
    "dicts": [{"a": 1, "b": (1.0, "x")}, {"a": 2, "b": (2.0, "y")}],
    "ordered": [collections.OrderedDict(a=1), collections.OrderedDict(a=2)],
    "default": [collections.defaultdict(int, a=1), collections.defaultdict(int, a=2)],
    "nested": [[{"a": [np.ones(2), 1]}], [{"a": [np.zeros(2), 2]}]],
    "one": [(np.ones((1, 2), np.float32), 3)],
}


@pytest.mark.peer
@pytest.mark.parametrize("name", SAMPLES)
def test_default_collate_matches_pytorch(torch, name):
    theirs = torch.utils.data.default_collate(SAMPLES[name])
    assert plain(default_collate(SAMPLES[name])) == plain(theirs)
    theirs = torch.utils.data.default_convert(SAMPLES[name])
    assert plain(default_convert(SAMPLES[name])) == plain(theirs)


def test_default_collate_values():
    x, y = default_collate([(rl.tensor([1.0, 2.0]), 0), (rl.tensor([3.0, 4.0]), 1)])
    assert x.dtype is rl.float32
    assert x.tolist() == [[1, 2], [3, 4]]
    assert y.dtype is rl.int64
    assert y.tolist() == [0, 1]
    assert default_collate([1.5]).dtype is rl.float64
    assert type(default_collate([Point(1, 2)] * 2)) is Point


def test_default_collate_names_the_ragged_sample():
    with pytest.raises(rl.ShapeError, match=r"sample 2 has shape \(4,\), sample 0 has \(3,\)"):
        default_collate([np.ones(3), np.ones(3), np.ones(4)])
    with pytest.raises(rl.ShapeError, match=r"sample 1\[1\]\['x'\] has shape \(2,\)"):
        default_collate([(0, {"x": rl.ones(1)}), (0, {"x": rl.ones(2)})])
    with pytest.raises(ValueError, match="sample 1 has 3 parts, sample 0 has 2"):
        default_collate([[1, 2], [1, 2, 3]])
    with pytest.raises(TypeError, match=r"sample 0\[1\] is of type object.*collate_fn"):
        default_collate([(1, object())])
    with pytest.raises(TypeError, match="no tensor dtype"):
        default_collate([np.array(["a"])])
    with pytest.raises(ValueError, match="at least one sample"):
        default_collate([])


# ---- datasets ----


class Squares(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, i):
        if not 0 <= i < 10:
            raise IndexError(i)
        return i * i


class Count(IterableDataset):
    def __init__(self, *args):
        self.range = range(*args)

    def __iter__(self):
        return iter(self.range)

    def __len__(self):
        return len(self.range)


def test_tensor_dataset():
    x, y = rl.arange(12).reshape(4, 3), rl.arange(4)
    dataset = TensorDataset(x, y)
    assert len(dataset) == 4
    assert [t.tolist() for t in dataset[2]] == [[6, 7, 8], 2]
    with pytest.raises(rl.ShapeError, match=r"\(4, 3\), \(3,\)"):
        TensorDataset(x, y[:3])
    with pytest.raises(rl.ShapeError, match="at least one axis"):
        TensorDataset(rl.tensor(1))


@pytest.mark.parametrize("kind", ["TensorDataset", "Subset", "Windows"])
def test_take_equals_collating_the_samples(kind):
    tensors = TensorDataset(rl.randn(20, 3), rl.arange(20), rl.rand(20, 2, 2) > 0.5)
    dataset = {
        "TensorDataset": tensors,
        "Subset": Subset(tensors, list(range(19, -1, -1))),
        "Windows": data.Windows(np.arange(100, 125, dtype=np.uint16), 5),
    }[kind]
    for indices in ([0], [3, 1, 1, -1], list(range(20))):
        collated = default_collate([dataset[i] for i in indices])
        assert plain(dataset.take(indices)) == plain(collated)


def test_an_inherited_take_does_not_pass_by_an_overridden_getitem():
    class Negated(TensorDataset):
        def __getitem__(self, index):
            return tuple(-x for x in super().__getitem__(index))

    dataset = Negated(rl.arange(4))
    assert next(iter(DataLoader(dataset, 4)))[0].tolist() == [0, -1, -2, -3]
    assert next(iter(DataLoader(Subset(dataset, [3, 1]), 2)))[0].tolist() == [-3, -1]


def test_take_is_for_datasets_of_ours_and_getitems_is_used():
    class Foreign(list):
        def take(self, n):
            raise AssertionError

        def __getitems__(self, indices):
            return [-self[i] for i in indices]

    assert next(iter(DataLoader(Foreign([5, 6, 7]), 2))).tolist() == [-5, -6]


def test_concat_and_chain():
    both = Squares() + Subset(Squares(), [3, 4])
    assert [both[i] for i in range(len(both))] == [i * i for i in range(10)] + [9, 16]
    assert both[-1] == 16
    assert both[-12] == 0
    for i in (12, -13):
        with pytest.raises(IndexError, match="of 12 samples"):
            both[i]
    chained = Count(3) + Count(5, 7)
    assert isinstance(chained, ChainDataset)
    assert list(chained) == [0, 1, 2, 5, 6]
    assert len(chained) == 5
    with pytest.raises(TypeError, match="use ChainDataset"):
        ConcatDataset([Count(3)])
    with pytest.raises(ValueError, match="at least one"):
        ConcatDataset([])
    with pytest.raises(TypeError, match="Squares is no IterableDataset"):
        list(ChainDataset([Squares()]))


def test_what_a_subclass_must_define():
    with pytest.raises(NotImplementedError, match="__getitem__"):
        Dataset()[0]
    with pytest.raises(NotImplementedError, match="__iter__"):
        iter(IterableDataset())
    with pytest.raises(NotImplementedError, match="__iter__"):
        iter(data.Sampler())


def test_random_split():
    parts = random_split(Squares(), [3, 7], rl.Generator().manual_seed(1))
    assert [len(p) for p in parts] == [3, 7]
    assert sorted(x for p in parts for x in p) == [i * i for i in range(10)]
    again = random_split(Squares(), [3, 7], rl.Generator().manual_seed(1))
    assert [p.indices for p in parts] == [p.indices for p in again]
    with pytest.raises(ValueError, match="do not add up to the 10"):
        random_split(Squares(), [3, 6])
    with pytest.raises(ValueError, match="do not add up"):
        random_split(Squares(), [-3, 13])
    with pytest.raises(ValueError, match=r"fraction 0 is 1\.5"):
        random_split(Squares(), [1.5, -0.5])
    with pytest.warns(UserWarning, match="part 1 is empty"):
        random_split([1], [0.5, 0.5])


@pytest.mark.peer
@pytest.mark.parametrize("lengths", [[0.3, 0.3, 0.4], [0.5, 0.5], [1.0], [0.1] * 10, [4, 6]])
@pytest.mark.parametrize("count", [10, 13])
def test_random_split_lengths_match_pytorch(torch, lengths, count):
    def sizes(split):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return [len(p) for p in split(range(count), lengths)]
            except ValueError:
                return "refused"

    assert sizes(random_split) == sizes(torch.utils.data.random_split)


# ---- samplers ----


def test_random_sampler():
    order = list(RandomSampler(range(3000)))
    assert sorted(order) == list(range(3000))
    assert order != sorted(order)
    assert order != list(RandomSampler(range(3000)))
    rl.manual_seed(0)
    assert list(RandomSampler(range(3000))) == order
    more = list(RandomSampler(range(4), num_samples=10))
    assert [sorted(more[:4]), sorted(more[4:8])] == [[0, 1, 2, 3]] * 2
    assert len(more) == 10
    own = [
        list(RandomSampler(range(9), generator=rl.Generator().manual_seed(s))) for s in (1, 1, 2)
    ]
    assert own[0] == own[1] != own[2]


def test_random_sampler_with_replacement_holds_nothing_of_the_datas_length():
    class Huge:
        def __len__(self):
            return 2**62

    sampler = RandomSampler(Huge(), replacement=True)
    assert len(sampler) == 2**62
    drawn = [i for i, _ in zip(sampler, range(5000), strict=False)]
    assert len(set(drawn)) == 5000
    assert 2**61 < max(drawn) < 2**62
    counts = np.bincount(list(RandomSampler(range(10), True, 10_000)), minlength=10)
    assert (np.abs(counts - 1000) < 150).all()  # five deviations


def test_samplers_draw_one_seed_when_they_begin():
    """So what the user draws during an iteration changes nothing in it."""
    for sampler in (RandomSampler(range(2000), True), RandomSampler(range(5), num_samples=20)):
        rl.manual_seed(0)
        undisturbed = list(sampler)
        rl.manual_seed(0)
        disturbed = [i for i in sampler if rl.rand(1).item() < 2]
        assert disturbed == undisturbed


def test_subset_and_weighted_samplers():
    assert sorted(SubsetRandomSampler([5, 7, 9])) == [5, 7, 9]
    assert len(SubsetRandomSampler([5, 7, 9])) == 3
    drawn = np.bincount(list(WeightedRandomSampler([1, 0, 3], 4000)), minlength=3)
    assert drawn[1] == 0
    assert abs(drawn[2] - 3000) < 150
    assert sorted(WeightedRandomSampler(rl.tensor([0.1, 5.0, 1.0]), 3, False)) == [0, 1, 2]
    for sampler in (SubsetRandomSampler(range(50)), WeightedRandomSampler(np.ones(9), 50)):
        rl.manual_seed(3)
        once = list(sampler)
        rl.manual_seed(3)
        assert list(sampler) == once


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda d: d.RandomSampler([]), ValueError),
        (lambda d: d.RandomSampler([1], num_samples=0), ValueError),
        (lambda d: d.RandomSampler([1], replacement=1), TypeError),
        (lambda d: d.WeightedRandomSampler([1.0], 0), ValueError),
        (lambda d: d.WeightedRandomSampler([1.0], True), ValueError),
        (lambda d: d.WeightedRandomSampler([1.0], 1, 1), ValueError),
        (lambda d: d.WeightedRandomSampler([[1.0]], 1), ValueError),
        (lambda d: d.BatchSampler([1], 0, False), ValueError),
        (lambda d: d.BatchSampler([1], True, False), ValueError),
        (lambda d: d.BatchSampler([1], 1, 1), ValueError),
        (lambda d: d.DataLoader([1], 0), ValueError),
        (lambda d: d.DataLoader([1], shuffle=True, sampler=[0]), ValueError),
        (lambda d: d.DataLoader([1], batch_sampler=[[0]], batch_size=2), ValueError),
        (lambda d: d.DataLoader([1], batch_sampler=[[0]], drop_last=True), ValueError),
        (lambda d: d.DataLoader([1], batch_size=None, drop_last=True), ValueError),
        (lambda d: d.DataLoader([], shuffle=True), ValueError),
        (lambda d: d.DataLoader([1], num_workers=-1), ValueError),
        (lambda d: d.DataLoader([1], timeout=-1), ValueError),
        (lambda d: d.DataLoader([1], prefetch_factor=2), ValueError),
        (lambda d: d.DataLoader([1], persistent_workers=True), ValueError),
        (lambda d: d.DataLoader([1], multiprocessing_context="fork"), ValueError),
        (lambda d: d.DataLoader([1], num_workers=1, multiprocessing_context="thread"), ValueError),
        (lambda d: d.DataLoader([1], num_workers=1, multiprocessing_context=1), TypeError),
        (lambda d: d.DataLoader(d.ChainDataset([]), shuffle=True), ValueError),
        (lambda d: d.DataLoader(d.ChainDataset([]), sampler=[0]), ValueError),
        (lambda d: d.DataLoader(d.ChainDataset([]), batch_sampler=[[0]]), ValueError),
    ],
)
@pytest.mark.parametrize("peer", [False, pytest.param(True, marks=pytest.mark.peer)])
def test_arguments_that_make_no_sense(make, error, peer, request):
    where = request.getfixturevalue("torch").utils.data if peer else data
    with pytest.raises(error):
        make(where)


def test_what_only_we_refuse():
    with pytest.raises(ValueError, match="timeout is for workers"):
        DataLoader([1], timeout=1)
    with pytest.raises(ValueError, match="prefetch_factor must be positive"):
        DataLoader([1], num_workers=1, prefetch_factor=0)
    with pytest.raises(NotImplementedError, match="started for each epoch"):
        DataLoader([1], num_workers=1, persistent_workers=True)
    emptied = [1]
    sampler = RandomSampler(emptied, num_samples=3)
    emptied.clear()
    with pytest.raises(ValueError, match="length of the data"):
        list(sampler)


@given(st.integers(0, 30), st.integers(1, 12), st.booleans())
def test_batch_sampler_is_slicing(count, size, drop_last):
    expected = [list(range(count))[i : i + size] for i in range(0, count, size)]
    if drop_last:
        expected = [b for b in expected if len(b) == size]
    sampler = BatchSampler(SequentialSampler(range(count)), size, drop_last)
    assert list(sampler) == expected
    assert len(sampler) == len(expected)
    loader = DataLoader(range(count), size, drop_last=drop_last)
    assert [b.tolist() for b in loader] == expected
    assert len(loader) == len(expected)


@pytest.mark.peer
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [1, 3, 10, 11])
def test_batches_and_lengths_match_pytorch(torch, size, drop_last):
    for dataset in (
        lambda d: list(range(10)),
        lambda d: type(
            "I",
            (d.IterableDataset,),
            {"__iter__": lambda s: iter(range(10)), "__len__": lambda s: 10},
        )(),
    ):
        ours = DataLoader(dataset(data), size, drop_last=drop_last)
        theirs = torch.utils.data.DataLoader(dataset(torch.utils.data), size, drop_last=drop_last)
        assert len(ours) == len(theirs)
        assert [plain(b) for b in ours] == [plain(b) for b in theirs]
    ours = BatchSampler(range(10), size, drop_last)
    theirs = torch.utils.data.BatchSampler(range(10), size, drop_last)
    assert list(ours) == list(theirs)
    assert len(ours) == len(theirs)


def test_utils_data_is_the_same():
    for name in data.__all__:
        assert getattr(rushlight.utils.data, name) is getattr(data, name)
