"""Images through a DataLoader: the same batches whoever makes them, resumed, and mixed."""

import gc
import itertools

import numpy as np
import pytest

import rushlight as rl
import rushlight.nn.functional as F
from loader_data import KINDS, nothing_left
from rushlight.data import DataLoader
from rushlight.data.vision import CutMix, MixUp, NpzImages, cutmix, mixup, transforms

pytest.importorskip("PIL.Image", reason="Pillow is not installed")


@pytest.fixture(autouse=True)
def _leaves_nothing():
    yield
    gc.collect()
    assert nothing_left()


CHAIN = transforms.Compose(
    [
        transforms.RandomResizedCrop(9, (0.3, 1)),
        transforms.RandomHorizontalFlip(),
        transforms.ColorJitter(0.4, 0.4, 0.4, 0.1),
        transforms.RandAugment(),
        transforms.RandomAffine(10, (0.1, 0.1), (0.8, 1.2), 5, "bilinear"),
        transforms.RandomRotation(20),
        transforms.RandomCrop(8, padding=1),
        transforms.ToTensor(),
        transforms.RandomErasing(0.5, value="random"),
    ]
)


@pytest.fixture
def dataset(tmp_path, rng):
    path = tmp_path / "images.npz"
    np.savez(path, images=rng.integers(0, 256, (11, 12, 13, 3), np.uint8), labels=np.arange(11) % 4)
    return NpzImages(path, transform=CHAIN)


def epochs(dataset, count, **options):
    rl.manual_seed(7)
    loader = DataLoader(dataset, 3, shuffle=True, **options)
    return [[x.numpy().tobytes() for batch in loader for x in batch] for _ in range(count)]


@pytest.mark.parametrize("collate_fn", [None, MixUp(num_classes=4), CutMix(num_classes=4)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_batches_whoever_makes_them(dataset, kind, collate_fn):
    expected = epochs(dataset, 2, collate_fn=collate_fn)
    assert epochs(dataset, 2, collate_fn=collate_fn, **KINDS[kind]) == expected
    assert len(set(expected[0][::2] + expected[1][::2])) == 8  # all of them different


@pytest.mark.parametrize("kind", KINDS)
def test_resuming_in_the_middle_of_an_epoch(dataset, kind):
    def bits(batch):
        return [x.numpy().tobytes() for x in batch]

    rl.manual_seed(7)
    loader = DataLoader(dataset, 3, shuffle=True, **KINDS[kind])
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    state = loader.state_dict()
    expected = [bits(b) for b in batches] + [bits(b) for b in loader]
    rl.manual_seed(99)
    resumed = DataLoader(dataset, 3, shuffle=True)
    resumed.load_state_dict(state)
    got = [bits(b) for b in itertools.chain(resumed, resumed)]
    assert len(expected) == 6
    assert got[:6] == expected[:2] + got[2:6]


# ---- mixing ----


def test_mixup():
    x = rl.from_numpy(
        np.arange(8, dtype=np.float32).reshape(8, 1, 1, 1) ** 2 + rl.zeros(1, 3, 2, 2).numpy()
    )
    y = rl.arange(8) % 3
    mixed, targets = mixup(x, y, 3, alpha=4.0)
    assert mixed.shape == x.shape
    assert mixed.dtype is rl.float32
    assert targets.dtype is rl.float32
    assert tuple(targets.shape) == (8, 3)
    # find the one lam and the permutation that explain everything
    hot = np.eye(3)[y.numpy()]
    values, first = mixed.numpy(), mixed.numpy()[:, 0, 0, 0]
    assert (values == first[:, None, None, None]).all()
    for lam in {float(t) for t in targets.numpy().ravel()} - {0.0, 1.0}:
        other = (first - lam * np.arange(8) ** 2) / (1 - lam)
        index = np.sqrt(np.abs(other)).round().astype(int)
        if sorted(index) == list(range(8)) and np.allclose(index**2, other, atol=1e-3):
            np.testing.assert_allclose(
                lam * hot + (1 - lam) * hot[index], targets.numpy(), atol=1e-6
            )
            break
    else:
        raise AssertionError("no such permutation")
    assert x.numpy()[3, 0, 0, 0] == 9  # as it was


def test_cutmix():
    height, width = 9, 14
    x = rl.from_numpy(
        np.broadcast_to(np.arange(6.0)[:, None, None, None], (6, 2, height, width)).astype(
            np.float32
        )
    )
    y = rl.arange(6)
    shares, parts = [], set()
    for _ in range(200):
        mixed, targets = cutmix(x, y, 6)
        images = mixed.numpy()
        foreign = images != np.arange(6)[:, None, None, None]
        changed = [i for i in range(6) if foreign[i].any()]
        for i in changed:
            rows, columns = (np.flatnonzero(foreign[i, 0].any(a)) for a in (1, 0))
            assert foreign[i].sum() == 2 * len(rows) * len(columns)
            parts.add((rows[0], columns[0], len(rows), len(columns)))
        for i in range(6):  # the labels count the pixels
            counted = np.bincount(images[i, 0].ravel().astype(int), minlength=6) / (height * width)
            np.testing.assert_allclose(targets.numpy()[i], counted, atol=1e-6)
        shares.append(foreign[changed[0], 0].mean() if changed else 0)
    assert len(parts) > 100
    assert 0.25 < np.mean(shares) < 0.45  # half, less what leaves the image
    assert x.numpy()[4].min() == 4


def test_mixing_what_was_mixed_and_training_on_it():
    x, y = rl.randn(5, 3, 8, 8), rl.tensor([0, 1, 2, 1, 0])
    mixed, soft = mixup(*cutmix(x, y, 3), 3, 0.2)
    np.testing.assert_allclose(soft.numpy().sum(1), 1, atol=1e-6)
    logits = rl.randn(5, 3, requires_grad=True)
    loss = F.cross_entropy(logits, soft)
    p = logits.detach().numpy().astype(np.float64)
    log_p = p - np.log(np.exp(p).sum(1, keepdims=True))
    assert abs(loss.item() + (soft.numpy() * log_p).sum(1).mean()) < 1e-5
    loss.backward()
    assert mixed.dtype is rl.float32
    one, _ = cutmix(rl.ones(1, 1, 1, 1), rl.tensor([0]), 2)
    assert one.item() == 1
    assert mixup(rl.ones(2, 4, dtype=rl.float64), y[:2], 3)[0].dtype is rl.float64


def test_mixing_errors():
    x, y = rl.zeros(4, 1, 2, 2), rl.tensor([0, 1, 2, 3])
    with pytest.raises(IndexError, match="classes from 0 to 3, expected 0 to 2"):
        mixup(x, y, 3)
    with pytest.raises(ValueError, match="alpha must be above 0"):
        mixup(x, y, 4, 0.0)
    with pytest.raises(rl.ShapeError, match=r"images \(4, 1, 2, 2\) and labels \(3,\)"):
        cutmix(x, y[:3], 4)
    with pytest.raises(rl.ShapeError, match=r"expected images \(N, C, H, W\)"):
        cutmix(x[0], y, 4)
    with pytest.raises(rl.DtypeError, match="float images"):
        mixup(rl.zeros(4, 1, dtype=rl.uint8), y, 4)
    with pytest.raises(rl.ShapeError, match=r"labels \(N,\) of integers or \(N, 5\) of floats"):
        mixup(x, rl.zeros(4, 4), 5)
