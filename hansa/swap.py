"""Several files of a folder replaced as one: after a crash at any moment all are the old ones, or all the new ones.

The new files lie beside the old ones until a journal names them; from then on they get their names, if need be by
whoever comes next. Who reads in between two renames finds two files that do not fit together, and reads again.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hansa.files import sync_folder, write_atomically, write_private
from hansa.processes import only_one

JOURNAL, LOCK = ".swap.json", ".swap.lock"
PATIENCE = 10.0  # seconds; a swap takes milliseconds


def swap(folder: Path, files: Mapping[str, bytes]) -> None:
    """Replaces files of a folder, for their owner's eyes only.

    Raises:
        OSError: they cannot be written; the old ones stand.
        UserError: another process does not get to the end of its own swap.
    """
    with only_one(folder / LOCK, _busy(folder), PATIENCE):
        _finish(folder)
        for name, data in files.items():
            _next(folder, name).unlink(missing_ok=True)
            write_private(_next(folder, name), data)
        sync_folder(folder)
        write_atomically(folder / JOURNAL, json.dumps(sorted(files)).encode())
        _finish(folder)


def settle(folder: Path) -> None:
    """Ends a swap that was cut off.

    Raises:
        OSError: it cannot.
        UserError: another process does not get to the end of it.
    """
    if (folder / JOURNAL).exists():
        with only_one(folder / LOCK, _busy(folder), PATIENCE):
            _finish(folder)


def _finish(folder: Path) -> None:
    """Gives the files that the journal names their names; those that are not there any more have them."""
    try:
        names = json.loads((folder / JOURNAL).read_bytes())
    except FileNotFoundError:
        return
    for name in names:
        with suppress(FileNotFoundError):
            os.replace(_next(folder, name), folder / name)
    sync_folder(folder)
    (folder / JOURNAL).unlink()


def _next(folder: Path, name: str) -> Path:
    return folder / f".{name}.next"


def _busy(folder: Path) -> str:
    return f"{folder}: its files are just being replaced by another process; try again"
