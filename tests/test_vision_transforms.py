"""Transforms against NumPy written here, and against Pillow where the work is Pillow's."""

import math

import numpy as np
import pytest

import rushlight as rl
from rushlight.data.vision import draw
from rushlight.data.vision import transforms as T

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

SHAPES = [(5, 7), (7, 5, 1), (8, 6, 3), (5, 9, 4), (1, 1, 3), (1, 1), (1, 6, 3), (33, 17, 2)]


@pytest.fixture(params=SHAPES, ids=str)
def image(request, rng):
    return rng.integers(0, 256, request.param, np.uint8)


def planes(image):
    """Channels as Pillow's grey pictures."""
    image = image[:, :, None] if image.ndim == 2 else image
    return [Image.fromarray(np.ascontiguousarray(image[:, :, c])) for c in range(image.shape[2])]


def by_plane(image, function):
    return np.stack([np.asarray(function(p)) for p in planes(image)], 2).reshape(
        *np.asarray(function(planes(image)[0])).shape, *image.shape[2:]
    )


def same(got, expected):
    assert got.dtype == expected.dtype
    assert np.array_equal(got, expected), (got, expected)


# ---- size ----


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(4, 9), (1, 1), (16, 3)])
def test_resize_is_pillows(image, interpolation, size):
    how = Image.Resampling[interpolation.upper()]
    expected = by_plane(image, lambda p: p.resize(size[::-1], how))
    before = image.copy()
    got = T.Resize(size, interpolation)(image)
    assert got.shape == expected.shape
    if interpolation == "nearest":  # where two pixels are equally near, Pillow rounds either way
        sure = [
            [(2 * i + 1) * old % (2 * new) != 0 for i in range(new)]
            for old, new in zip(image.shape[:2], size, strict=True)
        ]
        got, expected = (x[np.ix_(*sure)] for x in (got, expected))
    same(got, expected)
    same(image, before)


def test_resize_floats(rng):
    x = rng.random((6, 7, 2)).astype(np.float32)
    expected = by_plane(x, lambda p: p.resize((3, 4), Image.Resampling.BILINEAR))
    same(T.Resize((4, 3))(x), expected)
    halves = x[:6, :6].reshape(3, 2, 3, 2, 2).mean((1, 3))
    assert np.abs(T.Resize((3, 3), "bilinear")(x[:, :6])[1, 1] - halves[1, 1]).max() < 0.5
    same(T.Resize((12, 14), "nearest")(x), x.repeat(2, 0).repeat(2, 1))


@pytest.mark.parametrize(
    ("shape", "size", "expected"),
    [
        ((10, 20), 5, (5, 10)),
        ((20, 10), 5, (10, 5)),
        ((10, 15), 7, (7, 10)),  # 10.5, cut off
        ((10, 15), [7], (7, 10)),
        ((9, 9), 4, (4, 4)),
        ((1, 3), 2, (2, 6)),
    ],
)
def test_resize_keeps_the_aspect(shape, size, expected):
    assert T.Resize(size)(np.zeros(shape, np.uint8)).shape == expected


@pytest.mark.parametrize(("height", "width"), [(3, 3), (4, 2), (1, 1), (9, 8), (2, 7)])
def test_center_crop(image, height, width):
    got = T.CenterCrop((height, width))(image)
    large = np.pad(image, [(20, 20), (20, 20)] + [(0, 0)] * (image.ndim - 2))
    assert got.shape == (height, width, *image.shape[2:])
    found = [
        (y, x)
        for y in range(large.shape[0] - height)
        for x in range(large.shape[1] - width)
        if np.array_equal(large[y : y + height, x : x + width], got)
    ]
    middle_y, middle_x = 20 + image.shape[0] / 2, 20 + image.shape[1] / 2
    assert any(
        abs(y + height / 2 - middle_y) <= 0.5 and abs(x + width / 2 - middle_x) <= 0.5
        for y, x in found
    )


