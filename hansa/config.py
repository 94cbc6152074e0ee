"""federation.toml, checked table by table, all problems told at once.

A table belongs to the package that registers its model in the entry-point group `hansa.tables`.
"""

import hashlib
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from hansa.choose import load as load_point
from hansa.choose import nearest, registered
from hansa.document import Document
from hansa.errors import UserError
from hansa.words import spoken

T = TypeVar("T")
# In a URL: before the host, or among what stands behind it.
PASSWORD = re.compile(r"(://[^:/@\s\"']*:)[^@\s\"']*(?=@)|((?i:[?&](?:password|passwd|pwd|token|secret)=))[^&\s\"']*")


@dataclass(frozen=True, eq=False)
class Config(Mapping[str, Any]):
    """The checked tables by name. One that is not in the file stands at its defaults, or is absent if it has none."""

    path: Path
    text: str = field(repr=False)  # the file as it was without passwords, and the overrides as comments
    tables: Mapping[str, Any] = field(repr=False)
    digest: str  # SHA-256 over the checked values, in hex: neither comments nor the order of keys change it

    @property
    def folder(self) -> Path:
        """What paths in the file are relative to."""
        return self.path.parent

    def __getitem__(self, name: str) -> Any:
        return self.tables[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tables)

    def __len__(self) -> int:
        return len(self.tables)

    def table(self, name: str, kind: type[T]) -> T:
        """A table, typed.

        Raises:
            UserError: the file has no such table, and it has no defaults.
        """
        if name not in self.tables:
            raise UserError(f"{self.path.name}: no [{name}] table; write one")
        if not isinstance(table := self.tables[name], kind):
            raise TypeError(f"[{name}] is a {type(table).__name__}, not a {kind.__name__}")
        return table


def load(path: Path, overrides: Sequence[str] = (), without: Collection[str] = ()) -> Config:
    """Reads and checks a federation.toml.

    Args:
        path: of the file.
        overrides: `table.key=value`, the value in TOML; a text may stand without its quotes.
        without: tables that are passed over, unread.

    Raises:
        UserError: a line a problem, in the order of the file. What one table says about another is checked when
            each is right by itself.
    """
    document, points = Document(path, overrides), sorted(registered("hansa.tables").items())
    owners = {name: None if name in without else load_point(point, "table") for name, point in points}
    tables = checked(document, owners, needed={"federation"})
    config = Config(path, PASSWORD.sub(r"\1\2***", document.text), tables, _digest(tables, document.tables))
    for name, table in tables.items():
        for problem in getattr(table, "check", _no_check)(config):
            document.add(problem, name)
    document.end()
    return config


def checked(document: Document, owners: Mapping[str, Any], needed: Collection[str] = ()) -> dict[str, Any]:
    """The tables of a TOML file, each made by its owner.

    Args:
        document: the file.
        owners: the model of each table.
        needed: tables whose absence is told key by key. Another stands at its defaults, or is left out if it has none.

    Raises:
        UserError: a line a problem, in the order of the file.
    """
    for name, value in document.tables.items():
        if name not in owners:
            document.add(_unknown(name, value, owners), name)
        elif not isinstance(value, dict):
            document.add(f"must be a table; write [{name}] once, in single brackets, its keys below", name)
    tables = {
        name: _validated(name, owner, document, name in document.tables or name in needed)
        for name, owner in owners.items()
        if owner is not None and isinstance(document.tables.get(name, {}), dict)
    }
    document.end()
    return {name: table for name, table in tables.items() if table is not None}


def _validated(name: str, owner: Any, document: Document, told: bool) -> Any:
    """The table; None if it is wrong."""
    try:
        return TypeAdapter(owner).validate_python(document.tables.get(name, {}), context={"folder": document.folder})
    except ValidationError as error:
        if told:
            for one in error.errors(include_url=False):
                document.add(spoken(one), name, *one["loc"])
        return None


def _unknown(name: str, value: Any, owners: Mapping[str, Any]) -> str:
    if isinstance(value, dict):
        return f"unknown table{nearest(name, owners, '[{}]')} (tables: {', '.join(owners)})"
    homes = [f"[{table}]" for table, owner in owners.items() if name in getattr(owner, "model_fields", {})]
    return f"stands outside all tables; move it below {homes[0] if homes else 'its table'}"


def _digest(tables: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    values = {n: t.model_dump(mode="json", by_alias=True, serialize_as_any=True) for n, t in tables.items()}
    text = json.dumps(_with_names(values, given), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _with_names(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of tables, each with the `name` by which its class was chosen, which is no field of the class."""
    names = {"name": given["name"]} if "name" in given else {}
    both = [key for key, value in values.items() if isinstance(value, dict) and isinstance(given.get(key), dict)]
    return {**names, **values, **{key: _with_names(values[key], given[key]) for key in both}}


def _no_check(config: Config) -> Iterable[str]:
    return ()
