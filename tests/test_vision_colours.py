"""Transforms of colours against Pillow, colorsys, and NumPy written here."""

import colorsys

import numpy as np
import pytest

import rushlight as rl
from rushlight.data.vision import transforms as T
from rushlight.data.vision.colour import _OPERATIONS, augment, grey

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def same(got, expected):
    assert got.dtype == expected.dtype
    assert np.array_equal(got, expected), (got, expected)


def rgb(rng, shape=(13, 11, 3)):
    return rng.integers(0, 256, shape, np.uint8)


def test_grey_is_pillows(rng):
    x = rgb(rng)
    same(grey(x), np.asarray(Image.fromarray(x).convert("L")))
    same(T.Grayscale()(x), grey(x)[:, :, None])
    same(T.Grayscale(3)(x), grey(x)[:, :, None].repeat(3, 2))
    same(T.Grayscale(3)(x[:, :, 0]), x[:, :, :1].repeat(3, 2))
    with pytest.raises(rl.ShapeError, match="1 or 3 channels"):
        T.Grayscale()(rgb(rng, (2, 2, 4)))


@pytest.mark.parametrize("factor", [0.0, 0.4, 1.0, 1.7])
@pytest.mark.parametrize("name", ["Brightness", "Contrast", "Color"])
@pytest.mark.parametrize("shape", [(13, 11, 3), (1, 1, 3), (5, 4)])
def test_factors_are_pillows(rng, name, factor, shape):
    from PIL import ImageEnhance

    x = rgb(rng, shape)
    function = {
        "Brightness": T.adjust_brightness,
        "Contrast": T.adjust_contrast,
        "Color": T.adjust_saturation,
    }[name]
    expected = np.asarray(getattr(ImageEnhance, name)(Image.fromarray(x)).enhance(factor))
    got = function(x, factor)
    assert got.dtype == np.uint8
    assert np.abs(got.astype(int) - expected).max() <= 1  # Pillow cuts off, we round


def test_hue():
    x = np.array([[[255, 0, 0], [0, 255, 0], [0, 0, 255], [90, 90, 90]]], np.uint8)
    third = T.adjust_hue(x, 1 / 3)
    expected = [[0, 255, 0], [0, 0, 255], [255, 0, 0], [90, 90, 90]]
    assert np.abs(third[0].astype(int) - expected).max() <= 6  # a hue has 256 steps
    rng = np.random.default_rng(1)
    x = rgb(rng)
    for turn in (-0.5, -0.1, 0.0, 0.25, 0.5):
        got = T.adjust_hue(x, turn).astype(int)
        hsv = [colorsys.rgb_to_hsv(*p) for p in (x.reshape(-1, 3) / 255).tolist()]
        want = [colorsys.hsv_to_rgb((h + turn) % 1, s, v) for h, s, v in hsv]
        assert np.abs(got.reshape(-1, 3) - np.array(want) * 255).max() < 12, turn
    same(T.adjust_hue(x[:, :, 0], 0.2), x[:, :, 0])
    with pytest.raises(ValueError, match=r"-0\.5 to 0\.5"):
        T.adjust_hue(x, 0.6)


def test_color_jitter(rng):
    x = rgb(rng)
    same(T.ColorJitter()(x), x)
    same(T.ColorJitter(brightness=(0.5, 0.5))(x), T.adjust_brightness(x, 0.5))
    same(T.ColorJitter(hue=(0.1, 0.1))(x), T.adjust_hue(x, 0.1))
    flat = np.full((1, 1), 100, np.uint8)
    levels = [int(T.ColorJitter(brightness=0.5)(flat)[0, 0]) for _ in range(400)]
    assert (min(levels), max(levels)) in [(a, b) for a in (50, 51) for b in (149, 150)]
    both = T.ColorJitter((0.5, 0.5), (2, 2))
    orders = {both(x).tobytes() for _ in range(20)}
    one = T.adjust_contrast(T.adjust_brightness(x, 0.5), 2).tobytes()
    two = T.adjust_brightness(T.adjust_contrast(x, 2), 0.5).tobytes()
    assert orders == {one, two}
    full = T.ColorJitter(0.4, 0.4, 0.4, 0.1)
    assert len({full(x).tobytes() for _ in range(20)}) == 20
    for bad in ({"brightness": -1}, {"hue": 0.7}, {"contrast": (2, 1)}, {"saturation": (-1, 1)}):
        with pytest.raises(ValueError, match=f"ColorJitter: {next(iter(bad))}"):
            T.ColorJitter(**bad)


@pytest.mark.parametrize("name", _OPERATIONS)
@pytest.mark.parametrize("shape", [(13, 11, 3), (12, 9, 1), (28, 28), (1, 1, 3)])
def test_rand_augment_operations(rng, name, shape):
    from PIL import ImageEnhance, ImageOps

    x = rgb(rng, shape)
    largest, signed = _OPERATIONS[name]
    got = augment(x, name, largest)
    assert got.shape == x.shape
    assert got.dtype == np.uint8
    if signed and x.size > 3 and name not in ("color",):
        assert augment(x, name, -largest).tobytes() != got.tobytes()
    height, width = shape[:2]
    expected = {
        "identity": lambda p: p,
        "posterize": lambda p: ImageOps.posterize(p, 4),
        "solarize": lambda p: ImageOps.solarize(p, 0),
        "autocontrast": ImageOps.autocontrast,
        "equalize": ImageOps.equalize,
        "sharpness": lambda p: ImageEnhance.Sharpness(p).enhance(1.9),
        "rotate": lambda p: p.rotate(30),
        "translate_x": lambda p: p.transform(
            p.size, Image.Transform.AFFINE, (1, 0, -int(150 / 331 * width), 0, 1, 0)
        ),
        "translate_y": lambda p: p.transform(
            p.size, Image.Transform.AFFINE, (1, 0, 0, 0, 1, -int(150 / 331 * height))
        ),
    }.get(name)
    if expected is not None:
        whole = Image.fromarray(x if x.ndim == 2 or shape[2] == 3 else x[:, :, 0])
        wanted = np.asarray(expected(whole)).reshape(x.shape)
        assert (got != wanted).mean() < (0.02 if name == "rotate" else 1e-9)


def test_rand_augment(rng):
    x = rgb(rng, (32, 32, 3))
    same(T.RandAugment(0)(x), x)
    seen = {T.RandAugment()(x).tobytes() for _ in range(60)}
    assert len(seen) > 45
    with pytest.raises(ValueError, match="0 to 30"):
        T.RandAugment(magnitude=31)
    with pytest.raises(rl.ShapeError, match="1 or 3"):
        T.RandAugment()(np.zeros((4, 4, 4), np.uint8))
