"""The record of acts: acts.jsonl in the server's folder, a line for each thing that somebody asked the control end.

A line is on disk before what it says is done. There is nothing in it of what was sent or answered.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, ValidationError

from hansa.files import append_line
from hansa.roles import Role
from hansa.roster import Fingerprint
from hansa.tables import Name, Table
from server.callers import Caller

FILE = "acts.jsonl"
AGAIN = 3600.0  # seconds after which the same answer to a machine that asks again and again is noted again
REMEMBERED = 4096  # such answers
STRANGERS = 60  # lines that callers without a certificate may cause in a minute; the rest is told in one

Code = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]


class Line(Table):
    """What stands in a line."""

    time: AwareDatetime
    role: Role
    name: Name | Literal[""]
    certificate: Fingerprint | Literal[""]
    verb: str
    subject: Name | Literal[""]  # the run or the site that it is about
    outcome: Literal["allowed", "refused"]
    reason: Code | Literal[""]  # of a refusal

    def __str__(self) -> str:
        who = f"{self.role} {self.name} {self.certificate[:15]}" if self.name else str(self.role)
        what = f"{self.verb} {self.subject}".rstrip()
        return f"{self.time:%Y-%m-%d %H:%M:%S} {who}: {what}: {f'{self.outcome} {self.reason}'.rstrip()}"


class Acts:
    """The record of a server's folder. All methods may be called from any thread."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = folder / FILE
        self._clock, self._turn = clock, threading.Lock()
        self._noted: dict[tuple[str, ...], float] = {}  # when the answers were last noted that are not noted each time
        self._minute, self._strangers = clock(), 0

    def note(self, caller: Caller, verb: str, subject: str, reason: str = "", *, polled: bool = False) -> None:
        """Adds a line, and syncs it to disk.

        Args:
            caller: who asks.
            verb: what for.
            subject: the run or the site that it is about.
            reason: the code of a refusal; "": it is allowed.
            polled: whether the same line may be left out for an hour.

        Raises:
            OSError: it could not be written; what it says must then not be done.
        """
        said = {"role": caller.role, "name": caller.name, "certificate": caller.certificate, "verb": verb}
        said |= {"subject": subject, "outcome": "refused" if reason else "allowed", "reason": reason}
        with self._turn:
            if polled and self._just_noted(tuple(said.values())):
                return
            if caller.role is Role.NOBODY and reason:
                if (over := self._too_many()) is None:
                    return
                said |= {"subject": "", "verb": "", "reason": "too_many"} if over else {}
            line = Line.model_validate({"time": datetime.now(UTC), **said})
            append_line(self.path, json.dumps(line.model_dump(mode="json"), separators=(",", ":")).encode())

    def lines(self) -> Iterator[Line | str]:
        """What is recorded, the oldest first; a line that cannot be read as it stands there."""
        if not self.path.exists():
            return
        with self.path.open(encoding="utf-8", errors="replace") as file:
            for text in filter(str.strip, file):
                try:
                    yield Line.model_validate_json(text)
                except ValidationError:
                    yield text.rstrip("\n")

    def _just_noted(self, key: tuple[str, ...]) -> bool:
        now = self._clock()
        if key in self._noted and now < self._noted[key] + AGAIN:
            return True
        if len(self._noted) >= REMEMBERED:
            self._noted.clear()  # that costs lines, not memory
        self._noted[key] = now
        return False

    def _too_many(self) -> bool | None:
        """Whether strangers have caused too many lines by now: True at the first of those, then None."""
        if (now := self._clock()) > self._minute + 60.0:
            self._minute, self._strangers = now, 0
        self._strangers += 1
        return None if self._strangers > STRANGERS + 1 else self._strangers > STRANGERS
