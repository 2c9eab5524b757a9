"""Runs on images: weights to start from, descriptions that are damaged, images of other kinds."""

import json
from pathlib import Path

import numpy as np
import pytest

import rushlight as rl
from rushlight import models
from rushlight.classify import load_classifier
from rushlight.data.vision.image_set import read_description
from rushlight.errors import ConfigError, FormatError, ShapeError
from rushlight.nn.utils import reparameterize
from rushlight.runs import start_from
from rushlight.train.loss import finite_loss
from rushlight_cli import main


@pytest.fixture(autouse=True)
def _in(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def images(channels, count=24):
    rng = np.random.default_rng(channels)
    return rng.integers(0, 256, (count, 28, 28, channels), dtype=np.uint8)


@pytest.fixture
def run():
    """A run of lenet on so many channels."""

    def made(channels=1, *options):
        np.savez("a.npz", images=images(channels), labels=np.arange(24) % 3)
        arguments = ["train", "--task", "vision", "a.npz", "--out", "run", "--epochs", "0"]
        assert main([*arguments, "--quiet", *options]) == 0

    return made


# ---- weights to start from ----


def test_the_prefix_of_parallel_wrappers_is_taken_off():
    net, other = models.lenet(10), models.lenet(10)
    rl.save({f"module.{name}": x for name, x in net.state_dict().items()}, "w.safetensors")
    start_from(other, Path("w.safetensors"))
    for name, value in net.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[name].numpy(), value.numpy())


def test_weights_for_colours_serve_grey_images(rng):
    colour, grey = models.resnet18(5).eval(), models.resnet18(5, 1).eval()
    rl.save(colour.state_dict(), "w.safetensors")
    start_from(grey, Path("w.safetensors"))
    x = rl.tensor(rng.standard_normal((2, 1, 32, 32)).astype(np.float32))
    expected = colour(x.expand(2, 3, 32, 32)).detach().numpy()
    np.testing.assert_allclose(grey(x).detach().numpy(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("weights", "model", "message"),
    [
        (lambda: models.vit_tiny(5, image=32), lambda: models.vit_tiny(5, image=64), "32 x 32 pixels"),
        (lambda: reparameterize(models.mobileone_s0(5).eval()), lambda: models.mobileone_s0(5), "folded"),
        (lambda: models.fastvit_t8(5), lambda: models.resnet50(5), "missing: conv1.weight, "),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_told_apart_in_a_line(weights, model, message):
    rl.save(weights().state_dict(), "w.safetensors")
    with pytest.raises(
        FormatError, match=f"^w.safetensors: weights of another model.*{message}"
    ) as caught:
        start_from(model(), Path("w.safetensors"))
    assert len(str(caught.value)) < 700


# ---- what a run says of its images ----


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("size", 10**12), ("size", 0), ("size", True), ("channels", 5), ("classes", []),
        ("classes", ["a", 1, "b"]), ("labels", [0, 1, 3]), ("labels", ["0"]), ("learned", -1),
        ("learned", 25), ("mean", [float("nan")]), ("mean", []), ("std", [0.0]), ("std", ["1"]),
        ("skipped", []), ("labels", None), ("classes", 3), ("classes", "abc"), ("classes", {"a": 1, "b": 2, "c": 3}),
        ("classes", ["a", "a", "b"]), ("mean", [10**400]), ("std", [1e-320]), ("size", 4097),
    ],
)  # fmt: skip
def test_damaged_descriptions_are_named(run, name, value, capsys):
    run()
    path = Path("run/images.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    with pytest.raises(FormatError, match=r"^run/images.json: damaged: "):
        read_description(Path("run"))
    assert main(["predict", "run", "x.png"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


# ---- images of other kinds than the run's ----


def test_grey_and_coloured_images_become_what_the_model_wants(run):
    run(3)
    grey = images(1)[0]
    got = load_classifier("run").probabilities([grey, grey[:, :, 0]])
    expected = load_classifier("run").probabilities([np.repeat(grey, 3, 2)])
    np.testing.assert_array_equal(got, np.repeat(expected, 2, 0))


def test_a_run_on_four_channels_names_images_it_cannot_take(run, capsys):
    from PIL import Image

    run(4)
    with pytest.raises(ShapeError, match="the model wants 4 channels"):
        load_classifier("run").top(images(3)[0])
    Image.fromarray(images(3)[0]).save("x.png")
    assert main(["predict", "run", "x.png"]) == 1
    assert (
        "rushlight predict: x.png: image (28, 28, 3): the model wants 4 channels\n"
        in capsys.readouterr().err
    )


# ---- files ----


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"labels": np.full(24, 2**63, np.uint64)}, "a.npz: labels has labels up to 9223372036854775808"),
        ({"images": np.zeros((24, 0, 28), np.uint8)}, r"a.npz: images has shape \(24, 0, 28\): no pixels"),
    ],
)  # fmt: skip
def test_npz_files_that_hold_nothing_sensible(arrays, message, capsys):
    np.savez("a.npz", **({"images": images(1), "labels": np.arange(24) % 2} | arrays))
    assert main(["train", "--task", "vision", "a.npz"]) == 1
    assert capsys.readouterr().err.startswith("rushlight train: " + message.replace("\\", ""))


def test_classes_without_images_are_counted(run, capsys):
    np.savez("gaps.npz", images=images(1), labels=np.arange(24) % 3 * 2)
    assert main(["train", "--task", "vision", "gaps.npz", "--epochs", "0"]) == 0
    assert "5 classes (2 without images)" in capsys.readouterr().out


def test_steps_and_epochs_are_one_too_many(capsys):
    assert main(["train", "--task", "vision", "a.npz", "--steps", "3", "--epochs", "1"]) == 2
    assert "steps and epochs both say how long" in capsys.readouterr().err
    assert main(["train", "--task", "vision", "a.npz", "--set", "steps=3", "--epochs", "1"]) == 2


@pytest.mark.parametrize("name", ["loss", "lr", "step", "val_accuracy", "images", "items_per_s"])
def test_metrics_do_not_take_the_names_of_columns(name):
    def loss(model, batch):
        return rl.tensor(1.0), 1, {name: 0.5}

    with pytest.raises(ConfigError, match=f"a metric cannot be called '{name}'"):
        finite_loss(models.lenet(2), None, loss)


def test_a_folder_beside_train_that_is_neither_class_nor_held_out(capsys):
    for folder in ("x/train/a", "x/train/b", "x/dev/a"):
        Path(folder).mkdir(parents=True)
    assert main(["train", "--task", "vision", "x"]) == 1
    assert (
        "x: train has classes, but beside it is dev; the folder of what is held out"
        in capsys.readouterr().err
    )


def test_damaged_npz_files_of_any_kind_are_named(capsys):
    np.savez("a.npz", images=images(1), labels=np.arange(24) % 2)
    data = Path("a.npz").read_bytes()
    for old, new in (
        (b"(24, 28, 28, 1)", b"(True, 28, 28) "), (b"(24, 28, 28, 1)", b"(10**30, 28, 28"),
        (b"(24, 28, 28, 1), }", b"(24, 28, 28      "), (b"PK\x01\x02", b"PK\x01\x03"),
    ):  # fmt: skip
        Path("a.npz").write_bytes(data.replace(old, new))
        assert main(["train", "--task", "vision", "a.npz"]) == 1
        assert capsys.readouterr().err.startswith("rushlight train: a.npz")
