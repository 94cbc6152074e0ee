"""Files of published data: found where the user keeps them, or fetched once from their source, and always checked."""

import hashlib
import http.client
import os
import sys
import tempfile
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import Progress

from hansa.errors import UserError

TIMEOUT = 30.0  # seconds without a byte
CHUNK = 1 << 20  # bytes

Opener = Callable[[str], AbstractContextManager[IO[bytes]]]


def over_https(url: str) -> AbstractContextManager[IO[bytes]]:
    """Opens an https address; no other scheme, so that an address in a data set never reads a local file."""
    if not url.startswith("https://"):
        raise UserError(f"{url}: data are fetched over https only; write an https address")
    response: AbstractContextManager[IO[bytes]] = urllib.request.urlopen(url, timeout=TIMEOUT)
    return response


def fetch(name: str, url: str, sha256: str, *, opener: Opener = over_https) -> Path:
    """The path of a file with the given digest.

    Looked for in `$HANSA_DATA_DIR`, as `name` and as its last part; then in the cache, `$HANSA_CACHE_DIR` or
    ~/.cache/hansa; else downloaded into the cache.

    Args:
        name: "dataset/file".
        url: where it is published.
        sha256: in hex; a file with another digest is refused wherever it is found.
        opener: opens the url; a file's bytes.

    Raises:
        UserError: another digest, or no way to the source.
    """
    cached = Path(os.environ.get("HANSA_CACHE_DIR") or Path.home() / ".cache" / "hansa") / name
    for path in (*_kept(name), cached):
        if path.is_file():
            _check(_digest(path), sha256, str(path), "remove it or put the published file in its place")
            return path
    try:
        _download(url, sha256, cached, opener)
    except (OSError, http.client.HTTPException) as error:
        raise UserError(
            f"{name}: not fetched from {url} ({error}); put the file at {cached}, or at {name} in a folder that "
            "HANSA_DATA_DIR names"
        ) from error
    return cached


def _kept(name: str) -> list[Path]:
    folder = os.environ.get("HANSA_DATA_DIR")
    return [Path(folder) / name, Path(folder) / Path(name).name] if folder else []


def _download(url: str, sha256: str, path: Path, opener: Opener) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file, opener(url) as response:
            found = _copy(response, file, path.name)
        _check(found, sha256, url, "nothing was kept; the source has changed: put the published file at " + str(path))
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def _copy(response: IO[bytes], file: IO[bytes], name: str) -> str:
    """Copies all bytes and gives their digest; a bar on a terminal."""
    total, console = hashlib.sha256(), Console(stderr=True)
    length = getattr(response, "length", None)  # http.client's: bytes that are left, where the server says so
    with Progress(console=console, disable=not sys.stderr.isatty(), transient=True) as progress:
        task = progress.add_task(name, total=length)
        while chunk := response.read(CHUNK):
            total.update(chunk)
            file.write(chunk)
            progress.update(task, advance=len(chunk))
    return total.hexdigest()


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check(found: str, wanted: str, where: str, mend: str) -> None:
    if found != wanted:
        raise UserError(f"{where}: sha256 is {found}, published is {wanted}; {mend}")
