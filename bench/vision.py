"""Images: ResNet-18 and FastViT-T8 beside PyTorch and onnxruntime, and what folding gives.

python bench/vision.py [--rounds 9] [--seconds 0.4] [--threads 2]

The libraries take turns in one process, with the same weights. ResNet-18 trains on 16 images of
64 x 64; folded networks (nn.utils.reparameterize) classify one of 256 x 256, beside the same folded
network in PyTorch and in onnxruntime, and beside themselves unfolded. A figure is a median over the
rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import time
import warnings
from collections.abc import Callable
from statistics import median

import onnxruntime
import torch
import torch.nn.functional as TF
from torch import nn as tnn
from twin import twin

import rushlight as rl
import rushlight.nn.functional as RF
from rushlight import models, nn


class Block(tnn.Module):
    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = tnn.Conv2d(before, width, 3, stride, 1, bias=False), norm(width)
        self.conv2, self.bn2 = tnn.Conv2d(width, width, 3, 1, 1, bias=False), norm(width)
        self.downsample = None
        if stride != 1 or before != width:
            short = tnn.Conv2d(before, width, 1, stride, bias=False)
            self.downsample = tnn.Sequential(short, norm(width))

    def forward(self, x):
        skip = x if self.downsample is None else self.downsample(x)
        y = TF.relu(self.bn1(self.conv1(x)), inplace=True)
        return TF.relu(self.bn2(self.conv2(y)).add_(skip), inplace=True)


class ResNet18(tnn.Module):
    """PyTorch's side, under torchvision's names: not a `twin`, because its relu works in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = tnn.Conv2d(3, 64, 7, 2, 3, bias=False), norm(64)
        for number, (before, width) in enumerate(((64, 64), (64, 128), (128, 256), (256, 512)), 1):
            blocks = Block(before, width, 1 + (number > 1)), Block(width, width, 1)
            self.add_module(f"layer{number}", tnn.Sequential(*blocks))
        self.fc = tnn.Linear(512, 1000)

    def forward(self, x):
        x = TF.max_pool2d(TF.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        for number in range(1, 5):
            x = getattr(self, f"layer{number}")(x)
        return self.fc(x.mean((2, 3)))


norm = tnn.BatchNorm2d


def training(model, functional, optimizer, x, y) -> Callable[[], None]:
    def step() -> None:
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def inference(model, no_grad, x) -> Callable[[], None]:
    @no_grad()
    def step() -> None:
        model(x)

    return step


def session(model, image, options: argparse.Namespace) -> Callable[[], None]:
    """The network in onnxruntime, with what PyTorch exports."""
    file = io.BytesIO()
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (torch.tensor(image.numpy()),), file, dynamo=False)
    threads = onnxruntime.SessionOptions()
    threads.intra_op_num_threads = options.threads
    runs = onnxruntime.InferenceSession(file.getvalue(), threads, ["CPUExecutionProvider"])
    feed = {runs.get_inputs()[0].name: image.numpy()}
    return lambda: runs.run(None, feed)


def turn(step: Callable[[], None], seconds: float) -> float:
    """Milliseconds a step."""
    step()
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        step()
        steps += 1
    return (time.perf_counter() - start) / steps * 1e3


def compare(name: str, first, second, options: argparse.Namespace) -> None:
    """Print the first's time, the second's, and the median ratio with its quartiles."""
    pairs = [
        [turn(step, options.seconds) for step in (first, second)] for _ in range(options.rounds)
    ]
    ratios = sorted(a / b for a, b in pairs)
    low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
    one, two = (median(column) for column in zip(*pairs, strict=True))
    print(
        f"{name:58} {one:8.2f} {two:8.2f}  {median(ratios):.2f} ({low:.2f} to {high:.2f})",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    rl.set_num_threads(options.threads)
    torch.set_num_threads(options.threads)
    mine, peer = models.resnet18(), ResNet18()
    peer.load_state_dict({k: torch.tensor(v.numpy()) for k, v in mine.state_dict().items()})
    x, y = rl.randn(16, 3, 64, 64), rl.randint(0, 1000, (16,))
    tx, ty = torch.tensor(x.numpy()), torch.tensor(y.numpy())
    ours = training(mine, RF, rl.optim.SGD(mine.parameters(), 1e-4, 0.9), x, y)
    theirs = training(peer, TF, torch.optim.SGD(peer.parameters(), 1e-4, 0.9), tx, ty)
    compare("ResNet-18, training, 16 x 64 x 64", ours, theirs, options)
    image = rl.randn(1, 3, 256, 256)
    vit = models.fastvit_t8().eval()
    for name, net, extra in (
        ("ResNet-18", mine.eval(), False),
        ("FastViT-T8", vit, False),
        ("FastViT-T8, its FFNs' norms, too", vit, True),
    ):
        fused = nn.utils.reparameterize(net, extra=extra)
        folded = inference(fused, rl.no_grad, image)
        eager = inference(twin(fused), torch.no_grad, torch.tensor(image.numpy()))
        trained = inference(net, rl.no_grad, image)
        compare(f"{name}: folded, to PyTorch", folded, eager, options)
        compare(f"{name}: to onnxruntime", folded, session(twin(fused), image, options), options)
        compare(f"{name}: to itself as trained", folded, trained, options)


if __name__ == "__main__":
    main()
