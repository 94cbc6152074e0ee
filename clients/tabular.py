"""A site's table as tensors: read once, split, missing values filled, standardised. n rows, d feature columns."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from clients import columns
from clients.columns import Bools, Floats, Integers
from clients.datatable import DEFAULT_TEST, DataTable, DataWarning
from clients.reading import Sheet, check_columns, read
from clients.split import Rows, choose, take_rows, warn_of_one_class
from hansa.errors import UserError
from hansa.seeds import torch_generator


@dataclass(frozen=True)
class Encoded:
    """Rows as numbers, those of training and test together."""

    where: str
    names: Sequence[str]  # [d], the column that each comes from
    x: Floats  # [n, d], NaN where a value is missing
    y: Integers | Floats  # [n]
    groups: Integers | None  # [n]
    test: Bools  # [n], which are test rows as far as date or file tell

    def take(self, rows: Bools) -> "Encoded":
        """The rows where `rows` [n] is true."""
        groups = None if self.groups is None else self.groups[rows]
        return replace(self, x=self.x[rows], y=self.y[rows], groups=groups, test=self.test[rows])


class TableSource:
    """The rows of a CSV, Parquet file or SQL query, read when first asked for."""

    def __init__(self, table: DataTable, base: Path, site: str, seed: int) -> None:
        self.table, self.base, self.site, self.seed = table, base, site, seed

    def split(self, name: Literal["train", "test"]) -> Rows:
        """Rows `(x [d] float32, y)`; y is int64 (a class) or float32.

        Raises:
            UserError: the data cannot be read or used, or no row is left for this side.
        """
        where, rows = self._splits
        if not len(rows[name]):
            raise UserError(f"{where}: no row is left to {name} on; change split in [data], or give the site more rows")
        return rows[name]

    @cached_property
    def _splits(self) -> tuple[str, dict[str, Rows]]:
        sheets = [read(self.table, self.base, self.site)]
        if self.table.test_path is not None:
            sheets.append(read(self.table, self.base, self.site, self.table.test_path))
        rows = encode(sheets, self.table)
        if self.table.missing == "drop":
            rows = rows.take(np.asarray(~np.isnan(rows.x).any(axis=1)))
        rows = self._separate(rows)
        x = torch.from_numpy(scale(rows, self.table.standardize)).float()
        y = torch.from_numpy(rows.y)
        everything = Rows(x, y.float() if y.is_floating_point() else y, groups=_tensor(rows.groups))
        test = torch.from_numpy(rows.test)
        splits = {"train": take_rows(everything, ~test), "test": take_rows(everything, test)}
        for name, part in splits.items():
            if not y.is_floating_point():
                warn_of_one_class(part.tensors[1], f"{rows.where}: the {name} rows")
        return rows.where, splits

    def _separate(self, rows: Encoded) -> Encoded:
        """Marks the test rows where neither date nor file does."""
        if self.table.test_path is not None:
            return rows
        if self.table.split.after is not None:
            return self._without_known(rows)
        labels = torch.from_numpy(rows.y) if rows.y.dtype == np.int64 else None
        fraction = DEFAULT_TEST if self.table.split.test is None else self.table.split.test
        generator = torch_generator(self.seed, self.site, "split")
        drawn = choose(len(rows.y), fraction, generator, _tensor(rows.groups), labels)
        return replace(rows, test=drawn.numpy())

    def _without_known(self, rows: Encoded) -> Encoded:
        """Leaves out the late rows of groups that have early ones: these train, and training knows no later date."""
        if rows.groups is None:
            return rows
        known = rows.test & np.isin(rows.groups, rows.groups[~rows.test])
        if known.any():
            reason = f"as their {self.table.split.by!r} stands in the training rows too"
            warnings.warn(f"{rows.where}: {known.sum()} test rows are left out, {reason}", DataWarning, stacklevel=2)
        return rows.take(~known)


def encode(sheets: Sequence[Sheet], table: DataTable) -> Encoded:
    """The rows of the sheets (the second: test rows) as numbers.

    Raises:
        UserError: a column is missing, or holds a value that it must not.
    """
    names = columns.feature_names(sheets[0], table)
    for sheet in sheets:
        check_columns(sheet, [*names, *filter(None, (table.target, table.split.by, table.split.column))])
    if not names:
        raise UserError(f"{sheets[0].where}: no column is left as a feature; see target and ignore in [data]")
    sheets = [columns.mark_missing(sheet, table, names) for sheet in sheets]
    test = np.repeat([False, True][: len(sheets)], [len(sheet.frame) for sheet in sheets])
    if table.split.after is not None:
        test = columns.is_late(sheets[0], table)
    groups = None if table.split.by is None else columns.groups(sheets, table.split.by)
    if len(sheets) > 1 and table.split.by is not None and groups is not None:
        known = np.isin(groups[test], groups[~test])
        columns.refuse(sheets[1], table.split.by, known, "stands in the training rows too; remove it from one of them")
    return Encoded(
        where=sheets[0].where,
        names=[name for name in names for _ in range(len(table.categories.get(name, "1")))],
        x=np.concatenate([columns.features(sheet, table, names) for sheet in sheets]),
        y=np.concatenate([columns.target(sheet, table) for sheet in sheets]),
        groups=groups,
        test=test,
    )


def scale(rows: Encoded, standardize: bool) -> Floats:
    """Features, missing ones as the mean of the training rows; standardised, (x - mean) / (sd + 1e-9), if asked for.

    The deviation is the unbiased one. One-hot columns are columns like any other. A column that is constant in the
    training rows (so, all of a lone row) has no deviation and is only centred.

    Raises:
        UserError: a mean is needed, and the column has no value in the training rows.
    """
    if not standardize and not np.isnan(rows.x).any():
        return rows.x
    train = rows.x[~rows.test]
    known = ~np.isnan(train)
    for name, some in zip(rows.names, np.asarray(known.any(axis=0)), strict=True):
        if not some:
            mend = "leave it out of the features at all sites, or give the site training rows with values"
            raise UserError(f"{rows.where}: column {name!r} has no value in the training rows, so no mean; {mend}")
    first = train[known.argmax(axis=0), np.arange(train.shape[1])]
    constant = (~known | (train == first)).all(axis=0)
    mean = np.where(constant, first, np.nanmean(train, axis=0))
    x = np.where(np.isnan(rows.x), mean, rows.x)
    if not standardize:
        return x
    deviation = np.where(constant, 1.0, x[~rows.test].std(axis=0, ddof=min(1, len(train) - 1)) + 1e-9)
    return np.asarray((x - mean) / deviation)


def _tensor(values: Integers | None) -> Tensor | None:
    return None if values is None else torch.from_numpy(values)
