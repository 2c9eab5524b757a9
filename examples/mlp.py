"""A 784-128-10 network that reads digits, one sample per step.

The digits are drawn here: the seven segments of a pocket calculator, 28 x 28 pixels, shifted, faded
and noisy, so that nothing has to be downloaded.
"""

import argparse
import time
from typing import NamedTuple

import numpy as np

import rushlight as rl
from rushlight import nn
from rushlight.nn import functional as F

# Rows and columns of each segment's stroke: top, two upper, middle, two lower, bottom.
SEGMENTS = {
    "a": (slice(4, 6), slice(9, 19)),
    "f": (slice(5, 14), slice(8, 10)),
    "b": (slice(5, 14), slice(18, 20)),
    "g": (slice(13, 15), slice(9, 19)),
    "e": (slice(14, 23), slice(8, 10)),
    "c": (slice(14, 23), slice(18, 20)),
    "d": (slice(22, 24), slice(9, 19)),
}
DIGITS = ("abcdef", "bc", "abged", "abgcd", "fgbc", "afgcd", "afgedc", "abc", "abcdefg", "abcdfg")


def draw_digits(count, rng):
    """Images (N, 784) and the digits they show (N,)."""
    images = np.zeros((count, 28, 28), np.float32)
    labels = rng.integers(0, 10, count)
    for image, label in zip(images, labels, strict=True):
        for segment in DIGITS[label]:
            image[SEGMENTS[segment]] = rng.uniform(0.4, 1.0)
        image[:] = np.roll(image, rng.integers(-2, 3, 2), axis=(0, 1))
    images += rng.normal(0, 0.2, images.shape).astype(np.float32)
    return rl.from_numpy(images.reshape(count, -1)), rl.from_numpy(labels)


def make_model():
    """Xavier weights and zero biases."""
    model = nn.Sequential(nn.Linear(784, 128), nn.SiLU(), nn.Linear(128, 10))
    for layer in (model[0], model[2]):
        nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(layer.bias)
    return model


class Result(NamedTuple):
    """What a run came to."""

    last_loss: float
    accuracy: float


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    numbers = {"samples": 6000, "epochs": 2, "batch": 1, "seed": 0}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value, help="default: %(default)s")
    options = parser.parse_args(argv)
    rl.manual_seed(options.seed)
    rng = np.random.default_rng(options.seed)
    images, labels = draw_digits(options.samples, rng)
    unseen_images, unseen_labels = draw_digits(1000, rng)

    model = make_model()
    optimizer = rl.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    mean_loss, start = float("nan"), time.perf_counter()
    for epoch in range(1, options.epochs + 1):
        losses = []
        for chosen in rl.randperm(options.samples).split(options.batch):
            loss = F.cross_entropy(model(images[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        mean_loss = sum(losses) / len(losses)
        seconds = time.perf_counter() - start
        print(f"epoch {epoch}  loss {mean_loss:.4f}  {seconds:.1f} s", flush=True)

    with rl.no_grad():
        accuracy = (model(unseen_images).argmax(1) == unseen_labels).float().mean().item()
    print(f"accuracy on held-out samples: {accuracy:.3f}")
    return Result(mean_loss, accuracy)


if __name__ == "__main__":
    main()