def test_pad():
    x = np.arange(6, dtype=np.uint8).reshape(2, 3)
    same(T.Pad(1)(x), np.pad(x, 1))
    same(T.Pad((1, 2), fill=7)(x), np.pad(x, [(2, 2), (1, 1)], constant_values=7))
    same(T.Pad((1, 0, 2, 3))(x), np.pad(x, [(0, 3), (1, 2)]))
    for mode in ("edge", "reflect", "symmetric"):
        same(T.Pad((2, 1), padding_mode=mode)(x), np.pad(x, [(1, 1), (2, 2)], mode))
    colour = T.Pad(1, fill=(1, 2, 3))(np.zeros((1, 1, 3), np.uint8))
    assert colour[0, 0].tolist() == [1, 2, 3]
    assert colour[1, 1].tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="2 fill values for 3 channels"):
        T.Pad(1, fill=(1, 2))(colour)


def test_random_crop_reaches_every_place_alike():
    x = np.arange(20, dtype=np.uint8).reshape(4, 5)
    crop, counts = T.RandomCrop((3, 2)), {}
    for _ in range(800):
        got = crop(x)
        y, left = divmod(int(got[0, 0]), 5)
        same(got, x[y : y + 3, left : left + 2])
        counts[y, left] = counts.get((y, left), 0) + 1
    assert sorted(counts) == [(y, left) for y in range(2) for left in range(4)]
    assert min(counts.values()) > 60
    same(T.RandomCrop((4, 5))(x), x)


def test_random_crop_pads():
    x = np.full((2, 2, 3), 9, np.uint8)
    seen = {T.RandomCrop(2, padding=1)(x)[:, :, 0].tobytes() for _ in range(200)}
    padded = np.pad(x[:, :, 0], 1)
    assert seen == {padded[y : y + 2, z : z + 2].tobytes() for y in range(3) for z in range(3)}
    with pytest.raises(ValueError, match=r"\(3, 2\) does not fit into an image of \(2, 2\)"):
        T.RandomCrop((3, 2))(x)
    assert T.RandomCrop((3, 5), pad_if_needed=True)(x).shape == (3, 5, 3)
    assert T.RandomCrop(4, padding=1, fill=5)(x)[0, 0].tolist() == [5, 5, 5]


def test_random_resized_crop():
    height, width = 40, 60
    x = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"), 2).astype(
        np.uint8
    )
    areas, ratios = [], []
    for _ in range(500):
        crop = T.RandomResizedCrop((80, 120), (0.1, 0.5), (0.5, 2.0), "nearest")(x)
        assert crop.shape == (80, 120, 2)
        h, w = (int(crop[:, :, i].max()) - int(crop[:, :, i].min()) + 1 for i in range(2))
        areas.append(h * w / (height * width))
        ratios.append(w / h)
    assert 0.085 < min(areas) < 0.13
    assert 0.45 < max(areas) < 0.52
    assert abs(np.mean(areas) - 0.3) < 0.03
    assert 0.47 < min(ratios) < 0.56
    assert 1.8 < max(ratios) < 2.15
    assert abs(np.mean(np.log(ratios))) < 0.08


