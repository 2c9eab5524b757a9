"""What resuming a run must not miss, and what it must refuse."""

import random

import numpy as np
import pytest

import rushlight as rl
from rushlight.data import DataLoader, TensorDataset
from rushlight.errors import ConfigError, FormatError
from rushlight.optim import SGD
from rushlight.train import Callback, train
from small_run import line, pairs, squares


@pytest.fixture(autouse=True)
def global_streams():
    """Checkpoints keep Python's and NumPy's streams, too."""
    random.seed(0)
    np.random.seed(0)


# ---- what resuming must not miss ----


class Dies(Exception):
    pass


class Die(Callback):
    def __init__(self, when):
        self.when = when

    def step(self, run):
        if run.step == self.when:
            raise Dies


def whole_and_resumed(tmp_path, batches, when, **options):
    """Weights of a run of 25 steps, and of one that died and went on in a new set of objects."""
    found = []
    for name, dies in (("whole", []), ("parts", [when])):
        for end in (*dies, None):
            rl.manual_seed(0 if end is None and not dies else 7 if end is None else 0)
            model = line(0.1)
            optimizer = SGD(model.parameters(), 1e-4)
            made = batches()
            more = {k: v(made) for k, v in options.items()}
            more["callbacks"] = [*more.get("callbacks", []), Die(end)]
            try:
                train(
                    model, made, squares, optimizer=optimizer, steps=25, save_every=1,
                    folder=tmp_path / name, resume=True, **more,
                )  # fmt: skip
            except Dies:
                continue
            found.append(model.weight.item())
    return found


@pytest.mark.parametrize("when", [5, 6, 7, 12])
def test_other_passes_over_the_loader_do_not_move_its_place(tmp_path, when):
    class Peek(Callback):
        def __init__(self, loader):
            self.loader = loader

        def step(self, run):
            if run.step % 5 == 0:
                next(iter(self.loader))

    def loader():
        return DataLoader(TensorDataset(*pairs(*range(40))), 4, shuffle=True)

    options = {
        "held_out": lambda made: made,
        "eval_every": lambda made: 5,
        "callbacks": lambda made: [Peek(made)],
    }
    whole, parts = whole_and_resumed(tmp_path, loader, when, **options)
    assert whole == parts


@pytest.mark.parametrize("when", [3, 10, 13, 20, 24])
def test_iterables_that_draw_their_order(tmp_path, when):
    class Shuffled:
        def __iter__(self):
            for i in rl.randperm(10).tolist():
                yield pairs(float(i))

    whole, parts = whole_and_resumed(tmp_path, Shuffled, when)
    assert whole == parts


ORDERS = {
    "random": lambda n: random.sample(range(n), n),
    "numpy": lambda n: np.random.permutation(n).tolist(),
    "rushlight": lambda n: rl.randperm(n).tolist(),
}


@pytest.mark.parametrize("draw", ORDERS)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("when", [3, 10, 13])
def test_samplers_that_draw_their_order(tmp_path, when, workers, draw):
    class Order:
        def __iter__(self):
            return iter(ORDERS[draw](20))

        def __len__(self):
            return 20

    class Draws(Callback):
        def step(self, run):
            random.random()
            np.random.rand()

    def loader():
        random.seed(1)  # when the run is resumed, it is the checkpoint that counts
        np.random.seed(1)
        return DataLoader(
            TensorDataset(*pairs(*range(20))), 2, sampler=Order(), num_workers=workers
        )

    options = {"callbacks": lambda made: [Draws()]}
    whole, parts = whole_and_resumed(tmp_path, loader, when, **options)
    assert whole == parts


@pytest.mark.parametrize("count", [float("nan"), -1, float("inf")])
def test_a_count_is_a_count(count):
    with pytest.raises(ConfigError, match="no such number"):
        train(line(), [pairs(1.0)], lambda model, batch: (squares(model, batch)[0], count))


def test_another_optimizer_or_kind_of_batches_is_refused(tmp_path):
    def go(batches, make=SGD):
        model = line()
        optimizer = make(model.parameters(), lr=0.1)
        train(model, batches, squares, optimizer=optimizer, steps=4, folder=tmp_path, resume=True)

    go([pairs(1.0), pairs(2.0), pairs(3.0)])
    with pytest.raises(ConfigError, match="optimizer was 'SGD'"):
        go([pairs(1.0)], rl.optim.Adam)
    with pytest.raises(FormatError, match="another kind than DataLoader"):
        go(DataLoader(TensorDataset(*pairs(1.0, 2.0)), 1))


def test_weights_without_a_checkpoint_are_kept(tmp_path):
    train(line(), [pairs(1.0)], squares, steps=2, folder=tmp_path)
    (tmp_path / "resume.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"has weights but no resume\.safetensors"):
        train(line(), [pairs(1.0)], squares, steps=2, folder=tmp_path, resume=True)
