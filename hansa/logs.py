"""A log file that one process writes and another one reads as it grows."""

import os
import shutil
from collections import deque
from pathlib import Path

BYTES = 10_000_000  # size at which a log starts anew
OLD = 3  # old logs that are kept: NAME.log.1 is the youngest


class Log:
    """Reads on from the file's present end, and keeps the file small. Whoever writes must append."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last: deque[str] = deque(maxlen=30)  # the last lines read; the caller may clear it
        self._read = self._size()
        self._part = b""  # of a line whose end is not yet written

    def new_lines(self) -> list[str]:
        """The whole lines written since the last call."""
        if self._size() > self._read:
            with self.path.open("rb") as file:
                file.seek(self._read)
                self._part += file.read()
                self._read = file.tell()
        *whole, self._part = self._part.split(b"\n")
        lines = [line.decode(errors="replace") for line in whole]
        self.last.extend(lines)
        if self._read >= BYTES:
            self._rotate()
        return lines

    def _rotate(self) -> None:
        """The file is emptied, not moved: its writer has it open. What it writes between copy and cut is lost."""
        for number in range(OLD, 1, -1):
            if (younger := self._old(number - 1)).exists():
                younger.replace(self._old(number))
        shutil.copyfile(self.path, self._old(1))
        os.truncate(self.path, 0)
        self._read = 0

    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def _old(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")
