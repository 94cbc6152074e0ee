"""Parts of an update as whole numbers in a ring, and whether their sum over the sites fits it.

A value x at weight w counts as w * x * levels / bound, rounded, in the numbers mod 2^bits, which stand for those from
-2^(bits-1) to 2^(bits-1) - 1.
"""

import math
from dataclasses import dataclass
from typing import Literal

from hansa.errors import UserError

RINGS = (16, 20, 24, 32)  # bits
WEIGHT_LEVELS = 255  # the weight of a site that has as many rows as count, or more
Weight = Literal["examples", "uniform"]
WEIGHTS: tuple[Weight, ...] = ("examples", "uniform")


@dataclass(frozen=True)
class Segment:
    """A part of the uploads, and how it becomes whole numbers."""

    name: str
    size: int  # floats
    weight: Weight  # in the mean over sites
    bound: float  # values beyond +-bound are clipped, and counted
    levels: int  # steps from 0 to bound

    @property
    def largest_weight(self) -> int:
        """The largest weight of a site."""
        return WEIGHT_LEVELS if self.weight == "examples" else 1

    @property
    def problems(self) -> list[str]:
        """What is wrong with it by itself."""
        bounded = math.isfinite(self.bound) and 1e-30 <= self.bound <= 1e30
        rules = [
            (self.size >= 0, f"{self.size} values"),
            (self.weight in WEIGHTS, f"weight {self.weight!r}"),
            (self.levels >= 1, f"{self.levels} levels; give 1 or more"),
            (bounded, f"a bound of {self.bound!r}; give one between 1e-30 and 1e30"),
        ]
        return [f"part {self.name!r} has {problem}" for good, problem in rules if not good]


def most_levels(sites: int, weight: Weight, bits: int) -> int:
    """The finest rounding for which no sum of so many sites can wrap; 0 if there is none."""
    return ((1 << bits - 1) - 1) // (sites * (WEIGHT_LEVELS if weight == "examples" else 1))


def check_fit(part: Segment, sites: int, bits: int) -> None:
    """Raises UserError, with the numbers and the mend, if a part's sum over the sites could wrap."""
    largest, room = sites * part.largest_weight * part.levels, (1 << bits - 1) - 1
    if largest <= room:
        return
    most = most_levels(sites, part.weight, bits)
    wider = next((ring for ring in RINGS if largest <= (1 << ring - 1) - 1), None)
    mends = [f"levels = {most} or fewer"] * (most > 0) + [f"ring_bits = {wider}"] * (wider is not None)
    raise UserError(
        f"[privacy]: part {part.name!r}: {sites} sites x weights up to {part.largest_weight} x {part.levels:,} levels "
        f"= {largest:,}, and a ring of {bits} bits holds {room:,}; choose {' or '.join(mends) or 'fewer sites a round'}"
    )
