"""What the columns of a user's CSV seem to mean: a target, numbers, categories, and what had better be left out."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd

from clients.columns import FLOAT32_MAX
from clients.datatable import DataTable, Label
from clients.reading import read
from hansa.choose import nearest
from hansa.errors import UserError

TARGETS = ("target", "label", "class", "outcome", "y")  # names that tell
CATEGORIES, CLASSES, TEXT_CLASSES = 20, 20, 100  # values at most: of a text that is a category, of a target
GROUP = 20  # rows of one person at most, where a column tells persons apart
IDENTIFIER = re.compile(r"(^|[_ .-])(id|uid|uuid|key|index)$|[a-z]I[Dd]$", re.IGNORECASE)
MISSING = {"?", "-", "--", ".", "*", "missing", "unknown"}  # that stand for no number, among numbers
SEPARATORS = ",;\t|"

Column: TypeAlias = "pd.Series[Any]"


@dataclass
class Proposal:
    """What [data] is to say."""

    separator: str
    rows: int
    target: str
    said: str  # why it is that column
    classes: tuple[Label, ...] | None  # the target's values; None: it is a number
    mean: float  # of a target that is a number
    deviation: float
    features: list[str] = field(default_factory=list)
    categories: dict[str, tuple[str, ...]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)  # column -> why
    na: tuple[str, ...] = ()
    missing: bool = False  # whether features have missing values
    by: str | None = None  # column that tells persons apart


def propose(csv: Path, target: str | None) -> Proposal:
    """Reads a CSV and says what its columns seem to mean.

    Args:
        csv: the file.
        target: the column that is to be predicted; None: guess.

    Raises:
        UserError: it is no readable CSV, has no such column, or nothing in it can be predicted or learnt from.
    """
    texts, separator = _read(csv)
    numbers = {str(name): pd.to_numeric(texts[name], errors="coerce") for name in texts.columns}
    name, said = _target(csv, texts, target)
    found = _described(csv, texts[name], numbers[name], name, said, separator)
    people = None
    for column in (str(one) for one in texts.columns if one != name):
        text, number = texts[column], numbers[column]
        if why := _useless(column, text, number):
            found.left_out[column] = why
            if people is None and why == "an identifier" and len(text) / GROUP <= text.nunique() < len(text):
                people = column
        elif isinstance(kind := _kind(text, number), str):
            found.left_out[column] = kind
        else:
            found.features.append(column)
            if kind is not None:
                found.categories[column] = kind
            found.na += tuple(sorted(_marks(text, number) - set(found.na)))
            found.missing |= bool((text if kind is not None else number).isna().any())
    if not found.features:
        raise UserError(f"{csv}: no column is left to learn from; left out: {', '.join(_reasons(found))}")
    if people is not None and not texts[people].isna().any():
        found.by = people
        del found.left_out[people]
    return found


def _read(csv: Path) -> tuple[pd.DataFrame, str]:
    """All columns as the texts that are written, NaN for what is empty; and the separator."""
    if not csv.is_file():
        raise UserError(f"--csv {csv}: there is no such file")
    if re.search("[{}]", str(csv)):
        raise UserError(f"--csv {csv}: braces in a path mean {{site}} in [data]; rename the file or its folder")
    with csv.open(encoding="utf-8-sig", errors="replace") as file:
        header = re.sub('"[^"]*"', "", file.readline())
    separator = max(SEPARATORS, key=header.count)
    given = {"separator": separator} if separator != "," else {}
    names = read(DataTable(csv=csv.name, target="", **given), csv.parent, "").frame.columns
    as_written: Any = {str(name): ("\0",) for name in names}  # a category is read so
    return read(DataTable(csv=csv.name, target="", categories=as_written, **given), csv.parent, "").frame, separator


def _target(csv: Path, texts: pd.DataFrame, given: str | None) -> tuple[str, str]:
    names = [str(name) for name in texts.columns]
    if given is not None:
        if given not in names:
            near = nearest(given, names) or f" (columns: {', '.join(names)})"
            raise UserError(f"--target {given}: {csv} has no such column{near}")
        return given, "as you say"
    for name in names:
        if name.lower() in TARGETS:
            return name, "by its name; another by --target"
    return names[-1], "the last column; another by --target"


def _described(csv: Path, text: Column, number: Column, name: str, said: str, separator: str) -> Proposal:
    where = f"{csv}: column {name!r}"
    if text.isna().any():
        row = int(np.flatnonzero(text.isna())[0]) + 1
        raise UserError(f"{where} is to be predicted, but row {row} has no value; complete the row, or remove it")
    count = (text if number.isna().any() else number).nunique()
    if count < 2:
        raise UserError(f"{where} has one value only, so there is nothing to predict; choose another by --target")
    classes: tuple[Label, ...] | None = None
    if number.isna().any():
        if count > TEXT_CLASSES:
            raise UserError(f"{where} has {count} different texts, too many to predict; choose another by --target")
        classes = tuple(sorted(text.unique()))
    elif count <= CLASSES and (number == np.floor(number)).all():
        classes = tuple(int(value) for value in sorted(number.unique()))
    elif not np.isfinite(number).all() or (number.abs() > FLOAT32_MAX).any():
        raise UserError(f"{where} is to be predicted, but has infinite values; correct them, or choose another")
    mean, deviation = (0.0, 1.0) if classes else (float(number.mean()), float(number.std()))
    return Proposal(separator, len(text), name, said, classes, mean, deviation)


def _useless(name: str, text: Column, number: Column) -> str | None:
    """Why a column is no feature, if it is none."""
    if text.nunique() < 2:
        return "one value only" if text.nunique() else "no values"
    if IDENTIFIER.search(name):
        return "an identifier"
    if number.notna().all() and len(number) > 2 and (number.diff().iloc[1:] == 1).all():
        return "row numbers"
    if (number.abs() > FLOAT32_MAX).any():
        return "infinite, or beyond float32"
    return None


def _kind(text: Column, number: Column) -> tuple[str, ...] | str | None:
    """A category's values, None for numbers, or in words what the column is."""
    if not (text.notna() & number.isna()).any() or _marks(text, number):
        return None
    if pd.to_datetime(text.dropna(), format="ISO8601", errors="coerce", utc=True).notna().all():
        return "dates"
    count = text.nunique()
    return tuple(sorted(text.dropna().unique())) if count <= CATEGORIES else f"text, {count} different ones"


def _marks(text: Column, number: Column) -> set[str]:
    """What stands for "missing" among the numbers of a column, if there is nothing else that is no number."""
    strange = set(text[text.notna() & number.isna()])
    return strange if number.notna().any() and {one.lower() for one in strange} <= MISSING else set()


def _reasons(found: Proposal) -> Iterator[str]:
    yield from (f"{name} ({why})" for name, why in found.left_out.items())
