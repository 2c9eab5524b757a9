"""The MNIST example, on a few images that can be learned."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1] / "examples" / "mnist"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("main", "dataset", "model", "trainer")
    yield {name: importlib.import_module(name) for name in names}
    for name in names:
        sys.modules.pop(name, None)


@pytest.fixture
def data(tmp_path):
    """Digit d has a bright bar at its own place."""
    for split, count in (("train", 600), ("t10k", 100)):
        labels = np.arange(count, dtype=np.uint8) % 10
        images = np.random.default_rng(count).integers(0, 60, (count, 28, 28)).astype(np.uint8)
        for image, label in zip(images, labels, strict=True):
            image[4 + 2 * label : 6 + 2 * label, 4:24] = 250
        for kind, array, magic in (("images-idx3", images, 0x803), ("labels-idx1", labels, 0x801)):
            header = np.array([magic, *array.shape], ">u4").tobytes()
            (tmp_path / f"{split}-{kind}-ubyte").write_bytes(header + array.tobytes())
    return str(tmp_path)


@pytest.mark.parametrize("recipe", ["article", "fast"])
def test_recipes(example, data, recipe, capsys):
    options = [data, "--recipe", recipe, "--epochs", "4", "--batch", "10"]
    accuracies = example["main"].main(options)
    assert accuracies[-1] > (0.9 if recipe == "article" else 0.5)
    assert capsys.readouterr().out.count("epoch") == 4
    assert example["main"].main(options) == accuracies


def test_testing_builds_no_graph(example, data):
    import rushlight as rl

    model = example["model"].LeNet()
    assert sum(p.numel() for p in model.parameters()) == 21_840
    seen = []
    forward = model.forward
    model.forward = lambda x: seen.append(y := forward(x)) or y
    _, test = example["dataset"].loaders(data, 10)
    loss, accuracy = example["trainer"].test(model, test)
    assert seen
    assert not any(y.requires_grad for y in seen)
    assert 2 < loss < 3
    assert 0 <= accuracy < 0.4
    assert not model.training
    assert rl.is_grad_enabled()


def test_images_are_moved(example):
    import rushlight as rl

    x = rl.arange(2 * 28 * 28, dtype=rl.float32).view(2, 1, 28, 28) + 1
    moved = example["dataset"].shifted(x, 2)
    background = np.float32(-0.1307 / 0.3081)
    for before, after in zip(x.numpy()[:, 0], moved.numpy()[:, 0], strict=True):
        padded = np.pad(before, 2, constant_values=background)
        fits = [
            np.allclose(after, padded[i : i + 28, j : j + 28]) for i in range(5) for j in range(5)
        ]
        assert sum(fits) == 1
