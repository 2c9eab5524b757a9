"""Golden vectors: arrays of a reference implementation, stored beside the tests."""

from functools import cache
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "vectors"


@cache
def vector(name):
    with np.load(FOLDER / f"{name}.npz") as file:
        return {key: file[key] for key in file.files}
