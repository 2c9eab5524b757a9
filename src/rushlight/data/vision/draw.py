"""Single random numbers, of Rushlight's current generator.

A DataLoader sets that generator for each batch, so what a transform draws is the same for any
number and kind of workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rushlight import kernels
from rushlight.random import current


def uniforms(count: int, low: float = 0.0, high: float = 1.0) -> list[float]:
    """Numbers in [low, high)."""
    found = kernels.random_uniform((count,), current().state, low, high, kernels.FLOAT64)
    return [float(x) for x in found]


def uniform(low: float = 0.0, high: float = 1.0) -> float:
    """One number in [low, high)."""
    return uniforms(1, low, high)[0]


def normals(count: int) -> list[float]:
    """Numbers of the standard normal distribution."""
    found = kernels.random_normal((count,), current().state, 0.0, 1.0, kernels.FLOAT64)
    return [float(x) for x in found]


def below(count: int) -> int:
    """One of 0 to count - 1.  Draws nothing when there is one choice only."""
    if count <= 1:
        return 0
    return int(kernels.random_integers((1,), current().state, 0, count)[0])


def rectangles(
    pixels: int, scale: Sequence[float], ratio: Sequence[float]
) -> Iterator[tuple[int, int]]:
    """Ten pairs of sides, of an area within `scale` as a part of so many pixels.

    The first side divided by the second lies in `ratio`, evenly in its logarithm.
    """
    low, high = (math.log(r) for r in ratio)
    for a, r in zip(uniforms(10), uniforms(10), strict=True):
        area = pixels * (scale[0] + a * (scale[1] - scale[0]))
        aspect = math.exp(low + r * (high - low))
        yield round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))


def order(count: int) -> list[int]:
    """0 to count - 1, shuffled."""
    keys = uniforms(count)
    return sorted(range(count), key=keys.__getitem__)


def beta(alpha: float) -> float:
    """One number of the distribution Beta(alpha, alpha).

    Made of two of Gamma(alpha), in logarithms: with a small alpha both would be 0.
    """
    a, b = _log_gamma_variate(alpha), _log_gamma_variate(alpha)
    return 1 / (1 + math.exp(min(b - a, 700.0)))


def _log_gamma_variate(alpha: float) -> float:
    """The logarithm of one number of Gamma(alpha, 1).  Source: Marsaglia & Tsang 2000."""
    if alpha < 1:  # Gamma(a) = Gamma(a + 1) * U^(1/a)
        return _log_gamma_variate(alpha + 1) + math.log(1 - uniform()) / alpha
    d = alpha - 1 / 3
    while True:
        z = normals(1)[0]
        v = (1 + z / math.sqrt(9 * d)) ** 3
        if v > 0 and math.log(1 - uniform()) < z * z / 2 + d * (1 - v + math.log(v)):
            return math.log(d) + math.log(v)
