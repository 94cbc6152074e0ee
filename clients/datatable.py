"""[data]: where a site's rows are and how they become tensors. What can be told without reading them is told here."""

import re
from collections.abc import Mapping
from datetime import date, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from hansa.tables import Table

Label = bool | int | float | str
Names = tuple[str, ...]
Pixels = Annotated[int, Field(ge=1, le=16384)]

SOURCES = ("csv", "parquet", "sql", "images")
DEFAULT_TEST = 0.2  # share of the rows
OF_TABLES = {
    *("target", "features", "ignore", "types", "categories", "target_type", "missing", "na", "standardize"),
    *("separator", "query"),
}
OF_IMAGES = {"size", "channels"}


class DataWarning(UserWarning):
    """Data that trains, but leaves something undefined (one class only) or some rows out."""


class SplitTable(Table):
    """[data] split: which rows are test rows. Drawn with the run's seed, or those on and after a date."""

    test: Annotated[float, Field(ge=0, lt=1)] | None = (
        None  # share of the rows; DEFAULT_TEST where neither a date nor a file tells
    )
    by: str | None = None  # column: rows of one value (a patient) never stand on both sides
    after: datetime | date | None = None  # the first date of the test rows; without a time zone it is UTC
    column: str | None = None  # that holds the date

    @field_validator("after", mode="before")
    @classmethod
    def _is_no_number(cls, value: Any) -> Any:
        if isinstance(value, int | float):
            raise ValueError(f"{value} is not a date; write it as 2024-01-01")
        return value

    @model_validator(mode="after")
    def _date_and_column(self) -> Self:
        if (self.after is None) != (self.column is None):
            given, needed = ("column", "after") if self.after is None else ("after", "column")
            raise ValueError(f'{given} needs {needed}, e.g. split = {{after = 2024-01-01, column = "date"}}')
        if self.after is not None and self.test is not None:
            raise ValueError("test has no effect with after; remove one of them")
        if self.by is not None and self.by == self.column:
            raise ValueError("by and column are the same; by names who a row belongs to, column when it was")
        return self


