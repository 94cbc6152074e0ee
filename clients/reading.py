"""Reads a site's CSV, Parquet or SQL rows as they stand; what they mean is the matter of `clients.columns`."""

import difflib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow
import pyarrow.parquet

from clients.datatable import DataTable
from hansa.errors import UserError

EMPTY = (
    "",
    "NA",
    "N/A",
    "#N/A",
    "<NA>",
    "n/a",
    "NaN",
    "nan",
    "NULL",
    "null",
    "None",
)  # in a CSV, unless listed as a value


class Unfit(UserError):
    """Rows that do not fit [data].

    Args:
        problems: a line each, and the same without anything that stands in the rows.
    """

    def __init__(self, *problems: tuple[str, str]) -> None:
        super().__init__(*(line for line, _ in problems))
        self.plain = tuple(line for _, line in problems)


def without_values(error: UserError) -> tuple[str, ...]:
    """The problems of an error, without anything that stands in the rows."""
    return error.plain if isinstance(error, Unfit) else error.problems


@dataclass(frozen=True)
class Sheet:
    """Rows as read: the index of `frame` is the row's number, from 1; `where` names the file or database."""

    where: str
    frame: pd.DataFrame


def locate(text: str, base: Path, site: str) -> Path:
    """The path that a configuration means.

    Raises:
        UserError: nothing is there.
    """
    path = base / Path(text.replace("{site}", site)).expanduser()
    if not path.exists():
        raise UserError(f"{path}: there is no such file or folder; correct the path in [data]")
    return path


def read(table: DataTable, base: Path, site: str, text: str | None = None) -> Sheet:
    """The rows of the table's source, or of its file at `text`.

    Raises:
        UserError: the file or database cannot be read, is empty, or has two columns of one name.
    """
    if table.sql is not None:
        from clients.sqlrows import read_sql  # SQLAlchemy takes half a second to import

        where, frame = read_sql(table, table.sql, base, site)
    else:
        path = locate(text or table.csv or table.parquet or "", base, site)
        where, frame = str(path), _read_csv(table, path) if table.csv is not None else _read_parquet(path)
    if frame.empty:
        raise UserError(f"{where}: there are no rows; a site needs at least one to train on")
    frame.index = pd.RangeIndex(1, len(frame) + 1)
    return Sheet(where, frame)


def check_columns(sheet: Sheet, needed: Sequence[str]) -> None:
    """Raises UserError, one line a column that is missing, with the nearest name that is there."""
    columns = [str(name) for name in sheet.frame.columns]
    missing = [name for name in needed if name not in columns]
    if missing:
        near = [difflib.get_close_matches(name, columns, n=1, cutoff=0) or ["(none)"] for name in missing]
        lines = [f"{sheet.where}: there is no column {name!r}" for name in missing]
        mend = "correct it in [data]"
        raise Unfit(
            *(
                (f"{line}; the nearest name is {one[0]!r}; {mend}", f"{line}; {mend}")
                for line, one in zip(lines, near, strict=True)
            )
        )


def _read_csv(table: DataTable, path: Path) -> pd.DataFrame:
    """Columns without a name (row numbers that a tool wrote) are left out."""
    first = _csv(path, table.separator, header=None, nrows=1, dtype=str, na_filter=False)
    names = [str(name) for name in first.iloc[0]]
    check_unique(str(path), [name for name in names if name])
    if len(names) == 1 and (other := re.search(r"[;\t|,]", names[0])):
        raise UserError(f"{path}: the first row is one single name; set separator = {json.dumps(other[0])} in [data]")
    unnamed = [f"\0{i}" for i in range(len(names))]
    names = [name or spare for name, spare in zip(names, unnamed, strict=True)]
    empty = {name: [text for text in EMPTY if text not in table.labels(name)] for name in names}
    options = {"keep_default_na": False, "na_values": empty, "dtype": dict.fromkeys(_texts(table), str)}
    frame = _csv(path, table.separator, header=0, names=names, low_memory=False, **options)
    if not frame.index.equals(pd.RangeIndex(len(frame))):  # pandas makes an index of values that have no name
        raise UserError(f"{path}: rows have more values than the first row has names; correct the first row")
    return frame.drop(columns=unnamed, errors="ignore")


def _csv(path: Path, separator: str, **options: Any) -> pd.DataFrame:
    try:
        return pd.read_csv(path, sep=separator, encoding="utf-8-sig", skipinitialspace=True, **options)  # type: ignore[no-any-return]
    except pd.errors.EmptyDataError:
        raise UserError(f"{path}: the file is empty; it needs a row of names and rows of values") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: this is not UTF-8 text; save the table as CSV in UTF-8") from None
    except (pd.errors.ParserError, OSError, ValueError) as error:
        line, mend = f"{path}: this is no readable CSV", "correct it or export it again"
        raise Unfit((f"{line} ({one_line(error)}); {mend}", f"{line}; {mend}")) from None


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        content = pyarrow.parquet.ParquetFile(path).read()
        names = content.column_names
        frame: pd.DataFrame = content.rename_columns([str(i) for i in range(len(names))]).to_pandas(
            ignore_metadata=True
        )
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path}: this is no readable Parquet file ({one_line(error)}); export it again") from None
    check_unique(str(path), names)
    for name, field in zip(frame.columns, content.schema, strict=True):
        if pyarrow.types.is_dictionary(field.type):
            frame[name] = frame[name].astype(object)
        elif pyarrow.types.is_nested(field.type):
            frame[name] = frame[name].astype(str)  # lists and the like mean nothing here, but may stand in the way
    return frame.set_axis(names, axis="columns")


def _texts(table: DataTable) -> list[str]:
    """Columns whose values are read as they are written: "01" is not 1 there."""
    named = [table.split.by, table.split.column, table.target if table.classes else None]
    return [*table.categories, *(name for name in named if name)]


def check_unique(where: str, names: Sequence[str]) -> None:
    """Raises Unfit if two columns have the same name."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        plain = f"{where}: two columns have the same name; rename one"
        raise Unfit(*((f"{where}: two columns have the name {name!r}; rename one", plain) for name in twice))


def one_line(error: BaseException) -> str:
    """An error's words."""
    return " ".join(str(error).split())
