"""The user's loaded files as bytes, for a process that may be on another machine."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hansa.taskfile import load_as, loaded_as


@dataclass(frozen=True)
class Packed:
    """A file from which classes were loaded, with the code beside it that it may import."""

    module: str  # under which it is in sys.modules
    path: Path
    files: Mapping[str, bytes]  # by path, relative to the file's folder


def packed() -> tuple[Packed, ...]:
    """All files from which classes were loaded here, in their order."""
    return tuple(Packed(name, path, dict(_beside(path.parent))) for name, path in loaded_as().items())


def unpack(files: Iterable[Packed], folder: Path) -> None:
    """Loads files that another process has packed, so that its objects can be unpickled here.

    They are loaded where they lie, if the same ones lie there, as on one machine; else from copies.

    Args:
        files: as `packed` gave them.
        folder: for the copies; it stays as long as the process.
    """
    for one in files:
        home = one.path.parent
        if not all(_is(home / name, data) for name, data in one.files.items()):
            home = folder / hashlib.sha256(bytes(home)).hexdigest()[:16]
            for name, data in one.files.items():
                (home / name).parent.mkdir(parents=True, exist_ok=True)
                (home / name).write_bytes(data)
        load_as(one.module, home / one.path.name)


def _beside(folder: Path) -> Iterator[tuple[str, bytes]]:
    """The modules of a folder, and its packages."""
    inside = [package.parent for package in folder.glob("*/__init__.py")]
    for path in [*folder.glob("*.py"), *(path for package in inside for path in package.rglob("*.py"))]:
        if path.is_file():
            yield path.relative_to(folder).as_posix(), path.read_bytes()


def _is(path: Path, data: bytes) -> bool:
    return path.is_file() and path.read_bytes() == data
