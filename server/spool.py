"""Uploads as they come in: checked while the bytes are in the cache, kept on disk, gone on with after a drop."""

import contextlib
import hashlib
import os
import shutil
import threading
from pathlib import Path

import numpy as np

from hansa.files import FULL, write_all
from hansa.wire.rules import CHUNK


class BadUpload(Exception):
    """An upload that cannot be used; the text is one line."""

    def __init__(self, problem: str, index: int | None = None, value: float | None = None) -> None:
        super().__init__(problem)
        self.problem, self.index, self.value = problem, index, value


class Superseded(Exception):
    """Whoever is sending has been replaced by a later call, or sends from a byte that is not the next."""


class Upload:
    """The float32 vectors of one site's answer, then its int64 counters, in one file; or an update under masks.

    What a killed server has left of the file is hashed and checked anew, and gone on with. Several callers may try to
    send at once (a dead connection may not know it yet): the last to begin is the one that is heard.

    Args:
        path: of the file.
        floats: that are declared; each must be finite.
        integers: that follow.
        masked: bytes that follow these, of any value.
    """

    def __init__(self, path: Path, floats: int, integers: int, masked: int = 0) -> None:
        self.path, self.floats, self.size = path, 4 * floats, _bytes(floats, integers, masked)
        self._lock = threading.Lock()
        self._turn = 1  # of whoever began last; nobody has yet
        self._sealed = False
        self._bad: BadUpload | None = None
        path.touch()
        self._file = open(path, "r+b", buffering=0)  # noqa: SIM115 (closed by `close`)
        self._forget()
        while self._have < self.size and (chunk := self._file.read(CHUNK)):
            try:
                self._check(chunk[: self.size - self._have])
            except BadUpload:
                self._restart()
                break

    def held(self) -> tuple[int, bytes]:
        """How many bytes are there, and their SHA-256."""
        with self._lock:
            return self._have, self._sha.digest()

    def pause(self) -> tuple[int, bytes]:
        """The same; whoever was sending is cut off, so that it stays true."""
        with self._lock:
            self._turn += 1
            return self._have, self._sha.digest()

    def begin(self, offset: int) -> int:
        """Takes the turn to send from a byte: the next one, or 0 to start afresh.

        Raises:
            Superseded: another byte is the next, or the upload has been handed on.
            BadUpload: it was found unusable before.
        """
        with self._lock:
            if self._bad:
                raise self._bad
            if self._sealed or offset not in (0, self._have):
                raise Superseded
            if offset == 0:
                self._restart()
            self._turn += 1
            return self._turn

    def take(self, turn: int, chunk: bytes) -> None:
        """Checks and keeps the next bytes.

        Raises:
            Superseded: another caller has begun since `turn`.
            BadUpload: the upload is longer than declared, holds a number that is not finite, or the disk is full.
        """
        with self._lock:
            if turn != self._turn:
                raise Superseded
            try:
                if self._have + len(chunk) > self.size:
                    raise BadUpload(f"an upload of more than the {self.size} bytes that the plan asks for")
                self._write(chunk)
                self._check(chunk)
            except BadUpload as bad:
                self._bad = bad
                self._turn += 1
                self._restart()
                raise

    def seal(self, sha256: bytes, size: int) -> None:
        """Closes the upload for good, that it may be read.

        Raises:
            BadUpload: it is not complete, or not what the site says that it sent.
        """
        with self._lock:
            self._turn += 1
            if self._bad:
                raise self._bad
            self._sealed = True
            if self._have != self.size or size != self.size:
                raise BadUpload(f"an upload of {self._have} bytes where the plan asks for {self.size}")
            if self.size and self._sha.digest() != sha256:
                raise BadUpload("an upload whose hash is not the one that the site names")

    def close(self) -> None:
        """Lets the file go."""
        with self._lock:
            self._turn += 1
            self._sealed = True
            self._file.close()

    def _forget(self) -> None:
        self._have, self._sha, self._carry = 0, hashlib.sha256(), b""

    def _restart(self) -> None:
        self._forget()
        if os.fstat(
            self._file.fileno()
        ).st_size:  # ext4 hurries a file that was truncated to the disk when it is closed
            self._file.truncate(0)

    def _write(self, chunk: bytes) -> None:
        try:
            self._file.seek(self._have)
            write_all(self._file.fileno(), chunk)
        except OSError as error:
            if error.errno not in FULL:
                raise
            raise BadUpload(f"the server's disk is full: no room for an upload of {self.size} bytes") from None

    def _check(self, chunk: bytes) -> None:
        """Hashes the bytes, and looks at the floats that end in them."""
        floats = memoryview(chunk)[: max(0, self.floats - self._have)]
        if self._carry:
            floats = memoryview(self._carry + floats)
        values = np.frombuffer(floats, "<f4", len(floats) // 4)
        if not np.isfinite(values).all():
            at = int(np.flatnonzero(~np.isfinite(values))[0])
            index = (self._have - len(self._carry)) // 4 + at
            raise BadUpload(f"float {index} of the upload is {values[at]}", index, float(values[at]))
        self._carry = bytes(floats[len(floats) & ~3 :])
        self._sha.update(chunk)
        self._have += len(chunk)


class Spool:
    """The uploads of the plans in hand. A file a site and plan: `FOLDER/PLAN/SITE`.

    Args:
        folder: of the run. What a killed server has left of the first plan expected is kept, all else is removed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._sizes: dict[str, tuple[int, int, int]] = {}
        self._uploads: dict[str, dict[str, Upload]] = {}
        self._swept = False

    def expect(self, plan: str, floats: int, integers: int, masked: int = 0) -> None:
        """Says how large the uploads of a plan are."""
        with self._lock:
            self._sweep(plan)
            self._sizes[plan] = floats, integers, masked
            self._uploads.setdefault(plan, {})

    def size(self, plan: str) -> int | None:
        """Bytes of a plan's uploads; None for a plan that is not in hand."""
        sizes = self._sizes.get(plan)
        return None if sizes is None else _bytes(*sizes)

    def upload(self, plan: str, site: str) -> Upload | None:
        """A site's upload for a plan; None for a plan that is not in hand."""
        with self._lock:
            if plan not in self._sizes:
                return None
            mine = self._uploads[plan]
            if site not in mine:
                (self._folder / plan).mkdir(parents=True, exist_ok=True)
                mine[site] = Upload(self._folder / plan / site, *self._sizes[plan])
            return mine[site]

    def retire(self, plan: str) -> None:
        """Removes a plan's uploads."""
        with self._lock:
            self._sizes.pop(plan, None)
            for upload in self._uploads.pop(plan, {}).values():
                upload.close()
            shutil.rmtree(self._folder / plan, ignore_errors=True)

    def close(self) -> None:
        """Lets the files go, and leaves them where they are."""
        with self._lock:
            for upload in (one for mine in self._uploads.values() for one in mine.values()):
                upload.close()

    def _sweep(self, plan: str) -> None:
        if not self._swept:
            self._swept = True
            with contextlib.suppress(FileNotFoundError):
                for name in os.listdir(self._folder):
                    if name != plan:
                        shutil.rmtree(self._folder / name, ignore_errors=True)


def _bytes(floats: int, integers: int, masked: int) -> int:
    return 4 * floats + 8 * integers + masked
