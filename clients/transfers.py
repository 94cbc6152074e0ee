"""What is half sent or half fetched: files, offsets and hashes, without the network."""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from hansa.errors import UserError
from hansa.files import FULL, write_all
from hansa.wire.link_pb2 import Blob
from hansa.wire.rules import CHUNK

OWN = re.compile(r"[0-9a-f]{64}(\.part)?")  # names of vectors in the spool


class Sending:
    """A file on its way out. It is hashed as it is read, each byte once if nothing is lost."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb", buffering=0)  # noqa: SIM115 (closed by `__exit__`)
        self.size = os.fstat(self._file.fileno()).st_size
        self._sha, self._hashed = hashlib.sha256(), 0
        self._known: dict[int, bytes] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def chunks(self, offset: int) -> Iterator[bytes]:
        """The bytes from an offset, in messages."""
        while chunk := os.pread(self._file.fileno(), CHUNK, offset):
            self._hash(offset, chunk)
            yield chunk
            offset += len(chunk)

    def sha256(self, size: int) -> bytes:
        """Of the first `size` bytes."""
        if size < self._hashed:
            self._sha, self._hashed = hashlib.sha256(), 0
        while self._hashed < size:
            at = self._hashed
            self._hash(at, os.pread(self._file.fileno(), min(CHUNK, size - at), at))
        return self._sha.digest()

    def _hash(self, offset: int, chunk: bytes) -> None:
        """Hashes what is new in a chunk."""
        if offset <= self._hashed < offset + len(chunk):
            self._sha.update(chunk[self._hashed - offset :])
            self._hashed = offset + len(chunk)


class Vectors:
    """The spool of fetched vectors: each a file under its hash, whole or not there.

    Args:
        folder: made if need be; other files in it are left alone. A file from an earlier process is hashed once before
            it is used.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._good: set[bytes] = set()
        self._plans: list[set[bytes]] = []
        folder.mkdir(parents=True, exist_ok=True)

    def find(self, blob: Blob) -> Path | None:
        """The file of a vector, if it is there.

        Raises:
            UserError: it has no SHA-256 for a name.
        """
        if len(blob.sha256) != 32:
            raise UserError(f"vector {blob.name!r}: a hash of {len(blob.sha256)} bytes; update hansa at both ends")
        path = self._folder / blob.sha256.hex()
        if blob.sha256 in self._good:
            return path
        if not path.exists():
            return None
        with Sending(path) as file:
            if file.size != blob.size or file.sha256(file.size) != blob.sha256:
                path.unlink()
                return None
        self._good.add(blob.sha256)
        return path

    def take(self, blob: Blob, chunks: Callable[[int], Iterable[bytes]]) -> None:
        """Fetches a vector, from the byte at which an earlier attempt was cut off.

        Args:
            blob: which.
            chunks: gives the bytes from an offset; what it raises goes through.

        Raises:
            UserError: the disk is full, or what came is not the vector.
        """
        part = self._folder / f"{blob.sha256.hex()}.part"
        part.touch()
        with Sending(part) as there, open(part, "ab", buffering=0) as file:
            sha = hashlib.sha256()
            for chunk in there.chunks(0):
                sha.update(chunk)
            have = there.size
            if have < blob.size:
                for chunk in chunks(have):
                    self._write(file.fileno(), chunk, blob)
                    sha.update(chunk)
                    have += len(chunk)
        if have < blob.size:
            return
        if have > blob.size or sha.digest() != blob.sha256:
            part.unlink()
            raise UserError(f"vector {blob.name!r}: what came has another hash; if it happens again, check the disk")
        part.rename(self._folder / blob.sha256.hex())
        self._good.add(blob.sha256)

    def keep(self, plan: set[bytes]) -> None:
        """Removes the files that neither this plan nor the one before it names."""
        if plan not in self._plans[-1:]:
            self._plans = [*self._plans[-1:], plan]
        keep = {sha256.hex() for one in self._plans for sha256 in one}
        for path in self._folder.iterdir():
            if OWN.fullmatch(path.name) and path.name not in keep:
                path.unlink()
        self._good &= {bytes.fromhex(name) for name in keep}

    def _write(self, file: int, chunk: bytes, blob: Blob) -> None:
        try:
            write_all(file, chunk)
        except OSError as error:
            if error.errno not in FULL:
                raise
            size, where = blob.size, self._folder
            raise UserError(
                f"{where}: the disk is full, a vector of {size} bytes does not fit; make room, or move the spool"
            ) from None
