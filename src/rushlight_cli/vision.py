"""`rushlight train --task vision`: a classifier of images."""

from __future__ import annotations

import csv
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rushlight_cli.config import Config, UsageError, about, key, nearest
from rushlight_cli.output import tell

if TYPE_CHECKING:
    from rushlight.data.vision.image_set import ImageSet
    from rushlight.nn import Module

WAYS = ("none", "shift", "flip", "strong")  # of changing images that are learned from
SIZE_OF_FILES = 64  # pixels a side of what folders hold, unless settings say
DRAWN = 1000  # classes at most in a picture


@dataclass(frozen=True)
class Settings(Config):
    """Everything that training on images depends on."""

    task: str = key("vision", "what is trained: text or vision", choices=("text", "vision"))
    files: list[str] = field(
        default_factory=list,
        metadata=about("a folder of IDX files or of a folder per class, or .npz"),
    )
    model: str = key("lenet", "lenet, resnet18, mobileone_s0, fastvit_t8, vit_tiny, …")
    weights: str = key("", "a .safetensors file to start from; another head is begun anew")
    size: int = key(
        0, "pixels a side; 0: 28 for lenet, 64 for files, else as the images are", 0, 4097
    )
    unreadable: str = key("skip", "image files: skip or error", choices=("skip", "error"))
    augment: str = key(
        "shift", "images are changed by: none, shift, flip (and shift), strong", choices=WAYS
    )
    label_smoothing: float = key(0.0, "share of the target spread over all classes", 0, 1)
    epochs: int = key(10, "times that each image is learned from", 0)
    steps: int = key(0, "updates of the weights, instead of epochs; 0: as epochs say", 0)
    lr: float = key(3e-3, "highest learning rate", 0)
    weight_decay: float = key(0.05, "AdamW's, of matrices and filters", 0)
    beta2: float = key(0.999, "AdamW's decay of the mean square", 0, 1)
    held_out: float = key(0.1, "share held out, where the images have no test part", 0, 1)

    @property
    def name(self) -> str:
        """See `Config`."""
        return self.model

    def check(self, where: str) -> None:
        """See `Config`."""
        from rushlight.models import IMAGE_MODELS

        super().check(where)
        if self.model not in IMAGE_MODELS:
            known = nearest(self.model, IMAGE_MODELS)
            raise UsageError(f"{where}: unknown model {self.model!r}{known}")
        if self.model == "lenet" and self.size not in (0, 28):
            raise UsageError(f"{where}: size {self.size}: lenet wants images of 28")


# ---- images and model ----


def write_data(config: Settings, folder: Path) -> ImageSet:
    """Put the images into the run folder, all of one size.  Raises: FormatError."""
    from rushlight.data.vision.image_set import write_image_set
    from rushlight.data.vision.source import find_images

    if len(config.files) != 1:
        raise UsageError(f"--task vision: give one folder or .npz file, got {len(config.files)}")
    source = find_images(config.files[0], folder)
    on_error = {"skip": "skip", "error": "raise"}[config.unreadable]
    return write_image_set(
        source, folder, _size(config, source.side), config.held_out, config.seed, on_error
    )


