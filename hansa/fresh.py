"""What is made of files, and made anew when they change."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


class Fresh(Generic[T]):
    """Something made of files.

    Args:
        files: of which it is made; one may be missing.
        make: makes it.
    """

    def __init__(self, files: Sequence[Path], make: Callable[[], T]) -> None:
        self.files, self.make = files, make
        self._seen: object = None
        self._made: T | None = None

    def get(self) -> T:
        """The newest. Raises what `make` raises, until a file changes to the better."""
        seen = [_marks(file) for file in self.files]  # before it is made: a change meanwhile is seen the next time
        if self._made is None or seen != self._seen:
            self._made, self._seen = None, seen
            self._made = self.make()
        return self._made


def _marks(file: Path) -> tuple[int, int, int] | None:
    """What is another after each change; a file that is replaced in the same instant has another inode."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
