"""What a site did, for those who ask later: a line of JSON each, never changed, on disk before it is done."""

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from hansa.files import sync_folder

Fact = str | int | float | bool | None


def utc_now() -> datetime:
    """The time."""
    return datetime.now(UTC)


class Audit:
    """An audit file. Several processes may append to one.

    Args:
        path: of the file; made when the first line comes, readable by its owner only.
        clock: gives the time, with its zone.
    """

    def __init__(self, path: Path, clock: Callable[[], datetime] = utc_now) -> None:
        self.path = path
        self._clock = clock

    def append(self, run: str, what: str, /, **facts: Fact) -> None:
        """Adds a line and syncs it to disk.

        Args:
            run: the run's id.
            what: what was done, e.g. "admitted", "refused".
            facts: about it. No secrets, no rows.

        Raises:
            OSError: it could not be written; what it says must then not be done.
        """
        record = {"time": self._clock().isoformat(), "run": run, "what": what, "facts": facts}
        line = json.dumps(record, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        new = not self.path.exists()
        handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            line = line if _ends_well(handle) else b"\n" + line
            if os.write(handle, line) != len(line):
                raise OSError(f"{self.path}: only a part of the line was written; is the disk full?")
            os.fsync(handle)
        finally:
            os.close(handle)
        if new:
            sync_folder(self.path.parent)


def _ends_well(handle: int) -> bool:
    """Whether the file is empty or ends a line; a machine that died in the middle of one leaves it open."""
    end = os.lseek(handle, 0, os.SEEK_END)
    return end == 0 or os.pread(handle, 1, end - 1) == b"\n"
