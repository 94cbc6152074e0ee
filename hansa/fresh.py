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
        kept: if it is given, the one before stands when the files cannot be used, and this is told why.
    """

    def __init__(
        self, files: Sequence[Path], make: Callable[[], T], kept: Callable[[OSError], None] | None = None
    ) -> None:
        self.files, self.make, self.kept = files, make, kept
        self._seen: object = None
        self._made: T | None = None

    def get(self) -> T:
        """The newest. Raises what `make` raises, until a file changes to the better."""
        seen = [_marks(file) for file in self.files]  # before it is made: a change meanwhile is seen the next time
        if self._made is None or seen != self._seen:
            self._made, self._seen = self._renewed(), seen
        return self._made

    def _renewed(self) -> T:
        before, self._made = self._made, None
        try:
            return self.make()
        except OSError as error:
            if before is None or self.kept is None:
                raise
            self.kept(error)
            return before


def _marks(file: Path) -> tuple[int, int, int] | None:
    """What is another after each change; a file that is replaced in the same instant has another inode."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