@pytest.mark.parametrize(
    ("shape", "part"), [((90, 3), (4, 3)), ((3, 90), (3, 4)), ((1, 1), (1, 1))]
)
def test_random_resized_crop_falls_back_to_the_middle(shape, part):
    crop = T.RandomResizedCrop(5, scale=(0.9, 1.0))
    top, left, h, w = crop._part(*shape)
    assert (h, w) == part
    assert (top, left) == ((shape[0] - h) // 2, (shape[1] - w) // 2)
    assert crop(np.zeros(shape, np.uint8)).shape == (5, 5)


# ---- flips and turns ----


def test_flips(image):
    same(T.RandomHorizontalFlip(1)(image), image[:, ::-1])
    same(T.RandomVerticalFlip(1)(image), image[::-1])
    same(T.RandomHorizontalFlip(0)(image), image)
    same(T.RandomVerticalFlip(0)(image), image)
    assert T.RandomHorizontalFlip(1)(image).flags.c_contiguous


def test_flips_have_their_probability():
    x = np.array([[0, 1]], np.uint8)
    flipped = sum(int(T.RandomHorizontalFlip(0.3)(x)[0, 0]) for _ in range(2000))
    assert abs(flipped - 600) < 4 * math.sqrt(2000 * 0.3 * 0.7)
    with pytest.raises(ValueError, match="p must lie in 0 to 1"):
        T.RandomHorizontalFlip(1.5)


def test_rotation(image, rng):
    square = rng.integers(0, 256, (6, 6, 3), np.uint8)
    same(T.RandomRotation((90, 90))(square), np.rot90(square))
    same(T.RandomRotation((180, 180))(image), image[::-1, ::-1])
    same(T.RandomRotation((90, 90), expand=True)(image), np.rot90(image))
    for how in ("nearest", "bilinear", "bicubic"):
        method = Image.Resampling[how.upper()]
        expected = by_plane(image, lambda p, m=method: p.rotate(33, m, center=(1, 2), fillcolor=9))
        same(T.RandomRotation((33, 33), how, center=(1, 2), fill=9)(image), expected)


def mapped(image, forth, center, move, fill):
    """Nearest neighbour by the matrix, pixel for pixel; None where two pixels are equally near."""
    out = np.full(image.shape, fill, image.dtype)
    sure = np.ones(image.shape[:2], bool)
    back = np.linalg.inv(forth)
    for y in range(image.shape[0]):
        for x in range(image.shape[1]):
            to = np.array([x + 0.5, y + 0.5]) - center - move
            u, v = back @ to + center
            sure[y, x] = abs(u - round(u)) > 1e-4 and abs(v - round(v)) > 1e-4
            if 0 <= math.floor(u) < image.shape[1] and 0 <= math.floor(v) < image.shape[0]:
                out[y, x] = image[math.floor(v), math.floor(u)]
    return out, sure


@pytest.mark.parametrize("center", [None, (2.0, 1.0)])
def test_affine(image, center):
    height, width = image.shape[:2]
    middle = np.array([width / 2, height / 2] if center is None else center)
    a, s, p, q = math.radians(25), 1.3, math.tan(math.radians(10)), math.tan(math.radians(-7))
    turn = np.array([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]])
    forth = s * turn @ [[1, 0], [-q, 1]] @ [[1, -p], [0, 1]]
    expected, sure = mapped(image, forth, middle, np.array([1.2, -0.7]), 3)
    got = T.affine(image, 25, (1.2, -0.7), 1.3, (10, -7), fill=3, center=center)
    assert sure.mean() > 0.9
    same(got[sure], expected[sure])


def test_affine_directions():
    x = np.zeros((9, 9), np.uint8)
    x[1, 4] = 255  # above the middle
    assert np.argwhere(T.affine(x, angle=90)).tolist() == [[4, 7]]  # to the right
    assert np.argwhere(T.affine(x, translate=(2, 3))).tolist() == [[4, 6]]
    assert T.affine(x, scale=3.0).sum() > 6 * 255 or T.affine(x, scale=3.0).sum() == 0
    same(T.affine(x), x)


def test_random_affine_draws_within_its_bounds(rng):
    x = np.zeros((41, 41), np.uint8)
    x[20, 20] = 1
    places = np.array([
        np.argwhere(T.RandomAffine(0, translate=(0.1, 0.25))(x))[0] - 20 for _ in range(300)
    ])  # fmt: skip
    assert (places.min(0).tolist(), places.max(0).tolist()) == ([-10, -4], [10, 4])
    same(T.RandomAffine((30, 30), fill=4)(x), T.affine(x, 30, fill=4))
    same(T.RandomAffine(0, scale=(2, 2))(x), T.affine(x, scale=2))
    same(T.RandomAffine(0, shear=(20, 20))(x), T.affine(x, shear=(20, 0)))
    same(T.RandomAffine(0, shear=(0, 0, 20, 20))(x), T.affine(x, shear=(0, 20)))
    digit = rng.integers(0, 256, (28, 28), np.uint8)
    augment = T.RandomAffine(10, (0.1, 0.1), (0.9, 1.1), 5, "bilinear")
    assert len({augment(digit).tobytes() for _ in range(20)}) == 20


# ---- tensors ----


def test_to_tensor(image):
    got = T.ToTensor()(image)
    assert isinstance(got, rl.Tensor)
    assert got.dtype is rl.float32
    expected = np.atleast_3d(image).transpose(2, 0, 1).astype(np.float32) / np.float32(255)
    same(got.numpy(), expected)
    assert got.numpy().flags.c_contiguous
    floats = image / 7.0
    same(T.ToTensor()(floats).numpy(), np.atleast_3d(floats).transpose(2, 0, 1).astype(np.float32))


