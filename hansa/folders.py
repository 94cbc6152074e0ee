"""Folders that are whole or not there, and whose files only their owner reads."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from hansa.files import sync_folder, write_private


@contextmanager
def made(folder: Path) -> Iterator[Path]:
    """A new folder, which gets its name when all is in it: a half-made one is never taken for a whole one."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield temporary
        os.rename(temporary, folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_folder(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes files that are not there yet, for their owner's eyes only, and syncs them to disk."""
    folder.mkdir(mode=0o700, exist_ok=True)
    for name, content in files.items():
        write_private(folder / name, content)
    sync_folder(folder)
