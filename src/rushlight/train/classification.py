"""Classification: the loss, and what a model takes each of many images for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rushlight.kernels import Array
from rushlight.nn import Module
from rushlight.nn import functional as F
from rushlight.nn.utils import evaluating
from rushlight.tensor import Tensor
from rushlight.train.loss import Loss


def classification_loss(label_smoothing: float = 0.0) -> Loss:
    """Mean cross-entropy over a batch, its size and, when evaluating, the accuracy.

    A batch: inputs, and classes (B,); the model gives scores (B, classes), or logarithms of
    probabilities. label_smoothing: of the loss while training.
    """

    def loss(model: Module, batch: tuple[Tensor, Tensor]) -> tuple[Any, ...]:
        inputs, classes = batch
        scores = model(inputs)
        if model.training:
            value = F.cross_entropy(scores, classes, label_smoothing=label_smoothing)
            return value, len(classes)
        right = (scores.argmax(1) == classes).sum().item()
        accuracy = right / len(classes)
        return F.cross_entropy(scores, classes), len(classes), {"accuracy": accuracy}

    return loss


def class_probabilities(model: Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Array:
    """What a model gives each class of all samples, in evaluation mode: (N, classes) float32."""
    with evaluating(model):
        parts = [F.softmax(model(inputs), 1).numpy() for inputs, _ in batches]
    return np.concatenate(parts)


def confusion_matrix(labels: Array, taken_for: Array, classes: int) -> Array:
    """How many samples of class i were taken for j: (classes, classes) int64."""
    pairs = labels.astype(np.int64) * classes + taken_for
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes)