class DataTable(Table):
    """[data]: one source, and what its columns mean.

    `{site}` in a path or URL is the site's name; paths are relative to the file that holds the table. Every default is
    the same at all sites whatever the order of their columns, so that all have the same tensors.
    """

    model_config = ConfigDict(hide_input_in_errors=True)  # a URL may hold a password

    csv: str | None = None  # path, UTF-8, names in the first row
    parquet: str | None = None  # path
    sql: str | None = Field(default=None, repr=False)  # an SQLAlchemy URL
    images: str | None = None  # path of a folder that holds a folder per class
    test_path: str | None = None  # of test rows in a file (or folder) of their own, of the same kind
    query: str | None = None  # of sql; :site is the site's name
    separator: Annotated[str, Field(min_length=1, max_length=1)] = ","  # of csv

    target: str | None = None  # column
    target_type: Literal["class", "number"] | None = None  # None: by the column, integers are classes
    classes: tuple[Label, ...] | None = None  # the target's values; it becomes the index. Of images: the folders
    features: Names | None = None  # columns; None: all others that have a name, in alphabetical order
    ignore: Names = ()  # columns that are no features
    types: Mapping[str, Literal["float", "int", "category"]] = Field(default_factory=dict)  # by column; else float
    categories: Mapping[str, tuple[Label, ...]] = Field(
        default_factory=dict
    )  # column -> values: one-hot, in this order
    na: tuple[Label, ...] = ()  # values of features that mean "missing", besides empty ones
    missing: Literal["error", "drop", "mean"] = "error"  # features without value: refuse, drop the row, training mean
    standardize: bool = False  # each column by the mean and deviation of the site's own training rows
    split: SplitTable = SplitTable()

    size: tuple[Pixels, Pixels] | None = None  # [height, width] of images; None: as they are
    channels: Literal[1, 3] = 3  # of images: grey or RGB

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [name for name in SOURCES if getattr(self, name) is not None]
        if not given:
            raise ValueError(f"no source; set one of {', '.join(SOURCES)}")
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are both set; keep one of them")
        foreign = sorted(self.model_fields_set & (OF_TABLES if self.images else OF_IMAGES))
        if foreign:
            raise ValueError(f"{', '.join(foreign)} has no effect with {given[0]}; remove it")
        if self.csv is None and "separator" in self.model_fields_set:
            raise ValueError("separator has no effect without csv; remove it")
        return self

    @model_validator(mode="after")
    def _only_site_is_filled_in(self) -> Self:
        for name in ("csv", "parquet", "images", "test_path"):
            rest = re.search(r"\{[^{}]*\}?|\}", (getattr(self, name) or "").replace("{site}", ""))
            if rest:
                raise ValueError(f"{name}: {rest[0]} is unknown; only {{site}} is filled in")
        if re.search(r"[{}]", (self.sql or "").replace("{site}", "")):
            raise ValueError("sql: only {site} is filled in; write any other { and } as %7B and %7D")
        return self

    @model_validator(mode="after")
    def _query(self) -> Self:
        if (self.sql is None) != (self.query is None):
            given, needed = ("sql", "query") if self.query is None else ("query", "sql")
            raise ValueError(f"{given} needs {needed}")
        if self.query is not None and "{site}" in self.query:
            raise ValueError("query: {site} is not filled in; write :site, without quotes around it")
        if self.query is not None and not re.search(r"\border\s+by\b", self.query, re.IGNORECASE):
            raise ValueError("query: add ORDER BY with a unique column; without it every run would split the rows anew")
        return self

    @model_validator(mode="after")
    def _test_path(self) -> Self:
        if self.test_path is not None and self.sql is not None:
            raise ValueError("test_path has no effect with sql; use split")
        if self.test_path is not None and self.split != SplitTable(by=self.split.by):
            raise ValueError("test_path and split are both set; keep one of them (split may still have by)")
        return self

    @model_validator(mode="after")
    def _images(self) -> Self:
        if self.images is not None and self.split != SplitTable(test=self.split.test):
            raise ValueError("split: by, after and column have no effect with images; use test, or test_path")
        if self.images is not None and not all(isinstance(one, str) for one in self.classes or ()):
            raise ValueError("classes: of images they are names of folders; put them in quotes")
        return self

    @model_validator(mode="after")
    def _target_and_classes(self) -> Self:
        if self.images is None and self.target is None:
            raise ValueError("no target; name the column that is to be predicted")
        if self.classes is not None and self.target_type == "number":
            raise ValueError('classes has no effect with target_type = "number"; remove one of them')
        if self.classes is not None and len(self.classes) < 2:
            raise ValueError("classes: list two or more")
        return self

    @model_validator(mode="after")
    def _columns(self) -> Self:
        for name, listed in [("features", self.features or ()), ("ignore", self.ignore)]:
            if self.target in listed:
                raise ValueError(f"{name} lists the target {self.target!r}; remove it there")
        if self.features is not None and self.ignore:
            raise ValueError("ignore has no effect with features; remove one of them")
        if self.features is not None and not self.features:
            raise ValueError("features is empty; list a column, or remove it")
        if self.split.by is not None and self.split.by in (self.features or ()):
            raise ValueError(f"features lists {self.split.by!r}, by which split groups the rows; remove it there")
        for key, columns in [("types", self.types), ("categories", self.categories)]:
            for column in columns:
                if column == self.target:
                    raise ValueError(f"{key}: {column!r} is the target; use target_type and classes")
                if column in self.no_features or (self.features is not None and column not in self.features):
                    raise ValueError(f"{key}: {column!r} is no feature; remove it there")
        return self

    @model_validator(mode="after")
    def _types(self) -> Self:
        for column, kind in self.types.items():
            if kind == "category" and column not in self.categories:
                raise ValueError(
                    f"types: {column!r} is a category; list its values, categories = {{{column} = [...]}}, "
                    "since each site would number its own otherwise"
                )
            if kind != "category" and column in self.categories:
                raise ValueError(f'{column!r} is {kind} in types and has categories; write "category", or remove one')
        lists = {"features": self.features, "ignore": self.ignore, "classes": self.classes, "na": self.na}
        lists |= {f"categories: {column}": values for column, values in self.categories.items()}
        for key, values in lists.items():
            twice = [one for i, one in enumerate(values or ()) if one in (values or ())[:i]]
            if twice:
                raise ValueError(f"{key}: {twice[0]!r} stands twice; remove one")
        empty = [column for column, values in self.categories.items() if not values]
        if empty:
            raise ValueError(f"categories: {empty[0]!r} is empty; list its values")
        return self

    @property
    def no_features(self) -> frozenset[str]:
        """Columns that are no features unless `features` says so."""
        return frozenset({*self.ignore, *filter(None, (self.target, self.split.by, self.split.column))})

    def labels(self, column: str) -> tuple[Label, ...]:
        """The values listed for a column: of a category or of the target."""
        return (self.classes or ()) if column == self.target else self.categories.get(column, ())
