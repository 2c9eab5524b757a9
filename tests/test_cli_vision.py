"""`rushlight train --task vision` and `rushlight predict`."""

import csv
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import rushlight as rl
from rushlight import models
from rushlight.classify import load_classifier
from rushlight.data.vision.image_set import read_image_set
from rushlight_cli import main

Image = pytest.importorskip("PIL.Image")

WEIGHTS = ("resume.safetensors", "last.safetensors", "best.safetensors")


def stripes(count, seed=0, size=28):
    """Images of horizontal (class 0) or vertical (class 1) stripes, with noise."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 2
    lines = (np.arange(size) // 2 % 2 * 200).astype(np.float64)
    images = np.where(labels[:, None, None] == 1, lines[None, None, :], lines[None, :, None])
    images = images + rng.integers(0, 56, (count, size, size))
    return images.astype(np.uint8), labels.astype(np.uint8)


def idx(path, array):
    head = struct.pack(">BBBB", 0, 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape)
    Path(path).write_bytes(head + array.astype(np.uint8).tobytes())


def idx_folder(folder, count=64, test=32):
    Path(folder).mkdir()
    for part, n in (("train", count), ("t10k", test)):
        if n:
            images, labels = stripes(n, seed=n)
            idx(f"{folder}/{part}-images-idx3-ubyte", images)
            idx(f"{folder}/{part}-labels-idx1-ubyte", labels)


def class_folders(folder, count=24, names=("across", "down")):
    images, labels = stripes(count, size=40)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        place = Path(folder, names[label])
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(place / f"{number:02}.png")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def train(*arguments):
    return main(["train", "--task", "vision", *arguments])


def files(folder):
    return {name: (Path(folder) / name).read_bytes() for name in WEIGHTS}


# ---- what a run makes ----


def test_idx_files_to_pictures_and_predictions(capsys):
    idx_folder("data")
    assert train("data", "--model", "lenet", "--epochs", "6", "--set", "batch=16") == 0
    out = capsys.readouterr().out
    assert "images   data: 64 to learn, 32 held out, 2 classes, 1 x 28 x 28" in out
    assert "model    lenet: 21,432 parameters" in out
    assert "step 24/24" in out
    assert "predict  rushlight predict runs/lenet IMAGE…" in out
    lines = [json.loads(line) for line in Path("runs/lenet/metrics.jsonl").read_text().splitlines()]
    evaluated = [line["step"] for line in lines if "val_accuracy" in line]
    assert evaluated == [4, 8, 12, 16, 20, 24]
    for name in ("confusion.png", "misclassified.png", "loss.png"):
        with Image.open(f"runs/lenet/{name}") as picture:
            assert picture.size[0] >= 400
    # the matrix and the accuracy, counted again
    images, labels = stripes(32, seed=32)
    classifier = load_classifier("runs/lenet")
    said = classifier.probabilities(list(images)).argmax(1)
    counted = [[int(((labels == i) & (said == j)).sum()) for j in (0, 1)] for i in (0, 1)]
    rows = list(csv.reader(Path("runs/lenet/confusion.csv").read_text().splitlines()))
    assert rows == [
        ["true \\ predicted", "0", "1"],
        *([str(i), *map(str, counted[i])] for i in (0, 1)),
    ]
    right = int((said == labels).sum())
    assert right >= 30
    assert f"best     {right} of 32 held-out images right: {right / 32:.4f}" in out
    Image.fromarray(images[1]).save("one.png")
    assert main(["predict", "runs/lenet", "one.png", "--top", "2"]) == 0
    shares = classifier.probabilities([images[1]])[0]
    order = np.argsort(-shares)
    expected = "  ".join(f"{i} {shares[i]:.1%}" for i in order)
    assert capsys.readouterr().out == f"one.png: {expected}\n"


def test_probabilities_are_those_of_the_model_on_normalised_pixels():
    idx_folder("data")
    assert train("data", "--steps", "3", "--quiet") == 0
    images, _ = stripes(32, seed=32)
    learned = stripes(64, seed=64)[0] / 255
    x = (images[:, None] / 255 - learned.mean()) / learned.std()
    net = models.lenet(2).eval()
    net.load_state_dict(rl.load("runs/lenet/best.safetensors"))
    scores = net(rl.tensor(x.astype(np.float32))).detach().numpy().astype(np.float64)
    expected = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    got = load_classifier("runs/lenet").probabilities(list(images))
    np.testing.assert_allclose(got, expected, atol=2e-6)


def test_folders_of_classes_by_share_and_by_name(capsys):
    class_folders("photos")
    assert (
        train("photos", "--model", "lenet", "--steps", "2", "--set", "held_out=0.25", "--out", "a")
        == 0
    )
    assert "photos: 18 to learn, 6 held out, 2 classes, 3 x 28 x 28" in capsys.readouterr().out
    found = read_image_set(Path("a"))
    assert found.classes == ["across", "down"]
    assert found.labels[18:].tolist() == [0, 0, 0, 1, 1, 1]
    class_folders("split/train")
    class_folders("split/val", count=8)
    assert (
        train("split", "--model", "mobileone_s0", "--steps", "1", "--set", "size=32", "--out", "b")
        == 0
    )
    assert "split: 24 to learn, 8 held out, 2 classes, 3 x 32 x 32" in capsys.readouterr().out
    assert main(["predict", "b", "split/val/down/01.png"]) == 0
    said = capsys.readouterr().out.partition(": ")[2]
    assert "across " in said
    assert "down " in said


def test_npz_with_floats_and_its_own_test_part(capsys):
    images, labels = stripes(40)
    floats = (images / 255).astype(np.float32)
    np.savez(
        "set.npz", x_train=floats[:32], y_train=labels[:32], x_test=floats[32:], y_test=labels[32:]
    )
    assert train("set.npz", "--steps", "1", "--set", "augment=none", "--out", "run") == 0
    assert "32 to learn, 8 held out, 2 classes, 1 x 28 x 28" in capsys.readouterr().out
    found = read_image_set(Path("run"))
    np.testing.assert_array_equal(found.images[..., 0], images)
    np.testing.assert_allclose(found.mean, [images[:32].mean() / 255], rtol=1e-6)


@pytest.mark.parametrize("name", ["resnet18", "fastvit_t8", "vit_tiny", "efficientnet_lite0"])
def test_models_take_what_the_folder_has(name, capsys):
    images, labels = stripes(6, size=20)  # of a size that none of them was made for
    np.savez("set.npz", images=np.stack([images] * 3, 3), labels=labels)
    assert train("set.npz", "--model", name, "--steps", "1", "--set", "held_out=0.34") == 0
    assert "3 x 32 x 32" in capsys.readouterr().out
    assert load_classifier(f"runs/{name}").top(images[0].repeat(3).reshape(20, 20, 3), 1)


@pytest.mark.parametrize("way", ["none", "shift", "flip", "strong"])
def test_augmentation(way):
    from rushlight_cli.vision import Settings, lesson

    class_folders("photos", count=8)
    options = "--set", f"augment={way}", "--set", "batch=4", "--out", "run", "--quiet"
    assert train("photos", "--steps", "2", *options) == 0
    images = read_image_set(Path("run"))
    plain = {x.numpy().tobytes() for x, _ in images.to_learn(None)}
    batches = lesson(Settings(augment=way, batch=4), images)["batches"]
    seen = [x.numpy() for _ in range(4) for batch, _ in batches for x in batch]
    assert {x.shape for x in seen} == {(3, 28, 28)}
    assert all(x.tobytes() in plain for x in seen) == (way == "none")


# ---- interrupted, resumed, started from weights ----


@pytest.mark.parametrize("workers", [0, 2])
def test_interrupted_and_resumed_to_the_same_bytes(workers):
    idx_folder("data")
    arguments = ["data", "--epochs", "40", "--set", "batch=16", "--set", f"workers={workers}"]
    arguments += ["--set", "log_every=1", "--set", "save_every=1000"]
    assert train(*arguments, "--out", "whole", "--quiet") == 0
    line = [
        sys.executable,
        "-m",
        "rushlight",
        "train",
        "--task",
        "vision",
        *arguments,
        "--out",
        "cut",
    ]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not (
        Path("cut/metrics.jsonl").exists() and '"step": 9,' in Path("cut/metrics.jsonl").read_text()
    ):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert 9 <= rl.load("cut/resume.safetensors")["progress"]["step"] < 160
    Path("data").rename("elsewhere")  # the run has what it needs
    assert main(["train", "--resume", "--out", "cut", "--quiet"]) == 0
    assert files("cut") == files("whole")
    assert (Path("cut/confusion.csv").read_bytes()) == Path("whole/confusion.csv").read_bytes()


def test_resume_finds_the_task_and_refuses_others(capsys):
    idx_folder("data")
    assert train("data", "--steps", "2", "--out", "run", "--quiet") == 0
    assert main(["train", "--resume", "--out", "run", "--task", "text"]) == 2
    assert (
        "--resume: task was 'vision' when run began, and is 'text' now" in capsys.readouterr().err
    )
    assert main(["train", "--resume", "--out", "run", "--set", "augment=none"]) == 2
    assert "augment was 'shift'" in capsys.readouterr().err
    assert main(["sample", "run"]) == 2
    assert (
        "run is a run for vision, not for text; use `rushlight predict`" in capsys.readouterr().err
    )


def test_other_images_are_noticed_on_resuming(capsys):
    idx_folder("data")
    assert train("data", "--steps", "2", "--out", "run", "--quiet") == 0
    pixels = bytearray(Path("run/images.bin").read_bytes())
    pixels[0] ^= 1
    Path("run/images.bin").write_bytes(pixels)
    assert main(["train", "--resume", "--out", "run"]) == 2
    assert "resume: data was" in capsys.readouterr().err


def test_what_images_are_called_and_normalised_by_is_noticed_too(capsys):
    idx_folder("data")
    assert train("data", "--steps", "2", "--out", "run", "--quiet") == 0
    path = Path("run/images.json")
    path.write_text(path.read_text().replace('["0", "1"]', '["1", "0"]'))
    assert main(["train", "--resume", "--out", "run"]) == 2
    assert "resume: data was" in capsys.readouterr().err


def test_a_run_that_was_killed_as_it_began_begins(capsys):
    idx_folder("data")
    Path("run").mkdir()
    Path("run/.lock").touch()
    Path("run/config.toml.17-0.part").write_text("task =")
    assert train("data", "--steps", "1", "--out", "run", "--quiet") == 0
    assert not list(Path("run").glob("*.part"))


def test_only_known_names_of_npz_are_a_test_part(capsys):
    images, labels = stripes(40)
    np.savez("set.npz", images=images, labels=labels, latest_note=labels)
    assert train("set.npz", "--steps", "1", "--out", "run") == 0
    assert "36 to learn, 4 held out" in capsys.readouterr().out


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_links_to_nowhere_and_pipes_are_unreadable(capsys):
    class_folders("photos")
    os.symlink("nowhere.png", "photos/across/link.png")
    os.mkfifo("photos/down/pipe.png")
    assert train("photos", "--steps", "1", "--out", "run") == 0
    assert "unreadable, left out: 2" in capsys.readouterr().out
    assert main(["predict", "run", "photos/down/pipe.png"]) == 1
    assert "pipe.png: not an ordinary file" in capsys.readouterr().err


def test_starting_from_weights_with_another_head(capsys):
    net = models.lenet(10)
    rl.save(net.state_dict(), "ten.safetensors")
    idx_folder("data")
    arguments = ["data", "--epochs", "0", "--set", "weights=ten.safetensors", "--out", "run"]
    assert train(*arguments) == 0
    assert "parameters, starting from ten.safetensors" in capsys.readouterr().out
    state, own = rl.load("run/last.safetensors"), net.state_dict()
    for name, value in own.items():
        if not name.startswith("fc2"):
            np.testing.assert_array_equal(state[name].numpy(), value.numpy())
    assert tuple(state["fc2.weight"].shape) == (2, 50)
    Path("ten.safetensors").unlink()
    assert main(["train", "--resume", "--out", "run", "--quiet"]) == 0


# ---- bad input ----


def broken_idx(name, change):
    path = Path("data", name)
    path.write_bytes(change(path.read_bytes()))


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (
            lambda: broken_idx("train-images-idx3-ubyte", lambda b: b[:-9]),
            "train-images-idx3-ubyte: truncated",
        ),
        (
            lambda: broken_idx("train-labels-idx1-ubyte", lambda b: b"\0\0\7\1" + b[4:]),
            "train-labels-idx1-ubyte: not an IDX file: it begins with 0x00000701",
        ),
        (
            lambda: idx("data/train-labels-idx1-ubyte", np.zeros(63)),
            "train-images-idx3-ubyte has 64 images, data/train-labels-idx1-ubyte has 63 labels",
        ),
        (
            lambda: Path("data/train-images-idx3-ubyte").unlink(),
            "train-images-idx3-ubyte or train-labels",
        ),
        (
            lambda: Path("data/t10k-labels-idx1-ubyte").unlink(),
            "t10k-images-idx3-ubyte or t10k-labels-idx1-ubyte is missing",
        ),
        (lambda: idx("data/t10k-images-idx3-ubyte", np.zeros((32, 20, 28))), "differ in shape"),
    ],
)
def test_broken_idx_files_leave_no_run(prepare, message, capsys):
    idx_folder("data")
    prepare()
    assert train("data") in (1, 2)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not Path("runs/lenet").exists()


def test_unreadable_images_are_counted_or_refused(capsys):
    class_folders("photos")
    Path("photos/down/bad.png").write_bytes(b"no picture")
    Path("photos/across/00.png").write_bytes(Path("photos/across/02.png").read_bytes()[:60])
    assert train("photos", "--steps", "1", "--set", "unreadable=error", "--out", "a") == 1
    assert "photos/across/00.png" in capsys.readouterr().err
    assert not Path("a").exists()
    assert train("photos", "--steps", "1", "--out", "b") == 0
    out = capsys.readouterr().out
    assert "unreadable, left out: 2" in out
    assert "photos/down/bad.png: not an image of a kind that Pillow knows" in out
    assert len(read_image_set(Path("b")).labels) == 23


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Path("photos/empty").mkdir(), "photos: classes without images: empty"),
        (
            lambda: [p.write_bytes(b"x") for p in Path("photos/down").iterdir()],
            "no image to learn from of: down; unreadable: ",
        ),
    ],
)
def test_classes_without_images_are_named(make, message, capsys):
    class_folders("photos")
    make()
    assert train("photos") == 1
    assert message in capsys.readouterr().err
    assert not Path("runs/lenet").exists()


def test_one_class_is_nothing_to_learn(capsys):
    class_folders("photos/train")
    assert train("photos", "--steps", "1", "--out", "run") == 0  # held out from what there is
    assert "22 to learn, 2 held out, 2 classes" in capsys.readouterr().out
    assert read_image_set(Path("run")).labels[22:].tolist() == [0, 1]  # as much of each class
    class_folders("alone", names=("same", "same"))
    assert train("alone") == 1
    assert "alone: only one class, same" in capsys.readouterr().err


def test_an_epoch_sees_every_image(capsys):
    idx_folder("data", count=40)
    assert train("data", "--epochs", "2", "--set", "batch=16", "--out", "run", "--quiet") == 0
    last = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert (last["step"], last["images"]) == (6, 80)


def test_train_and_val_must_have_the_same_classes(capsys):
    class_folders("split/train")
    class_folders("split/val", names=("across", "up"))
    assert train("split") == 1
    assert "train and val differ in their classes: down, up" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (np.zeros((4, 28, 28)), np.array([0, 1, -1, 0]), "labels from -1 to 1"),
        (np.full((4, 28, 28), np.nan), np.zeros(4, int), "pixels from nan to nan"),
        (np.full((4, 28, 28), -0.5), np.zeros(4, int), "pixels from -0.5 to -0.5"),
        (np.zeros((0, 28, 28)), np.zeros(0, int), "no images"),
        (np.zeros((4, 28, 28)), np.array([0, 1, 2, 10**9]), "labels from 0 to 1000000000"),
    ],
)
def test_odd_npz_files(images, labels, message, capsys):
    np.savez("set.npz", images=images, labels=labels)
    assert train("set.npz") == 1
    assert message in capsys.readouterr().err


def test_weights_of_another_model_are_refused(capsys):
    rl.save(models.mobileone_s0(10, 1).state_dict(), "other.safetensors")
    idx_folder("data")
    assert train("data", "--set", "weights=other.safetensors") == 1
    error = capsys.readouterr().err
    assert "other.safetensors: weights of another model" in error
    assert "conv1.weight" in error
    assert error.count("\n") == 1
    assert not Path("runs/lenet").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one folder or .npz file, got 0"),
        (["a", "b"], "give one folder or .npz file, got 2"),
        (["nothing"], "nothing: no such file or folder"),
        (["."], ".: no IDX or .npz files, and runs/lenet would lie among its classes"),
        ([".", "--out", "../elsewhere"], ".: found no images: neither IDX files"),
        (["notes.txt"], "notes.txt: expected an .npz file, or a folder of images"),
        ([".", "--model", "resnet"], "unknown model 'resnet'; did you mean 'resnet"),
        ([".", "--preset", "gpt-nano"], "unknown key 'preset'"),
        ([".", "--set", "augment=weak"], "unknown augment 'weak'"),
        ([".", "--set", "layers=3"], "unknown key 'layers'"),
        ([".", "--task", "images"], "unknown task 'images'"),
        ([".", "--epochs", "many"], "epochs must be a whole number"),
    ],
)
def test_wrong_usage(arguments, message, capsys):
    Path("notes.txt").write_text("no images")
    assert train(*arguments) in (1, 2)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert os.listdir() == ["notes.txt"]


def test_predict_names_what_it_cannot_read_and_goes_on(capsys):
    idx_folder("data")
    assert train("data", "--steps", "1", "--out", "run", "--quiet") == 0
    Image.fromarray(stripes(1)[0][0]).save("good.png")
    Path("bad.png").write_bytes(b"x")
    assert main(["predict", "run", "bad.png", "none.png", "good.png"]) == 1
    out, error = capsys.readouterr()
    assert out.startswith("good.png: ")
    assert error == (
        "rushlight predict: bad.png: not an image of a kind that Pillow knows\n"
        "rushlight predict: none.png: there is no such file\n"
    )
    assert main(["predict", "run", "good.png", "--top", "0"]) == 2
    assert main(["predict", "nowhere", "good.png"]) == 2
    Path("run/images.json").write_text("{}")
    assert main(["predict", "run", "good.png"]) == 1
    assert "run/images.json: damaged" in capsys.readouterr().err
