"""A folder of images, a folder per class below it, as lazily read rows. C = channels, H, W = height, width."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from clients.datatable import DEFAULT_TEST, DataTable
from clients.reading import locate
from clients.split import choose, warn_of_one_class
from hansa.errors import UserError
from hansa.seeds import torch_generator

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
SIXTEEN_BITS = ("I;16", "I;16B", "I;16L")
PIXELS = {1: "L", 3: "RGB"}  # Pillow's names, by channels


class Images(Dataset[tuple[Tensor, int]]):
    """Rows `(image [C, H, W] float32 in [0, 1], class)`, each read when asked for.

    Args:
        paths: [n] files.
        labels: [n] int64, the index of the class.
        size: (H, W) to which images are resized (bilinear); None: all must have the size of the first.
        channels: 1 (grey) or 3 (RGB).
    """

    def __init__(
        self, paths: Sequence[Path], labels: Tensor, size: tuple[int, int] | None, channels: Literal[1, 3]
    ) -> None:
        self.paths, self.labels, self.size, self.channels = paths, labels, size, channels

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """One row.

        Raises:
            UserError: the file cannot be read, or has another size than the first.
        """
        pixels = _read(self.paths[index], self.size, self.channels)
        if pixels.shape[1:] != self._size:
            found, first = (" x ".join(map(str, size)) for size in (pixels.shape[1:], self._size))
            mend = "set size = [height, width] in [data]"
            raise UserError(f"{self.paths[index]}: the image is {found}, {self.paths[0]} is {first}; {mend}")
        return pixels, int(self.labels[index])

    @cached_property
    def _size(self) -> torch.Size:
        return torch.Size(self.size) if self.size else _read(self.paths[0], None, self.channels).shape[1:]


class ImageSource:
    """The images of a folder; the class of one is the folder below it in which it stands, however deep."""

    def __init__(self, table: DataTable, base: Path, site: str, seed: int) -> None:
        self.table, self.base, self.site, self.seed = table, base, site, seed

    def split(self, name: Literal["train", "test"]) -> Images:
        """Rows `(image [C, H, W] float32 in [0, 1], class)`.

        Raises:
            UserError: the folder is missing or holds what is no image or no class, or no image is left for this side.
        """
        images = self._splits[name]
        if not len(images):
            raise UserError(f"[data] images: no image is left to {name} on; change split, or give the site more images")
        return images

    @cached_property
    def _splits(self) -> dict[str, Images]:
        folder = locate(self.table.images or "", self.base, self.site)
        classes = _classes(folder, self.table)
        paths, labels = _list(folder, classes)
        if self.table.test_path is not None:
            other = _list(locate(self.table.test_path, self.base, self.site), classes)
            test = torch.arange(len(paths) + len(other[0])) >= len(paths)
            paths, labels = [*paths, *other[0]], torch.cat([labels, other[1]])
        else:
            fraction = DEFAULT_TEST if self.table.split.test is None else self.table.split.test
            test = choose(len(paths), fraction, torch_generator(self.seed, self.site, "split"), labels=labels)
        return {"train": self._part(paths, labels, ~test, "train"), "test": self._part(paths, labels, test, "test")}

    def _part(self, paths: list[Path], labels: Tensor, mask: Tensor, name: str) -> Images:
        warn_of_one_class(labels[mask], f"{self.table.images}: the {name} images of site {self.site!r}")
        chosen = [path for path, one in zip(paths, mask.tolist(), strict=True) if one]
        return Images(chosen, labels[mask], self.table.size, self.table.channels)


def _classes(folder: Path, table: DataTable) -> list[str]:
    """Without a list they are the folders that are there: right only where every site has a folder of each class."""
    if table.classes is not None:
        return [str(one) for one in table.classes]
    return sorted(path.name for path in _visible(folder) if path.is_dir())


def _list(folder: Path, classes: Sequence[str]) -> tuple[list[Path], Tensor]:
    """Files in the order of their names, and the index of their classes."""
    paths: list[Path] = []
    labels: list[int] = []
    for entry in _visible(folder):
        if not entry.is_dir() or entry.name not in classes:
            what = "folder of a known class" if entry.is_dir() else "folder"
            known = ", ".join(classes) or "none"
            raise UserError(f"{entry}: this is no {what} (classes: {known}); correct [data] classes, or move it away")
        files = sorted(path for path in entry.rglob("*") if path.is_file() and _is_visible(path))
        for path in files:
            if path.suffix.lower() not in SUFFIXES:
                raise UserError(f"{path}: this is no image ({', '.join(SUFFIXES)}); convert it, or move it away")
        paths += files
        labels += [classes.index(entry.name)] * len(files)
    if not paths:
        raise UserError(f"{folder}: there are no images; they belong in a folder per class, e.g. {folder / 'benign'}")
    return paths, torch.tensor(labels)


def _visible(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise UserError(f"{folder}: this is a file; [data] images names a folder that holds a folder per class")
    return sorted(path for path in folder.iterdir() if _is_visible(path))


def _is_visible(path: Path) -> bool:
    return not path.name.startswith(".") and path.name not in ("Thumbs.db", "desktop.ini")


def _read(path: Path, size: tuple[int, int] | None, channels: Literal[1, 3]) -> Tensor:
    """One image, [C, H, W] float32; 8 bits are divided by 255, 16 bits (grey) by 65535."""
    try:
        with Image.open(path) as file:
            if file.mode in ("I", "F"):
                raise UserError(f"{path}: pixels of 32 bits have no fixed range; convert the image to 8 or 16 bits")
            deep = file.mode in SIXTEEN_BITS
            image = Image.fromarray(np.asarray(file, dtype=np.float32)) if deep else file.convert(PIXELS[channels])
            if size is not None:
                image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    except (OSError, SyntaxError, EOFError, Image.DecompressionBombError) as error:
        reason = " ".join(str(error).split()).replace(f" {str(path)!r}", "")
        raise UserError(f"{path}: the image cannot be read ({reason}); replace it, or move it away") from None
    pixels = torch.from_numpy(np.array(image, dtype=np.float32)) / (65535 if deep else 255)
    return pixels.expand(channels, -1, -1) if pixels.dim() == 2 else pixels.permute(2, 0, 1)