def test_to_tensor_of_every_byte_is_pytorchs(torch):
    x = np.arange(256, dtype=np.uint8)[None]
    assert (
        T.ToTensor()(x).flatten().tolist() == torch.arange(256).to(torch.float32).div(255).tolist()
    )


def test_normalize(rng):
    x = rng.random((3, 4, 5)).astype(np.float32)
    mean, std = np.float32([0.1, 0.2, 0.3]), np.float32([0.5, 1, 2])
    got = T.Normalize(mean.tolist(), std.tolist())(rl.from_numpy(x))
    np.testing.assert_allclose(
        got.numpy(), (x - mean[:, None, None]) / std[:, None, None], rtol=1e-6
    )
    batch = T.Normalize((0.5,), (0.25,))(rl.from_numpy(x[None]))
    np.testing.assert_allclose(batch.numpy(), (x[None] - 0.5) / 0.25, rtol=1e-6)
    assert batch.dtype is rl.float32
    assert T.Normalize(mean, std)(rl.from_numpy(x)).tolist() == got.tolist()
    assert T.Normalize(0.5, 0.25)(rl.from_numpy(x[None])).tolist() == batch.tolist()
    with pytest.raises(ValueError, match="std must not be 0"):
        T.Normalize([0], [0])
    with pytest.raises(rl.ShapeError, match="2 means and 2 stds for 3 channels"):
        T.Normalize([0, 0], [1, 1])(rl.from_numpy(x))
    with pytest.raises(TypeError, match="after ToTensor"):
        T.Normalize([0], [1])(x)
    with pytest.raises(rl.DtypeError, match="float tensor"):
        T.Normalize([0], [1])(rl.zeros(1, 2, 2, dtype=rl.int64))


def test_random_erasing():
    x = rl.ones(3, 20, 30)
    areas, ratios = [], []
    erase = T.RandomErasing(1, (0.1, 0.3), (0.5, 2))
    for _ in range(300):
        gone = erase(x).numpy()[0] == 0
        rows, columns = np.flatnonzero(gone.any(1)), np.flatnonzero(gone.any(0))
        assert gone.sum() == len(rows) * len(columns)  # a rectangle
        areas.append(gone.mean())
        ratios.append(len(rows) / len(columns))
    assert 0.09 < min(areas) < 0.12
    assert 0.28 < max(areas) < 0.32
    assert 0.45 < min(ratios) < 0.6
    assert 1.7 < max(ratios) < 2.3
    assert x.sum().item() == 1800  # as it was
    filled = T.RandomErasing(1, (0.5, 0.5), (1, 1), value=(2, 3, 4))(rl.zeros(3, 8, 8)).numpy()
    assert filled.reshape(3, -1).max(1).tolist() == [2, 3, 4]
    noise = T.RandomErasing(1, (0.9, 0.9), (1, 1), value="random")(rl.zeros(3, 80, 80)).numpy()
    assert abs(noise[noise != 0].std() - 1) < 0.02
    assert abs(noise.mean()) < 0.03
    untouched = sum(bool((T.RandomErasing(0.25)(x) == x).all()) for _ in range(800))
    assert abs(untouched - 600) < 50
    assert T.RandomErasing(0)(x) is x
    pixel = T.RandomErasing(1)(rl.ones(1, 1, 1))
    assert pixel.item() == 1  # nothing that small
    with pytest.raises(rl.ShapeError, match="2 values for 3 channels"):
        T.RandomErasing(0, value=(1, 2))(x)
    with pytest.raises(ValueError, match="'noise'"):
        T.RandomErasing(value="noise")


# ---- all together ----

CHAIN = T.Compose(
    [
        T.RandomResizedCrop(9, (0.3, 1)),
        T.RandomHorizontalFlip(),
        T.RandomVerticalFlip(),
        T.ColorJitter(0.4, 0.4, 0.4, 0.1),
        T.RandAugment(),
        T.RandomRotation(20),
        T.RandomAffine(10, (0.1, 0.1), (0.8, 1.2), 5),
        T.Pad(1),
        T.RandomCrop(8, padding=1),
        T.Lambda(lambda image: image),
        T.ToTensor(),
        T.Normalize([0.5] * 3, [0.2] * 3),
        T.RandomErasing(0.5),
    ]
)