def _size(config: Settings, side: int | None) -> int:
    """Of the squares that the model sees; side: of the images, where they have one."""
    if config.size or config.model == "lenet":
        return config.size or 28
    from rushlight.data.vision.image_set import MOST_SIDE

    whole = -(-(side or SIZE_OF_FILES) // 32) * 32  # which all models can halve
    return min(whole, MOST_SIDE)


def read_data(folder: Path) -> ImageSet:
    """The images of a run folder."""
    from rushlight.data.vision.image_set import read_image_set

    return read_image_set(folder)


def model(config: Settings, images: ImageSet, resumed: bool) -> Module:
    """A new model; unless a checkpoint is going to give it its weights, with those of a file."""
    from rushlight.models import image_model
    from rushlight.runs import start_from

    size, channels = images.images.shape[2:]
    made = image_model(config.model, len(images.classes), channels, size=size)
    if config.weights and not resumed:
        start_from(made, Path(config.weights))
    return made


def introduction(config: Settings, images: ImageSet, model: Module) -> list[str]:
    """What is trained, on what."""
    count, height, width, channels = images.images.shape
    parameters = sum(p.numel() for p in model.parameters())
    skipped = f"; unreadable, left out: {len(images.skipped)}" if images.skipped else ""
    start = f", starting from {config.weights}" if config.weights else ""
    unseen = len(images.classes) - len(set(images.labels[: images.learned].tolist()))
    classes = f"{len(images.classes)} classes" + (f" ({unseen} without images)" if unseen else "")
    return [
        f"images   {config.files[0]}: {images.learned:,} to learn, {count - images.learned:,} held "
        f"out, {classes}, {channels} x {height} x {width}{skipped}",
        *(f"         {why}" for why in list(images.skipped.values())[:5]),
        f"model    {config.model}: {parameters:,} parameters{start}",
    ]


# ---- training ----


def _augmentation(way: str, size: int) -> list[Any]:
    """What is done to an image of this size before it is learned from."""
    from rushlight.data.vision import transforms as t

    shift = t.RandomCrop(size, padding=max(1, size // 14))
    flip = t.RandomHorizontalFlip()
    strong = [t.RandomResizedCrop(size, (0.35, 1.0)), flip, t.RandAugment()]
    ways: dict[str, list[Any]] = {"none": [], "shift": [shift], "flip": [flip, shift]}
    return (ways | {"strong": strong})[way]


def lesson(config: Settings, images: ImageSet) -> dict[str, Any]:
    """What of `rushlight.train`'s arguments depends on the task."""
    from rushlight import train as t
    from rushlight.data import DataLoader
    from rushlight.data.vision.transforms import Compose

    ways = _augmentation(config.augment, images.images.shape[2])
    learned = images.to_learn(Compose(ways) if ways else None)
    alone = len(learned) > config.batch and len(learned) % config.batch == 1  # has no statistics
    batches = DataLoader(
        learned, config.batch, shuffle=True, drop_last=alone, num_workers=config.workers
    )
    epoch = -(-len(batches) // config.accumulate)
    held_out = images.held_out()
    return {
        "batches": batches,
        "loss": t.classification_loss(config.label_smoothing),
        "held_out": _in_order(held_out) if len(held_out) else None,
        "steps": config.steps or config.epochs * epoch,
        "eval_every": epoch,
        "unit": "images",
    }


def _in_order(images: Any) -> Any:
    from rushlight.data import DataLoader

    return DataLoader(images, 256)


def checksum(images: ImageSet) -> int:
    """Of the images and their classes."""
    return images.checksum()


def speed(model: Module) -> dict[str, float]:
    """Nothing that `Progress` could tell a share of the peak from."""
    return {}


# ---- the end ----


def finish(config: Settings, images: ImageSet, folder: Path, quiet: bool) -> None:
    """What the best weights make of the images held out: accuracy, confusion.csv and pictures."""
    from rushlight.classify import load_classifier
    from rushlight.train.classification import class_probabilities, confusion_matrix

    if len(images.labels) > images.learned:
        labels = images.labels[images.learned :]
        model = load_classifier(folder).model
        shares = class_probabilities(model, _in_order(images.held_out()))
        matrix = confusion_matrix(labels, shares.argmax(1), len(images.classes))
        with (folder / "confusion.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file)
            table.writerow(["true \\ predicted", *images.classes])
            table.writerows([name, *row] for name, row in zip(images.classes, matrix, strict=True))
        pictures = _draw(images, labels, shares, matrix, folder)
        if not quiet:
            right, count = int(matrix.trace()), len(labels)
            tell(f"best     {right} of {count} held-out images right: {right / count:.4f}")
            tell(f"         {pictures}")
    if not quiet:
        tell(f"predict  rushlight predict {shlex.quote(str(folder))} IMAGE…")


def _draw(images: ImageSet, labels: Any, shares: Any, matrix: Any, folder: Path) -> str:
    """Draw what can be drawn; what to say of it."""
    from rushlight.train.pictures import draw_confusion, draw_mistakes

    if len(images.classes) > DRAWN:
        return f"confusion.csv is in {folder}; no pictures of more than {DRAWN} classes"
    try:
        draw_confusion(matrix, images.classes, folder / "confusion.png")
    except ImportError:
        return 'confusion.csv; for pictures: pip install "rushlight[plot]"'
    pixels = images.images[images.learned :]
    draw_mistakes(pixels, labels, shares, images.classes, folder / "misclassified.png")
    return f"confusion.csv, confusion.png and misclassified.png are in {folder}"
