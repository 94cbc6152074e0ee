"""Folders of images: classes by folder, pixels in [0, 1], and what cannot be read is one clear line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from clients.data import DataTable, DataWarning, open_source
from clients.images import Images
from hansa.errors import UserError
from hansa.task import collate


def save(path: Path, pixels: Any, dtype: Any = np.uint8) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.asarray(pixels, dtype=dtype)).save(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Five images a class; the red of each pixel is its number, the green 10 for "b"."""
    for label, green in [("a", 0), ("b", 10)]:
        for i in range(5):
            save(tmp_path / "h1" / label / f"{i}.png", np.full((2, 3, 3), [i, green, 255]))
    return tmp_path


def opened(base: Path, name: str = "train", **keys: Any) -> Images:
    part = open_source(DataTable(images="{site}", **keys), base, "h1", 0).split(name)  # type: ignore[arg-type]
    assert isinstance(part, Images)
    return part


def refusal(base: Path, **keys: Any) -> str:
    with pytest.raises(UserError) as caught:
        collate(images := opened(base, split={"test": 0}, **keys), range(len(images)))
    (problem,) = caught.value.problems
    assert "\n" not in problem
    return problem


def test_rows_are_pixels_in_0_to_1_and_the_class_of_the_folder(folder: Path) -> None:
    images = opened(folder, split={"test": 0})
    for i in range(10):
        image, label = images[i]
        assert label == i // 5
        expected = torch.tensor([i % 5, 10 * label, 255]) / 255
        torch.testing.assert_close(image, expected[:, None, None].expand(3, 2, 3))


def test_batches_have_channels_height_width(folder: Path) -> None:
    x, y = collate(opened(folder, size=[8, 6]), [0, 1, 2])
    assert (x.shape, x.dtype, y.dtype) == ((3, 3, 8, 6), torch.float32, torch.int64)
    x, _ = collate(opened(folder, channels=1), [0, 1])
    assert x.shape == (2, 1, 2, 3)


def test_every_image_stands_on_one_side_and_every_class_on_both(folder: Path) -> None:
    train, test = opened(folder), opened(folder, "test")
    assert sorted([*train.paths, *test.paths]) == sorted(folder.rglob("*.png"))
    assert train.labels.bincount().tolist() == [4, 4]
    assert test.labels.bincount().tolist() == [1, 1]
    assert opened(folder, "test").paths == test.paths


def test_listed_classes_give_the_index_at_a_site_that_lacks_one(folder: Path) -> None:
    images = opened(folder, classes=["b", "other", "a"], split={"test": 0})
    assert {(path.parent.name, int(label)) for path, label in zip(images.paths, images.labels, strict=True)} == {
        ("a", 2),
        ("b", 0),
    }


def test_sixteen_bits_keep_their_depth(tmp_path: Path) -> None:
    save(tmp_path / "h1" / "a" / "1.png", [[0, 1, 65535]], np.uint16)
    with pytest.warns(DataWarning, match="all of class 0"):
        image, _ = opened(tmp_path, split={"test": 0})[0]
    torch.testing.assert_close(image, torch.tensor([[[0, 1 / 65535, 1]]]).expand(3, 1, 3))


def test_test_images_of_their_own_folder(folder: Path) -> None:
    save(folder / "t" / "b" / "x.png", np.zeros((2, 3, 3)))
    with pytest.warns(DataWarning, match="the test images"):
        test = opened(folder, "test", test_path="t")
    assert [path.name for path in test.paths] == ["x.png"]
    assert test.labels.tolist() == [1]


def test_hidden_files_are_no_images(folder: Path) -> None:
    (folder / "h1" / ".DS_Store").write_bytes(b"1")
    (folder / "h1" / "a" / "Thumbs.db").write_bytes(b"1")
    assert len(opened(folder, split={"test": 0})) == 10


def test_files_and_folders_that_do_not_belong_are_refused(folder: Path) -> None:
    assert "this is no folder of a known class (classes: a, c)" in refusal(folder, classes=["a", "c"])
    (folder / "h1" / "a" / "scan.dcm").write_bytes(b"1")
    assert refusal(folder).startswith(f"{folder / 'h1' / 'a' / 'scan.dcm'}: this is no image (.bmp, ")
    (folder / "h1" / "0.png").write_bytes(b"1")
    assert "this is no folder (classes: a, b)" in refusal(folder)


@pytest.mark.parametrize("damage", [lambda all: b"", lambda all: b"text", lambda all: all[:-30]])
def test_unreadable_file_is_named(damage: Any, folder: Path) -> None:
    path = folder / "h1" / "b" / "3.png"
    path.write_bytes(damage(path.read_bytes()))
    assert refusal(folder).startswith(f"{path}: the image cannot be read (")


def test_sizes_that_differ_are_refused_without_size(folder: Path) -> None:
    path = folder / "h1" / "b" / "3.png"
    save(path, np.zeros((4, 4, 3)))
    assert refusal(folder) == (
        f"{path}: the image is 4 x 4, {folder / 'h1' / 'a' / '0.png'} is 2 x 3; set size = [height, width] in [data]"
    )
    assert len(collate(opened(folder, size=[2, 2], split={"test": 0}), range(10))[0]) == 10


def test_floating_pixels_are_refused(folder: Path) -> None:
    save(folder / "h1" / "a" / "5.tif", np.zeros((2, 3)), np.float32)
    assert "pixels of 32 bits have no fixed range" in refusal(folder)


def test_missing_and_empty_folders_are_refused(tmp_path: Path) -> None:
    assert "there is no such file or folder" in refusal(tmp_path)
    (tmp_path / "h1").mkdir()
    assert "there are no images; they belong in a folder per class" in refusal(tmp_path)
