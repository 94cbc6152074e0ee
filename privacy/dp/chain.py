"""A file of entries that only grows: each is a line of JSON under a hash that covers all before it.

A second file, `.head`, has the number and the hash of the newest entry. It is written after the entry, so it may be one
behind, where a process died in between; a last line that is not whole was then never acted upon. Any other difference
is damage: nothing is read of a damaged file, and nothing is added to it.
"""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hansa.errors import UserError, reason
from hansa.files import append_line, sync_folder, write_atomically
from hansa.processes import only_one

START = hashlib.sha256(b"hansa/dp/ledger/1\n").digest()  # before the first entry
PATIENCE = 120.0  # seconds for which another process may hold the file
SUFFIX = ".jsonl"


@dataclass(frozen=True)
class Entries:
    """What a file holds.

    Args:
        bodies: of all entries, without their hashes.
        hash: of the newest, in hex; START's where there is none.
        size: bytes of the whole lines.
        torn: bytes of a last line that is not whole.
        behind: whether the head is one entry behind.
    """

    bodies: tuple[Mapping[str, Any], ...]
    hash: str
    size: int
    torn: int
    behind: bool


class Chain:
    """The file and its head. Whoever reads or writes holds the lock: several processes share one."""

    def __init__(self, path: Path) -> None:
        self.path, self.head = path, path.with_suffix(".head")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Holds the file against all other processes and threads.

        Raises:
            UserError: another one holds it, or the system refuses.
        """
        try:
            if not self.path.parent.exists():
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                sync_folder(self.path.parent.parent)
            with only_one(self.path.with_suffix(".lock"), f"{self.path}: another process holds it", PATIENCE):
                yield
        except OSError as error:
            raise UserError(
                f"{error.filename or self.path}: {reason(error)}; nothing is released without it"
            ) from error

    def read(self) -> Entries:
        """All entries, checked. A line that is not whole is passed over.

        Raises:
            UserError: the file is damaged, with the line.
        """
        data = self.path.read_bytes() if self.path.exists() else b""
        bodies, hashes, size = [], [START.hex()], 0
        *lines, torn = data.split(b"\n")
        for number, line in enumerate(lines, 1):
            body, found = self._parsed(line, number)
            if found != _hash(hashes[-1], body) or body.get("n") != number:
                raise self._damaged(number, "its hash is not that of what stands there")
            bodies.append(body)
            hashes.append(found)
            size += len(line) + 1
        return Entries(tuple(bodies), hashes[-1], size, len(torn), self._is_behind(hashes))

    def append(self, entries: Entries, body: Mapping[str, Any]) -> Entries:
        """Adds an entry behind those that were just read; it is on disk when this returns."""
        if entries.torn:
            os.truncate(self.path, entries.size)
        if entries.behind:
            self._write_head(len(entries.bodies), entries.hash)
        number = len(entries.bodies) + 1
        whole = {"n": number, **body}
        found = _hash(entries.hash, whole)
        line = _canonical({**whole, "hash": found})
        append_line(self.path, line)
        self._write_head(number, found)
        return Entries((*entries.bodies, whole), found, entries.size + len(line) + 1, 0, False)

    def _parsed(self, line: bytes, number: int) -> tuple[dict[str, Any], str]:
        try:
            body = json.loads(line)
            if not isinstance(body, dict) or _canonical(body) != line:
                raise ValueError
            return body, str(body.pop("hash", ""))
        except (ValueError, RecursionError):
            raise self._damaged(number, "it is not as it was written") from None

    def _is_behind(self, hashes: list[str]) -> bool:
        """Whether the head is that of the entry before the newest; it may be missing before there is a second."""
        newest = len(hashes) - 1
        head = self.head.read_bytes() if self.head.exists() else None
        if newest > 0 and head == _head(newest, hashes[newest]):
            return False
        if head == (_head(newest - 1, hashes[newest - 1]) if newest > 1 else None):
            return newest > 0
        raise self._damaged(newest + 1, f"entries are missing behind line {newest}, or {self.head.name} was changed")

    def _write_head(self, number: int, found: str) -> None:
        write_atomically(self.head, _head(number, found))

    def _damaged(self, line: int, what: str) -> UserError:
        return UserError(
            f"{self.path}, line {line}: {what}; nothing more is released by it. Put back a copy of "
            f"{self.path.name} and {self.head.name} that is whole and in which nothing is missing"
        )


def _canonical(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _hash(before: str, body: Mapping[str, Any]) -> str:
    return hashlib.sha256(bytes.fromhex(before) + _canonical(body)).hexdigest()


def _head(number: int, found: str) -> bytes:
    return _canonical({"n": number, "hash": found}) + b"\n"
