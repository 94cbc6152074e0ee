"""[bounds] of site.toml: how far numbers of federation.toml, which a site does not review, may go.

A file's bound key that is left out stands at its default, which comes with code that the site has installed or allowed.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, get_args

from pydantic import ConfigDict, ValidationError, model_validator

from clients.config import TrainingTable
from hansa.choose import nearest, registered
from hansa.tables import Table
from hansa.words import said

KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+")  # such a key may leave the site, when it is broken
UNREAD = {"data", "simulation"}  # tables that a site passes over
WORK = ("epochs", "steps")  # of [training]: a run uses either
_MISSING = object()


class Bound(Table):
    """The least and the greatest that a number may be."""

    min: float | None = None
    max: float | None = None

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("no bound; set min, max or both")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min = {self.min:g} is above max = {self.max:g}")
        return self

    def holds(self, value: object) -> bool:
        """Whether a value is a number within; what is no finite number is not."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if isinstance(value, float) and not math.isfinite(value):
            return False
        return (self.min is None or value >= self.min) and (self.max is None or value <= self.max)


class BoundsTable(Table):
    """[bounds]: a bound for each `"table.key"` of federation.toml that the site wants to bound."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Bound]

    @model_validator(mode="before")
    @classmethod
    def _keys(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            wrong = [said(problem, key) for key in values for problem in _wrong(str(key), values)]
            if wrong:
                raise ValidationError.from_exception_data("bounds", wrong)
        return values

    def broken_by(self, tables: Mapping[str, Any]) -> str | None:
        """The first key that is out of bounds in the tables of a federation.toml."""
        for key, bound in self.__pydantic_extra__.items():
            value = _at(tables, key.split("."))
            if value is not _MISSING and not bound.holds(value):
                return key
        return None

    def broken_by_plan(self, hyper: Mapping[str, Any], round: int) -> str | None:
        """The first key that is out of bounds in a plan.

        Args:
            hyper: the plan's hyper-parameters: keys of [training], and those of [dp] in a table of that name.
            round: the plan's, from 1. It may not be above what `rounds.rounds` may be.
        """
        rounds = self.__pydantic_extra__.get("rounds.rounds")
        if rounds is not None and rounds.max is not None and round > rounds.max:
            return "rounds.rounds"
        return self.broken_by({"training": hyper, "dp": hyper.get("dp", {})})


def _at(tables: Mapping[str, Any], keys: Sequence[str]) -> Any:
    at: Any = tables
    for key in keys:
        if not isinstance(at, Mapping) or key not in at:
            return _MISSING
        at = at[key]
    return at


def _wrong(key: str, values: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a key: one that bounds nothing would be a hole that nobody sees."""
    if not KEY.fullmatch(key):
        yield 'write "table.key" of federation.toml in quotes, e.g. "training.lr" = { max = 0.5 }'
        return
    table, _, rest = key.partition(".")
    tables = sorted(registered("hansa.tables").keys() - UNREAD)
    if table not in tables:
        yield f"a site reads no such table{nearest(table, tables, '[{}]')} (tables: {', '.join(tables)})"
    elif table == "training" and rest not in NUMBERS:
        yield f"no such number of [training]{nearest(rest, NUMBERS)} (numbers: {', '.join(NUMBERS)})"
    elif table == "training" and rest in WORK and (other := _other(rest)) not in values:
        yield f'a run may count its work in {other.partition(".")[2]} instead; bound "{other}" as well'


def _other(work: str) -> str:
    return f"training.{WORK[1 - WORK.index(work)]}"


def _numbers() -> tuple[str, ...]:
    """The numbers of [training] that a site does not settle itself."""
    kinds = {name: _kinds(field.annotation) for name, field in TrainingTable.model_fields.items()}
    return tuple(name for name, kind in kinds.items() if kind & {int, float} and name != "num_workers")


def _kinds(annotation: Any) -> set[Any]:
    """The types that an annotation is made of."""
    inner = get_args(annotation)
    return {kind for part in inner for kind in _kinds(part)} if inner else {annotation}


NUMBERS = _numbers()
