"""What a site did, for those who ask later: a line of JSON each, never changed, on disk before it is done."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from hansa.files import append_line

AUDIT = "audit.jsonl"  # in the site's folder
OPENED = "opened"  # a sum that the site has helped to open

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
        append_line(self.path, json.dumps(record, separators=(",", ":"), allow_nan=False).encode())


def opened_in(path: Path, run: str) -> dict[str, int]:
    """The newest round of a run, by purpose, whose sum an audit file says the site has helped to open."""
    found: dict[str, int] = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            said = json.loads(line)
            if (said["run"], said["what"]) == (run, OPENED):
                purpose, round = str(said["facts"]["purpose"]), int(said["facts"]["round"])
                found[purpose] = max(round, found.get(purpose, 0))
        except (ValueError, KeyError, TypeError):
            continue  # a line that a crash has cut
    return found
