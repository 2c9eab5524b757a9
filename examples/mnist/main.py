"""Train LeNet on MNIST.

    python examples/mnist/main.py DIR [--download]
    python examples/mnist/main.py DIR --recipe fast

DIR holds the four IDX files, gzipped or not. "article" is plain SGD as in LibTorch's example: 97 %
of the test images after seven epochs. "fast" is AdamW with a one-cycle rate and smoothed labels,
without dropout, and with images moved by up to two pixels: 99.4 % after ten.
"""

import argparse
import time
from functools import partial

import dataset
import trainer
from model import LeNet

import rushlight as rl
from rushlight import optim
from rushlight.nn import functional as F

BATCH = {"article": 128, "fast": 64}


def recipe(name, model, steps):
    """Optimizer, loss, schedule and augmentation."""
    if name == "article":
        return optim.SGD(model.parameters(), lr=0.01, momentum=0.5), F.nll_loss, None, None
    model.conv2_drop.p = model.dropout.p = 0.0
    optimizer = optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.01)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps=steps)
    smoothed = partial(F.cross_entropy, label_smoothing=0.05)
    return optimizer, smoothed, schedule, dataset.shifted


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Train LeNet on MNIST.")
    parser.add_argument("data", help="folder of the four IDX files")
    parser.add_argument("--download", action="store_true", help="fetch them when they are missing")
    parser.add_argument("--recipe", choices=BATCH, default="article")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, help="128 for article, 64 for fast")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    rl.manual_seed(options.seed)
    batch = options.batch or BATCH[options.recipe]
    more = {"workers": options.workers, "download": options.download}
    train, test = dataset.loaders(options.data, batch, **more)
    model = LeNet()
    steps = options.epochs * len(train)
    how = recipe(options.recipe, model, steps)
    start, accuracies = time.perf_counter(), []
    for epoch in range(1, options.epochs + 1):
        last = trainer.train(model, train, *how)
        loss, accuracy = trainer.test(model, test)
        accuracies.append(accuracy)
        print(
            f"epoch {epoch:2}  train loss {last:.4f}  test loss {loss:.4f}  "
            f"accuracy {accuracy:.4f}  {time.perf_counter() - start:.1f} s",
            flush=True,
        )
    return accuracies


if __name__ == "__main__":
    main()
