"""MNIST as tensors: images (N, 1, 28, 28), normalised, and labels (N,)."""

import rushlight as rl
from rushlight.data import DataLoader
from rushlight.data.vision import MNIST

MEAN, STD = 0.1307, 0.3081  # of all pixels of the training images, on a scale from 0 to 1


def tensors(root, train, download=False):
    """The training or the test set as a TensorDataset."""
    return MNIST(root, train=train, download=download).to_tensors(MEAN, STD)


def loaders(root, batch, test_batch=1000, workers=1, download=False):
    """Shuffled training batches, and test batches in order."""
    train, test = (tensors(root, part, download) for part in (True, False))
    return (
        DataLoader(train, batch, shuffle=True, num_workers=workers),
        DataLoader(test, test_batch, num_workers=workers),
    )


def shifted(x, most=2):
    """Every image of a batch moved by up to so many pixels; what comes in is background."""
    batch, _, height, width = x.shape
    down, right = rl.randint(0, 2 * most + 1, (2, batch)).numpy()
    padded = rl.full((batch, height + 2 * most, width + 2 * most), -MEAN / STD)
    padded[:, most : most + height, most : most + width] = x[:, 0]
    rows = down[:, None, None] + rl.arange(height).numpy()[:, None]
    columns = right[:, None, None] + rl.arange(width).numpy()
    images = rl.arange(batch).numpy()[:, None, None]
    return padded[images, rows, columns].view(batch, 1, height, width)