def test_the_same_seed_gives_the_same_images(rng):
    x = rng.integers(0, 256, (20, 23, 3), np.uint8)
    before = x.copy()
    rl.manual_seed(4)
    first = [CHAIN(x).tolist() for _ in range(5)]
    rl.manual_seed(4)
    assert [CHAIN(x).tolist() for _ in range(5)] == first
    assert CHAIN(x).tolist() not in first
    rl.manual_seed(4)
    same(x, before)
    with rl.random.stream(rl.Generator().manual_seed(9)):
        CHAIN(x)
    assert CHAIN(x).tolist() == first[0]  # another stream moved nothing


def test_repr():
    chain = T.Compose([T.Resize(5), T.RandomHorizontalFlip(0.3), T.Pad(1, 2)])
    assert repr(chain).splitlines() == [
        "Compose(",
        "    Resize(size=5, interpolation='bilinear'),",
        "    RandomHorizontalFlip(p=0.3),",
        "    Pad(padding=1, fill=2, padding_mode='constant'),",
        ")",
    ]


@pytest.mark.parametrize(
    "transform",
    [T.Resize(2), T.CenterCrop(2), T.RandomCrop(2), T.RandomResizedCrop(2), T.ToTensor(),
     T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.Pad(1), T.ColorJitter(1), T.Grayscale(),
     T.RandomRotation(9), T.RandomAffine(9), T.RandAugment()],
    ids=lambda t: type(t).__name__,
)  # fmt: skip
def test_what_is_no_image(transform):
    with pytest.raises(TypeError, match=r"got Image; np\.asarray"):
        transform(Image.new("L", (3, 3)))
    with pytest.raises(TypeError, match="got Tensor; it belongs before ToTensor"):
        transform(rl.zeros(3, 3))
    with pytest.raises(rl.ShapeError, match=r"with pixels, got \(0, 3\)"):
        transform(np.zeros((0, 3), np.uint8))
    with pytest.raises(rl.ShapeError, match=r"got \(1, 2, 3, 4\)"):
        transform(np.zeros((1, 2, 3, 4), np.uint8))


@pytest.mark.parametrize(
    "make",
    [
        lambda: T.Resize(0),
        lambda: T.Resize((1, 2, 3)),
        lambda: T.Resize(2.5),
        lambda: T.Resize(2, "lanczos"),
        lambda: T.Pad(-1),
        lambda: T.Pad((1, 2, 3)),
        lambda: T.Pad(1, padding_mode="wrap"),
        lambda: T.RandomResizedCrop(2, scale=(1, 0.5)),
        lambda: T.RandomResizedCrop(2, ratio=(0, 1)),
        lambda: T.RandomRotation(-1),
        lambda: T.RandomRotation((2, 1)),
        lambda: T.RandomAffine(0, translate=(2, 0)),
        lambda: T.RandomAffine(0, scale=(0, 1)),
        lambda: T.RandomAffine(0, shear=(1, 2, 3)),
        lambda: T.Grayscale(2),
    ],
)
def test_arguments_that_make_no_sense(make):
    with pytest.raises(ValueError, match=r"\w+: "):
        make()


def test_draws():
    assert draw.below(1) == 0
    assert sorted(draw.order(7)) == list(range(7))
    assert {tuple(draw.order(3)) for _ in range(100)} == {
        (0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)
    }  # fmt: skip


@pytest.mark.parametrize("alpha", [0.05, 0.2, 1.0, 4.0])
def test_beta_has_its_moments(alpha):
    x = np.array([draw.beta(alpha) for _ in range(4000)])
    variance = 1 / (4 * (2 * alpha + 1))
    assert abs(x.mean() - 0.5) < 4 * math.sqrt(variance / 4000)
    assert abs(x.var() / variance - 1) < 0.08
    kurtosis = -6 / (2 * alpha + 3)
    assert abs(((x - 0.5) ** 4).mean() / variance**2 - 3 - kurtosis) < 0.15
    assert 0 <= draw.beta(1e-4) <= 1
