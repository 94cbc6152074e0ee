"""What the link tells the run's cohort: who came and went, and what the sites answered."""

from dataclasses import dataclass
from pathlib import Path

from hansa.wire.link_pb2 import Refused, Result, Secure

Shapes = tuple[tuple[str, tuple[int, ...]], ...]  # of metric sums, by name


@dataclass(frozen=True)
class Joined:
    """A site's session is open; what it was asked before and has not answered must be sent again."""

    site: str
    node: int  # Flower's
    sums: Shapes = ()  # that the site can give, if it said so


@dataclass(frozen=True)
class Left:
    """A site's session has ended."""

    site: str
    why: str  # one line


@dataclass(frozen=True)
class Answered:
    """A site's answer to a plan, its upload complete; told once a site and plan."""

    site: str
    result: Result
    upload: Path | bytes | None  # a spooled file, until the plan is retired; None where the plan asks for none


@dataclass(frozen=True)
class Said:
    """A site's message of an attempt at secure aggregation."""

    site: str
    secure: Secure


@dataclass(frozen=True)
class Declined:
    """A site takes no part in a plan, and says why."""

    site: str
    refused: Refused


@dataclass(frozen=True)
class Spoiled:
    """A site's upload cannot be used; it may not be sent again for the same plan."""

    site: str
    plan: str
    problem: str  # one line, which `index` and `value` make exact
    index: int | None = None  # of the first float that is not finite, among the floats of all parts in their order
    value: float | None = None


Arrival = Joined | Left | Said | Answered | Declined | Spoiled


def one_line(text: str, longest: int = 300) -> str:
    """What a site says, fit to print: one line, no control characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= longest else line[: longest - 3] + "..."
