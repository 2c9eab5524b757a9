"""Pictures of what a classifier does: its confusion matrix, and what it mistook.

They need matplotlib, from the extra "plot".
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rushlight.kernels import Array

_NUMBERED = 30  # classes, up to which cells have their numbers


def _figure(**options: Any) -> Any:
    from matplotlib.figure import Figure

    return Figure(layout="constrained", **options)


def _save(figure: Any, path: Path) -> None:
    with warnings.catch_warnings():  # of scripts that its font lacks, of layouts that do not fit
        warnings.simplefilter("ignore")
        figure.savefig(path, dpi=100)


def _short(name: str) -> str:
    return (name if len(name) <= 20 else name[:19] + "…").replace("$", r"\$")  # no formulas


def draw_confusion(matrix: Array, classes: Sequence[str], path: Path) -> None:
    """A confusion matrix (classes, classes) as a PNG: rows are true, columns what was said."""
    count = len(classes)
    side = min(4 + 0.4 * count, 16)
    figure = _figure(figsize=(side, side))
    axes = figure.subplots()
    shares = matrix / np.maximum(matrix.sum(1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    right, total = int(np.trace(matrix)), int(matrix.sum())
    axes.set(xlabel="predicted", ylabel="true", title=f"{right} of {total} right")
    if count <= _NUMBERED:
        names = [_short(name) for name in classes]
        axes.set_xticks(range(count), names, rotation=90)
        axes.set_yticks(range(count), names)
        for row, column in np.argwhere(matrix):
            colour = "white" if shares[row, column] > 0.5 else "black"
            number = matrix[row, column]
            axes.text(column, row, number, ha="center", va="center", color=colour, fontsize=8)
    _save(figure, path)


def draw_mistakes(
    images: Array, labels: Array, probabilities: Array, classes: Sequence[str], path: Path
) -> int:
    """The mistakes a classifier was surest of, up to 25, as a PNG; how many there are in all.

    images: (N, H, W, C) uint8 with 1, 3 or 4 channels (of others the first is shown).
    labels: (N,).  probabilities: (N, classes).
    """
    taken_for = probabilities.argmax(1)
    wrong = np.flatnonzero(taken_for != labels)
    surest = wrong[np.argsort(-probabilities[wrong].max(1), kind="stable")][:25]
    columns = min(max(len(surest), 3), 5)  # three have room for the title
    rows = -(-len(surest) // columns)
    figure = _figure(figsize=(2 * columns, 2.1 * rows + 0.5))
    figure.suptitle(f"{len(wrong)} of {len(labels)} mistaken: true → predicted, probability")
    for place, index in enumerate(surest, 1):
        axes = figure.add_subplot(rows, columns, place)
        image = images[index] if images.shape[3] in (3, 4) else images[index, :, :, 0]
        axes.imshow(image, cmap="gray", vmin=0, vmax=255)
        true, said = (_short(classes[x]) for x in (labels[index], taken_for[index]))
        axes.set_title(f"{true} → {said} {probabilities[index].max():.2f}", fontsize=8)
        axes.axis("off")
    _save(figure, path)
    return len(wrong)
