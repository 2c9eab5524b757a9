"""Image files and folders of them, against Pillow."""

import os

import numpy as np
import pytest

import rushlight as rl
from rushlight.data import DataLoader
from rushlight.data.vision import ImageFolder, default_loader

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")


def picture(rng, mode="RGB", size=(7, 5)):
    channels = len(Image.new(mode, (1, 1)).getbands())
    return Image.frombytes(mode, size, rng.bytes(size[0] * size[1] * channels))


# ---- one file ----


@pytest.mark.parametrize("size", [(7, 5), (1, 1), (1, 9), (64, 3)])
def test_rgb_png(tmp_path, rng, size):
    image = picture(rng, size=size)
    image.save(tmp_path / "a.png")
    got = default_loader(str(tmp_path / "a.png"))
    assert got.dtype == np.uint8
    assert got.flags.writeable
    assert got.shape == (size[1], size[0], 3)
    assert np.array_equal(got, np.asarray(image))


def test_grey_alpha_palette_and_two_colours(tmp_path, rng):
    def load(image, **options):
        image.save(tmp_path / "a.png", **options)
        return default_loader(str(tmp_path / "a.png"))

    grey = picture(rng, "L")
    assert np.array_equal(load(grey), np.asarray(grey)[:, :, None].repeat(3, 2))
    alpha = picture(rng, "RGBA")
    assert np.array_equal(load(alpha), np.asarray(alpha)[:, :, :3])
    both = picture(rng, "LA")
    assert np.array_equal(load(both), np.asarray(both)[:, :, :1].repeat(3, 2))
    indices = rng.integers(0, 4, (5, 7), np.uint8)
    palette = rng.integers(0, 256, (4, 3), np.uint8)
    coloured = Image.fromarray(indices, "L")
    coloured.putpalette(palette.tobytes())
    assert coloured.mode == "P"
    assert np.array_equal(load(coloured), palette[indices])
    assert np.array_equal(load(coloured, transparency=bytes([0, 128, 255, 7])), palette[indices])
    bits = rng.random((5, 7)) > 0.5
    assert np.array_equal(load(Image.fromarray(bits)), bits[:, :, None].repeat(3, 2) * 255)


def test_sixteen_bits_keep_the_upper_eight(tmp_path, rng):
    deep = rng.integers(0, 65536, (5, 7), np.uint16)
    for name in ("a.png", "a.tif", "a.pgm"):
        Image.fromarray(deep).save(tmp_path / name)
        got = default_loader(str(tmp_path / name))
        assert np.array_equal(got, (deep >> 8).astype(np.uint8)[:, :, None].repeat(3, 2)), name
    Image.fromarray(rng.random((4, 4)).astype(np.float32)).save(tmp_path / "f.tif")
    with pytest.raises(rl.FormatError, match=r"f\.tif: .*mode F without a known range"):
        default_loader(str(tmp_path / "f.tif"))


def test_jpeg_and_cmyk(tmp_path, rng):
    for mode in ("RGB", "L", "CMYK"):
        picture(rng, mode).save(tmp_path / "a.jpg")
        with Image.open(tmp_path / "a.jpg") as stored:
            expected = np.asarray(stored.convert("RGB"))
        assert np.array_equal(default_loader(str(tmp_path / "a.jpg")), expected)


# Where row 0 and column 0 of the stored pixels belong, from the EXIF standard.
TURNED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.transpose(1, 0, 2),
    6: lambda a: np.rot90(a, -1),
    7: lambda a: a.transpose(1, 0, 2)[::-1, ::-1],
    8: lambda a: np.rot90(a, 1),
}


@pytest.mark.parametrize("orientation", TURNED)
def test_exif_orientation(tmp_path, rng, orientation):
    image = picture(rng)
    exif = Image.Exif()
    exif[0x0112] = orientation
    image.save(tmp_path / "a.png", exif=exif)
    expected = TURNED[orientation](np.asarray(image))
    assert np.array_equal(default_loader(str(tmp_path / "a.png")), expected)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_bad_exif_does_not_matter(tmp_path, rng):
    image = picture(rng)
    image.save(tmp_path / "a.png", exif=b"Exif\0\0MM\0\x2a\0\0\0\x08\xff\xff")
    assert np.array_equal(default_loader(str(tmp_path / "a.png")), np.asarray(image))


