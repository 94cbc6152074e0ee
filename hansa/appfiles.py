"""The files of an app, and the digest by which a site allows it.

The digest is the same for the folder that a user sees and for the one that Flower unpacks at a site. It is over what a
site reviews, the code: federation.toml has no part in it, since a site bounds what that may say (`clients.policy`).
"""

import base64
import hashlib
import json
import os
import tomllib
from collections.abc import Container, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from hansa.errors import UserError

FEDERATION = "federation.toml"
KINDS = {".json", ".jsonl", ".md", ".py", ".toml", ".yaml", ".yml"}
MOST_FILES, LARGEST, LONGEST_PATH = 1000, 10 << 20, 255  # files; bytes of all; characters
SKIPPED_ANYWHERE = {"__pycache__"}
# What Flower leaves out at the top of an app, and the run store of a simulation.
SKIPPED_AT_TOP = {"ENV", "build", "eggs", "env", "env.bak", "lib", "lib64", "parts", "runs", "venv", "venv.bak"}


def app_files(folder: Path) -> dict[str, bytes]:
    """What counts of an app's folder, by path ("models/net.py"): source, settings, texts. No links, nothing hidden.

    Raises:
        UserError: no such folder, or nothing in it that counts.
    """
    files = {}
    for at, _, names in os.walk(folder):
        for path in (Path(at, name) for name in names):
            relative = PurePosixPath(path.relative_to(folder).as_posix())
            if _counts(relative) and path.is_file() and not path.is_symlink():
                files[str(relative)] = path.read_bytes()
    if not files:
        raise UserError(f"{folder}: no app; give the folder that holds its task and federation.toml")
    return files


def code_elsewhere(tables: Mapping[str, Any], files: Container[str]) -> Iterator[str]:
    """What the tables of a federation.toml name as `file.py:Class`, and is no file of the app; [simulation] left out.

    Args:
        tables: of federation.toml.
        files: of the app, by path.
    """
    for text in _texts({name: table for name, table in tables.items() if name != "simulation"}):
        if ".py:" in text and str(PurePosixPath(text.rpartition(":")[0])) not in files:
            yield text


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value of TOML."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _texts(one)


def app_digest(files: Mapping[str, bytes]) -> str:
    """`sha256:` and the digest over (path, length, bytes) of an app's files in the order of their paths.

    The federation.toml at the top is left out.

    Raises:
        UserError: pyproject.toml is not TOML.
    """
    digest = hashlib.sha256(b"hansa/app/1\n")
    for name, content in sorted((os.fsencode(p), _settled(p, files[p])) for p in files if p != FEDERATION):
        for part in (name, content):
            digest.update(len(part).to_bytes(8))
            digest.update(part)
    return f"sha256:{digest.hexdigest()}"


def packed(files: Mapping[str, bytes]) -> dict[str, str]:
    """An app's files in base64, for a question to the server.

    Raises:
        UserError: they are too many or too large.
    """
    _check_size(files)
    return {name: base64.b64encode(content).decode("ascii") for name, content in files.items()}


def unpacked(files: Mapping[str, str]) -> dict[str, bytes]:
    """An app's files as somebody sent them: only such as `app_files` finds, and none that leads out of the app.

    Raises:
        UserError: they are not.
    """
    try:
        found = {name: base64.b64decode(content, validate=True) for name, content in files.items()}
    except ValueError:
        raise UserError("the app: a file of it is no base64; is hansa the same at both ends?") from None
    _check_size(found)
    for name in found:
        path = PurePosixPath(name)
        plain = name.isprintable() and "\\" not in name and len(name) <= LONGEST_PATH
        if not plain or str(path) != name or path.is_absolute() or not _counts(path):
            raise UserError("the app: a file in it has a path that no app's has; is hansa the same at both ends?")
        if any(str(parent) in found for parent in path.parents):
            raise UserError(f"the app: {name} lies in what is a file itself")
    return found


def _check_size(files: Mapping[str, bytes]) -> None:
    if len(files) > MOST_FILES or sum(map(len, files.values())) > LARGEST:
        raise UserError(f"the app: more than {MOST_FILES} files or {LARGEST >> 20} MiB; an app is code, keep data out")


def _counts(path: PurePosixPath) -> bool:
    if path.suffix not in KINDS or any(part.startswith(".") for part in path.parts):
        return False
    if SKIPPED_ANYWHERE.intersection(path.parts) or (len(path.parts) > 1 and path.parts[0] in SKIPPED_AT_TOP):
        return False
    return not (path.suffix == ".py" and (path.name.startswith("test_") or path.stem.endswith("_test")))


def _settled(path: str, content: bytes) -> bytes:
    """Flower writes pyproject.toml anew, without a user's federations: what it says counts, not how it stands there."""
    if path != "pyproject.toml":
        return content
    try:
        settings = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise UserError("pyproject.toml: not TOML; mend it") from error
    at: Any = settings
    for key in ("tool", "flwr"):
        at = at.get(key) if isinstance(at, dict) else None
    if isinstance(at, dict):
        at.pop("federations", None)
    return json.dumps(settings, sort_keys=True, separators=(",", ":"), default=str).encode()
