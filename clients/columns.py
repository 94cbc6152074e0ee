"""What columns of a sheet mean: numbers, one-hot categories, the target, groups and dates. n rows."""

import difflib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from clients.datatable import DataTable, Label
from clients.reading import Sheet, Unfit, without_values
from hansa.errors import UserError

FLOAT32_MAX = float(np.finfo(np.float32).max)
MISSING, UNKNOWN = -1, -2
NO_CLASS = 'is no class (0, 1, 2, ...); list the target\'s values in [data] classes, or set target_type = "number"'

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]


def feature_names(sheet: Sheet, table: DataTable) -> Sequence[str]:
    """The columns that are features."""
    if table.features is not None:
        return table.features
    return sorted(str(name) for name in sheet.frame.columns if name not in table.no_features)


def mark_missing(sheet: Sheet, table: DataTable, names: Sequence[str]) -> Sheet:
    """The sheet with the values of `na` emptied in the columns named."""
    if not table.na:
        return sheet
    emptied = {name: sheet.frame[name].mask(_means_missing(sheet.frame[name], table.na)) for name in names}
    return Sheet(sheet.where, sheet.frame.assign(**emptied))


def features(sheet: Sheet, table: DataTable, names: Sequence[str]) -> Floats:
    """Feature columns, [n, d], NaN where a value is missing.

    Raises:
        UserError: a line for each column that holds a value that it must not.
    """
    blocks: list[Floats] = []
    problems: list[tuple[str, str]] = []
    for name in names:
        try:
            if table.missing == "error":
                _refuse_missing(sheet, name, 'missing = "error"; complete the row, or set missing to "drop" or "mean"')
            if name in table.categories:
                blocks.append(_one_hot(sheet, name, table.categories[name]))
            else:
                blocks.append(_numbers(sheet, name, table.types.get(name) == "int")[:, None])
        except UserError as error:
            problems.extend(zip(error.problems, without_values(error), strict=True))
    if problems:
        raise Unfit(*problems)
    return np.concatenate(blocks, axis=1)


def target(sheet: Sheet, table: DataTable) -> Integers | Floats:
    """The target, [n]: integers where it is a class, else floats.

    Raises:
        UserError: a value is missing, or is not what `classes` or `target_type` says.
    """
    name = table.target or ""
    column = sheet.frame[name]
    _refuse_missing(sheet, name, "the column is the target; complete the row, or remove it")
    if table.classes is not None:
        index = _indices(column, table.classes)
        refuse(sheet, name, index == UNKNOWN, "is not in classes", table.classes)
        return index
    numeric = _to_numeric(column)
    values = numeric.to_numpy(np.float64, na_value=np.nan)
    refuse(sheet, name, np.isnan(values), "is not a number; list the target's values in [data] classes")
    _refuse_infinite(sheet, name, values)
    if table.target_type == "number" or (table.target_type is None and numeric.dtype.kind not in "biu"):
        return values
    bad = (values < 0) | (values != np.floor(values)) | (values >= 2**31)
    refuse(sheet, name, bad, NO_CLASS)
    return values.astype(np.int64)


def groups(sheets: Sequence[Sheet], name: str) -> Integers:
    """Who each row belongs to, as integers, over the rows of all sheets.

    Raises:
        UserError: a row belongs to nobody.
    """
    for sheet in sheets:
        _refuse_missing(sheet, name, "split groups the rows by the column; complete the row, or remove it")
    codes, _ = pd.factorize(pd.concat([sheet.frame[name] for sheet in sheets]))
    return np.asarray(codes, dtype=np.int64)


def is_late(sheet: Sheet, table: DataTable) -> Bools:
    """Which rows stand on or after the date of the split, [n].

    Raises:
        UserError: a value is not a date as ISO 8601 has it.
    """
    name = table.split.column or ""
    column = sheet.frame[name]
    text = column if column.dtype.kind == "M" else column.astype(str)
    dates = pd.to_datetime(text, format="ISO8601", errors="coerce", utc=True)
    _refuse_missing(sheet, name, "split goes by the column's dates; complete the row, or remove it")
    refuse(sheet, name, dates.isna(), "is no date; write dates as 2024-01-31")
    after = pd.Timestamp(str(table.split.after))
    return np.array(dates >= (after.tz_localize("UTC") if after.tzinfo is None else after))


