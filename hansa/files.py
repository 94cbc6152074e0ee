"""Files that are whole or not there, whatever happens."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # no room: on the disk, by a quota, by a limit


def write_all(file: int, data: bytes | memoryview) -> None:
    """Writes all of it to an open file: the system may take less at a time."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def write_atomically(path: Path, data: bytes | memoryview) -> None:
    """Writes a file under a temporary name, syncs it to disk, and only then gives it its name."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def write_private(path: Path, data: bytes) -> None:
    """Writes a file that is not there yet, for its owner's eyes only, and syncs it to disk."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def append_line(path: Path, line: bytes) -> None:
    """Adds a line to a file that is made readable by its owner only, and syncs it. Several processes may do so at once.

    Raises:
        OSError: it could not be written whole.
    """
    new = not path.exists()
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        whole = (b"" if _ends_well(handle) else b"\n") + line + b"\n"
        if os.write(handle, whole) != len(whole):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))  # it wrote a part
        os.fsync(handle)
    finally:
        os.close(handle)
    if new:
        sync_folder(path.parent)


def _ends_well(handle: int) -> bool:
    """Whether the file is empty or ends a line; a machine that died in the middle of one leaves it open."""
    end = os.lseek(handle, 0, os.SEEK_END)
    return end == 0 or os.pread(handle, 1, end - 1) == b"\n"


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Gives a temporary name to write a file under; it is synced to disk, and only then gets its own."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    yield temporary
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes names that were given or removed in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
