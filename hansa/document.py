"""A TOML file of the user's: read, overridden by `--set`, and what is wrong in it told with its place."""

import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hansa.errors import UserError, reason

Place = tuple[str | int, ...]  # a table, then keys or positions in lists


class Document:
    """The tables of a file, and a list of problems.

    Args:
        path: of the file.
        overrides: `table.key=value`, the value in TOML; a text may stand without its quotes.

    Raises:
        UserError: no such file, not TOML, or an override that cannot be read.
    """

    def __init__(self, path: Path, overrides: Iterable[str] = ()) -> None:
        self.file, self.folder, given = path.name, path.parent, _read(path)
        self.tables: dict[str, Any] = _parsed(self.file, given)
        self.text = "\n".join([given.rstrip("\n"), *(f"# --set {one}" for one in overrides), ""])
        self._overridden: list[Place] = []
        self._problems: list[tuple[Place, str]] = []
        self._override(overrides)

    def add(self, problem: str, *place: str | int) -> None:
        """Notes a problem at a place; one that begins with a `[table]` says itself where it is."""
        where = self._where(place, problem).replace("\n", r"\n")  # in a key
        self._problems.append((place, f"{where} {problem}"))

    def end(self) -> None:
        """Raises what was noted, a line a problem, in the order of the file."""
        if self._problems:
            raise UserError(*(line for _, line in sorted(self._problems, key=lambda one: self._order(one[0]))))

    def _override(self, overrides: Iterable[str]) -> None:
        wrong = []
        for one in overrides:
            try:
                self._overridden.append(_put(self.tables, *_override(one)))
            except UserError as error:
                wrong.append(str(error))
        if wrong:
            raise UserError(*wrong)

    def _where(self, place: Place, problem: str) -> str:
        if problem.startswith("["):
            return self.file
        if any(place[: len(keys)] == keys for keys in self._overridden):
            return f"--set {'.'.join(map(str, place))}:"
        depth, at = 0, self.tables.get(str(place[0]), {})
        while isinstance(at, dict):
            depth += 1
            at = at.get(str(place[depth])) if depth < len(place) else None
        header = f" [{'.'.join(map(str, place[:depth]))}]" if depth else ""
        keys = ", ".join(f"item {key + 1}" if isinstance(key, int) else key for key in place[depth:])
        if not keys:
            return f"{self.file}{header}" + ("" if re.match(r"\w+: ", problem) else ":")
        return f"{self.file}{header} {keys}:"

    def _order(self, place: Place) -> list[float]:
        """Where a place stands in the file; what is not there comes last."""
        order: list[float] = []
        at: Any = self.tables
        for part in place:
            keys = list(at) if isinstance(at, dict) else []
            order.append(keys.index(part) if part in keys else part if isinstance(part, int) else float("inf"))
            at = at.get(part) if isinstance(at, dict) else None
        return order


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path.name}: not UTF-8 text (byte {error.start}); save it as UTF-8") from error
    except OSError as error:
        raise UserError(f"{path}: {reason(error)}; give the path of a TOML file") from error


def _parsed(file: str, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise UserError(f"{file}: not TOML: brackets stand too deep in one another") from error
    except ValueError as error:  # not TOML, or a number of thousands of digits
        raise UserError(f"{file}: not TOML: {str(error)[:1].lower()}{str(error)[1:]}") from error


def _override(text: str) -> tuple[list[str], Any]:
    """The keys and the value of `table.key=value`. The value may be a secret: no message repeats it."""
    key, equals, value = text.partition("=")
    keys = [part.strip() for part in key.split(".")]
    if not equals or len(keys) < 2 or not all(keys):
        raise UserError(f"--set {key.strip()}: write table.key=value, e.g. --set training.lr=0.1")
    if not re.fullmatch(r"[^\ud800-\udfff]*", value):  # bytes of the command line that were not UTF-8
        raise UserError(f"--set {key.strip()}: the value is not UTF-8 text; write e.g. 0.1, true or [1, 2]")
    try:
        (parsed,) = tomllib.loads(f"value = {value}").values()
    except (ValueError, RecursionError) as error:
        if value.strip()[:1] not in ("", '"', "'", "[", "{"):
            return keys, value.strip()
        raise UserError(f"--set {key.strip()}: the value is not TOML; write e.g. 0.1, true or [1, 2]") from error
    return keys, parsed


def _put(tables: dict[str, Any], keys: Sequence[str], value: Any) -> Place:
    """Sets a value; returns the place of what was not there before, or of the value."""
    at, new = tables, len(keys)
    for depth, key in enumerate(keys[:-1], 1):
        new = min(new, depth) if key not in at else new
        at = at.setdefault(key, {})
        if not isinstance(at, dict):
            raise UserError(f"--set {'.'.join(keys)}: {'.'.join(keys[:depth])} is not a table")
    at[keys[-1]] = value
    return tuple(keys[:new])
