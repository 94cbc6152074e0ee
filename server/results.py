"""What a run leaves for whoever fetches it: the model, its metrics, the federation.toml that it ran, and a manifest."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from hansa.appfiles import app_digest, app_files
from hansa.errors import UserError
from hansa.runfolder import APP, FETCHED
from server.fetch import CHUNK, Result, Said
from server.store import DONE, FILE, State, Store

FACTS = (
    "run",
    "name",
    "state",
    "started",
    "ended",
    "seed",
    "version",
    "engine",
    "threads",
    "hardware",
    "config_digest",
)


@dataclass(frozen=True)
class Here:
    """A server's folder on this machine."""

    server: Path

    def listing(self, run: str) -> tuple[Said, Said]:
        """Size and SHA-256 of each file by its name, and the manifest."""
        found, manifest = results(self.server, run)
        return described(found), manifest

    @contextmanager
    def content(self, run: str, name: str, offset: int) -> Iterator[Iterator[bytes]]:
        """A file's bytes from one on."""
        with (self.server / "runs" / run / FETCHED[name]).open("rb") as file:
            file.seek(offset)
            yield iter(lambda: file.read(CHUNK), b"")


def results(server: Path, run: str) -> tuple[dict[str, Result], dict[str, Any]]:
    """The files of a run that is complete, by name; and its manifest.

    Args:
        server: the server's folder.
        run: the run's id.

    Raises:
        UserError: there is no such run, or it is not complete.
    """
    store = server / "runs" / FILE
    if not store.is_file():
        raise UserError(f"{server / 'runs'}: there are no runs yet")
    entry, home = Store(store).entry(run), server / "runs" / run
    if (state := State(entry["state"])) not in DONE:
        raise UserError(f"run {run} is {state}: there is a model to fetch when it is complete")
    found = {name: _result(home / path) for name, path in FETCHED.items() if (home / path).is_file()}
    facts: dict[str, Any] = {fact: entry[fact] for fact in FACTS}
    if (home / APP).is_dir():
        facts["app"] = app_digest(app_files(home / APP))
    return found, {**facts, "files": {name: f"sha256:{one.sha256}" for name, one in found.items()}}


def described(found: Mapping[str, Result]) -> dict[str, dict[str, Any]]:
    """The files as the answer to a question says them."""
    return {name: {"size": one.size, "sha256": one.sha256} for name, one in found.items()}


def _result(path: Path) -> Result:
    if path.is_symlink():
        raise UserError(f"{path}: is a link, not the run's own file")
    marks = path.stat()
    return Result(path, marks.st_size, _sha256(path, (marks.st_mtime_ns, marks.st_size, marks.st_ino)))


@lru_cache(maxsize=64)
def _sha256(path: Path, marks: tuple[int, int, int]) -> str:
    """The digest of a file as it stood at these marks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
