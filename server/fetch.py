"""`hansa fetch`: a run's model and metrics into a folder, from the server's folder or from elsewhere.

A file gets its name when it is whole and has the digest that the server says. What was cut off goes on at its byte.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from hansa.controlclient import ControlClient
from hansa.errors import RunFailed, UserError, reason
from hansa.files import sync_folder, write_atomically
from hansa.runfolder import FETCHED, MANIFEST

CHUNK = 1 << 20  # bytes that are copied at once
Said = Mapping[str, Any]


@dataclass(frozen=True)
class Result:
    """A file of a run's."""

    path: Path
    size: int  # bytes
    sha256: str  # hex


class Source(Protocol):
    """Where a run's files are."""

    def listing(self, run: str) -> tuple[Said, Said]:
        """Size and SHA-256 of each file by its name, and the manifest."""
        ...

    def content(self, run: str, name: str, offset: int) -> AbstractContextManager[Iterator[bytes]]:
        """A file's bytes from one on."""
        ...


@dataclass(frozen=True)
class There:
    """A server elsewhere."""

    control: ControlClient

    def listing(self, run: str) -> tuple[Said, Said]:
        """Size and SHA-256 of each file by its name, and the manifest."""
        said = self.control.ask("fetch", {"run": run}, lambda line: None)
        return said["files"], said["manifest"]

    @contextmanager
    def content(self, run: str, name: str, offset: int) -> Iterator[Iterator[bytes]]:
        """A file's bytes from one on."""
        with self.control.file("fetch", {"run": run, "file": name, "offset": offset}) as parts:
            yield parts


def fetch(source: Source, run: str, to: Path, say: Callable[[str], None]) -> None:
    """Lays a run's files into a folder. One that is there already with the same content stays.

    Args:
        source: where they are.
        run: the run's id.
        to: the folder; made if there is none.
        say: shows a line.

    Raises:
        UserError: another file of such a name is there, the folder cannot be written, or the run is not to be had.
        RunFailed: the way to the server was cut; the same command goes on there.
    """
    files, manifest = source.listing(run)
    wanted = {name: _result(to / name, one) for name, one in files.items() if name in FETCHED}
    if not wanted:
        raise UserError(f"run {run} has left no files to fetch; hansa logs {run} says what became of it")
    text = json.dumps(manifest, indent=1).encode() + b"\n"
    try:
        to.mkdir(parents=True, exist_ok=True)
        for one in wanted.values():
            say(f"{one.path}: {'is there already' if _there(one) else _save(source, run, one)}")
        _save_manifest(to / MANIFEST, text)
    except OSError as error:
        mend = "make room, mend its permissions, or give another folder"
        raise UserError(f"{error.filename or to}: {reason(error)}; {mend}") from None


def _result(path: Path, said: Said) -> Result:
    size, sha256 = said.get("size"), said.get("sha256")
    if not isinstance(size, int) or not isinstance(sha256, str):
        raise UserError("the server's list of files makes no sense here; is hansa the same at both ends?")
    return Result(path, size, sha256)


def _there(one: Result) -> bool:
    if not one.path.exists():
        return False
    with one.path.open("rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() == one.sha256:
            return True
    raise UserError(f"{one.path}: is there with other content; give another folder by --to")


def _save(source: Source, run: str, one: Result) -> str:
    part = one.path.with_name(f".{one.path.name}.part")
    for _ in range(2):  # what was left of an earlier time may be of another file
        if _complete(source, run, one, part):
            os.replace(part, one.path)
            sync_folder(one.path.parent)
            return f"{one.size:,} bytes"
        part.unlink()
    raise RunFailed(f"{one.path}: what came has not the digest that the server says; try again")


def _complete(source: Source, run: str, one: Result, part: Path) -> bool:
    """Adds to a part what it lacks; whether it then is the file."""
    with part.open("ab+") as file:
        if file.tell() > one.size:
            file.truncate(0)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256")
        if (offset := file.tell()) < one.size:
            with source.content(run, one.path.name, offset) as parts:
                for data in parts:
                    offset += len(data)
                    if offset > one.size:
                        return False
                    file.write(data)
                    digest.update(data)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest() == one.sha256


def _save_manifest(path: Path, text: bytes) -> None:
    if path.exists() and path.read_bytes() != text:
        raise UserError(f"{path}: is there with other content; give another folder by --to")
    write_atomically(path, text)