def test_unreadable_files_are_named(tmp_path, rng):
    path = tmp_path / "bad.png"
    picture(rng, size=(40, 40)).save(path)
    whole = path.read_bytes()
    for data in (b"", b"nothing like it", whole[:20], whole[:100], whole[: len(whole) // 2]):
        path.write_bytes(data)
        with pytest.raises(rl.FormatError, match=r"bad\.png: "):
            default_loader(str(path))
    with pytest.raises(FileNotFoundError):
        default_loader(str(tmp_path / "none.png"))
    with pytest.raises(IsADirectoryError):
        default_loader(str(tmp_path))


# ---- folders ----


@pytest.fixture
def root(tmp_path, rng):
    """Classes b, a, c with 2, 3, 1 images of one size, and things that are none."""
    for name, count in (("b", 2), ("a", 3), ("c", 1)):
        (tmp_path / name).mkdir()
        for i in range(count):
            picture(rng, size=(4, 4)).save(tmp_path / name / f"{i}.png")
    (tmp_path / "a" / "notes.txt").write_text("no image")
    (tmp_path / "readme.png").write_text("no class")
    (tmp_path / ".cache").mkdir()
    return tmp_path


def test_image_folder(root):
    dataset = ImageFolder(root)
    assert dataset.classes == ["a", "b", "c"]
    assert dataset.class_to_idx == {"a": 0, "b": 1, "c": 2}
    assert dataset.targets == [0, 0, 0, 1, 1, 2]
    names = [os.path.relpath(path, root) for path, _ in dataset.samples]
    assert names == ["a/0.png", "a/1.png", "a/2.png", "b/0.png", "b/1.png", "c/0.png"]
    assert len(dataset) == 6
    image, target = dataset[4]
    assert np.array_equal(image, np.asarray(Image.open(root / "b" / "1.png")))
    assert target == 1
    assert np.array_equal(dataset[-1][0], dataset[5][0])
    with pytest.raises(IndexError, match="index 6 of 6"):
        dataset[6]
    assert dataset.verify() == {}
    assert dataset.skipped == {}


def test_image_folder_functions(root):
    (root / "c" / "deep" / "deeper").mkdir(parents=True)
    (root / "c" / "deep" / "deeper" / "X.TXT").write_text("")
    dataset = ImageFolder(
        root,
        transform=os.path.basename,
        target_transform=lambda t: t + 10,
        loader=lambda path: path,
        is_valid_file=lambda path: not path.endswith("0.png"),
    )
    assert [dataset[i] for i in range(len(dataset))] == [
        ("1.png", 10), ("2.png", 10), ("notes.txt", 10), ("1.png", 11), ("X.TXT", 12),
    ]  # fmt: skip


def test_capitals_and_links(root, rng):
    picture(rng).save(root / "a" / "3.JPG", "JPEG")
    os.symlink(root / "a", root / "d")
    os.symlink(root / "d", root / "a" / "again")  # a circle
    dataset = ImageFolder(root)
    assert dataset.targets.count(0) == 4
    assert dataset.targets.count(3) == 4


def test_classes_that_are_none(root, tmp_path):
    (root / "empty").mkdir()
    (root / "void").mkdir()
    (root / "void" / "x.txt").write_text("")
    with pytest.raises(rl.FormatError, match="classes without images: empty, void"):
        ImageFolder(root)
    with pytest.raises(rl.FormatError, match="no classes; expected a folder of images for each"):
        ImageFolder(root / "empty")
    with pytest.raises(FileNotFoundError):
        ImageFolder(root / "nowhere")
    with pytest.raises(rl.ConfigError, match="'ignore'"):
        ImageFolder(root, on_error="ignore")


def test_unreadable_images_are_skipped_when_met(root):
    (root / "a" / "1.png").write_bytes(b"broken")
    (root / "c" / "0.png").write_bytes(b"broken, too")
    dataset = ImageFolder(root)
    with pytest.warns(UserWarning, match=r"skipped an unreadable image: .*1\.png.*not an image"):
        image, target = dataset[1]
    assert np.array_equal(image, dataset[2][0])
    assert target == 0
    dataset[1]  # warns no more
    assert list(dataset.skipped) == [str(root / "a" / "1.png")]
    with pytest.warns(UserWarning, match=r"c/0\.png"):
        image, target = dataset[5]  # goes on at the beginning
    assert np.array_equal(image, dataset[0][0])
    assert target == 0
    assert len(dataset.skipped) == 2
    assert len(dataset) == 6


def test_nothing_readable_ends(root):
    dataset = ImageFolder(root)
    for path, _ in dataset.samples:
        with open(path, "wb"):
            pass
    with pytest.warns(UserWarning, match="skipped"), pytest.raises(rl.FormatError, match="6 of 6"):
        dataset[3]


def test_unreadable_images_raise_on_request(root):
    (root / "a" / "1.png").write_bytes(b"broken")
    (root / "b" / "0.png").write_bytes(b"broken")
    dataset = ImageFolder(root, on_error="raise")
    dataset[0]
    with pytest.raises(rl.FormatError, match=r"a/1\.png: not an image"):
        dataset[1]
    with pytest.raises(
        rl.FormatError, match=r"2 of 6 images cannot be read:\n.*1\.png.*\n.*0\.png"
    ):
        dataset.verify()
    bare = ImageFolder(root, on_error="raise", loader=lambda path: int("x"))
    with pytest.raises(rl.FormatError, match=r"a/0\.png: invalid literal"):
        bare[0]


def test_verify_leaves_them_out(root):
    (root / "a" / "1.png").write_bytes(b"broken")
    dataset = ImageFolder(root)
    assert list(dataset.verify()) == [str(root / "a" / "1.png")]
    assert dataset.targets == [0, 0, 1, 1, 2]
    assert len(dataset) == 5
    assert list(dataset.skipped) == [str(root / "a" / "1.png")]
    (root / "c" / "0.png").write_bytes(b"broken")
    with pytest.raises(rl.FormatError, match="classes without readable images: c"):
        dataset.verify()


def test_what_is_not_the_files_fault_raises(root):
    dataset = ImageFolder(root)
    os.unlink(root / "b" / "0.png")
    with pytest.raises(FileNotFoundError):
        dataset[3]
    with pytest.raises(FileNotFoundError):
        dataset.verify()
    mistaken = ImageFolder(root, loader=lambda path: None + 1)
    with pytest.raises(TypeError):
        mistaken[0]


def test_the_same_batches_with_a_broken_image(root):
    def batches(**options):
        (root / "a" / "1.png").write_bytes(b"broken")
        rl.manual_seed(3)
        loader = DataLoader(ImageFolder(root), 2, shuffle=True, **options)
        return [[part.tolist() for part in batch] for batch in loader]

    with pytest.warns(UserWarning, match="skipped"):
        expected = batches()
    with pytest.warns(UserWarning, match="skipped"):
        assert batches(num_workers=2) == expected