def refuse(sheet: Sheet, name: str, bad: Any, reason: str, listed: Sequence[Label] = ()) -> None:
    """Raises UserError for the first row in which `bad` [n] is true, with the nearest of the values listed."""
    at = np.flatnonzero(np.asarray(bad))
    if len(at):
        value = str(sheet.frame[name].iloc[at[0]])
        near = difflib.get_close_matches(value, [str(one) for one in listed], n=1, cutoff=0)
        mend = f"; the nearest there is {near[0]!r}; correct the row, or [data]" if near else ""
        place = _place(sheet, name, at[0])
        raise Unfit((f"{place}: {value!r} {reason}{mend}", f"{place}: the value {reason}"))


def _refuse_missing(sheet: Sheet, name: str, reason: str) -> None:
    at = np.flatnonzero(sheet.frame[name].isna())
    if len(at):
        raise UserError(f"{_place(sheet, name, at[0])}: there is no value, but {reason}")


def _place(sheet: Sheet, name: str, at: int) -> str:
    return f"{sheet.where}: column {name!r}, row {sheet.frame.index[at]}"


def _numbers(sheet: Sheet, name: str, whole: bool) -> Floats:
    column = sheet.frame[name]
    values = _to_numeric(column).to_numpy(np.float64, na_value=np.nan)
    mend = "correct it, or say in [data] what it means: na (missing), categories, or ignore the column"
    refuse(sheet, name, np.isnan(values) & column.notna(), f"is not a number; {mend}")
    _refuse_infinite(sheet, name, values)
    if whole:
        bad = ~np.isnan(values) & (values != np.floor(values))
        refuse(sheet, name, bad, 'is not a whole number; correct it, or write "float" in [data] types')
    return values


def _one_hot(sheet: Sheet, name: str, listed: Sequence[Label]) -> Floats:
    index = _indices(sheet.frame[name], listed)
    refuse(sheet, name, index == UNKNOWN, "is not in categories", listed)
    block: Floats = np.asarray(index[:, None] == np.arange(len(listed)), dtype=np.float64)
    block[index == MISSING] = np.nan
    return block


def _refuse_infinite(sheet: Sheet, name: str, values: Floats) -> None:
    refuse(sheet, name, np.abs(values) > FLOAT32_MAX, "is infinite or beyond float32; correct it, or ignore the column")


def _to_numeric(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Numbers, NaN for what is none; times are none, though pandas would count their nanoseconds."""
    try:
        return pd.to_numeric(column.astype(str) if column.dtype.kind in "mM" else column, errors="coerce")
    except OverflowError:  # an integer beyond float64
        return pd.to_numeric(column.map(_as_float), errors="coerce")


def _means_missing(column: "pd.Series[Any]", na: Sequence[Label]) -> Bools:
    if column.dtype.kind in "iuf":
        return np.asarray(column.isin([one for one in map(_as_float, na) if one is not None]))
    return np.asarray(_indices(column, na) >= 0)


def _indices(column: "pd.Series[Any]", listed: Sequence[Label]) -> Integers:
    """The place of each value in the list, MISSING, or UNKNOWN."""
    codes, values = pd.factorize(column)
    return np.array([*(_find(value, listed) for value in values), MISSING], dtype=np.int64)[codes]


def _find(value: Any, listed: Sequence[Label]) -> int:
    """A number in the list is met by what equals it (1 by "1.0"), a text by itself only ("01" by "01")."""
    whole = isinstance(value, float | np.floating) and value.is_integer()
    text = str(int(value)) if whole else str(value)
    for i, one in enumerate(listed):
        if text == one or (isinstance(one, bool) and text.lower() == str(one).lower()):
            return i
        if not isinstance(one, str) and _as_float(value) == one:
            return i
    return UNKNOWN


def _as_float(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None
    except OverflowError:
        return math.inf
