"""What a run tells while it goes on: to the run store, a progress bar, a report. Every listener gets every event."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from hansa.records import Aggregate, Plan

Values = Mapping[str, float | None]  # metric values by name; None is undefined


ALL = "all"  # the scope of what all sites say together; no site may bear that name


@dataclass(frozen=True)
class RoundStarted:
    """A plan went out."""

    plan: Plan
    asked: tuple[str, ...]


@dataclass(frozen=True)
class RoundEnded:
    """A round was added up; the state it led to is not yet committed."""

    plan: Plan
    asked: tuple[str, ...]
    aggregate: Aggregate
    seconds: float


@dataclass(frozen=True)
class RoundCommitted:
    """A round is on disk: it will not be done again."""

    round: int


@dataclass(frozen=True)
class Scored:
    """Metric values of the model that stood after a round (0: the initial one)."""

    round: int
    split: Literal["train", "valid", "test", "server"]
    scope: str  # "all", or a site in simulation
    values: Values


@dataclass(frozen=True)
class Note:
    """Something that the user should know."""

    round: int
    level: Literal["info", "warning"]
    text: str


Event = RoundStarted | RoundEnded | RoundCommitted | Scored | Note
Listener = Callable[[Event], None]
