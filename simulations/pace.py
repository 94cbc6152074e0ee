"""Sites that differ in time, as a simulation has them: virtual clocks, the same every time."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from hansa.records import Plan
from hansa.seeds import numpy_generator
from hansa.tables import Table


class Pace(Table):
    """[simulation] pace: how fast sites are, how well connected, how often there, in virtual time."""

    rows_per_second: Annotated[float, Field(gt=0)] = 1000.0  # that the median site trains on
    megabytes_per_second: Annotated[float, Field(gt=0)] = 10.0  # to and from the median site
    spread: Annotated[float, Field(ge=0, le=5)] = 0.0  # sigma of the logarithm of a site's speed and bandwidth
    availability: Annotated[float, Field(gt=0, le=1)] = 1.0  # chance that a site is there, drawn anew each round
    deadline: Annotated[float, Field(gt=0)] | None = None  # virtual seconds after which a round goes on without a site


@dataclass(frozen=True)
class Clock:
    """The virtual time of a run's rounds of training.

    Args:
        pace: of the sites.
        seed: of the run: a site is as fast in each round, and is there or not by the draw of the round.
        rows: of a site's training data.
        down, up: bytes of a plan and of an answer.
    """

    pace: Pace
    seed: int
    rows: Callable[[str], int]
    down: int
    up: int

    def round(self, plan: Plan, asked: Sequence[str]) -> tuple[Mapping[str, str], float]:
        """The sites that give no answer, with the reason, and the virtual seconds that the round takes.

        It ends when the last site that is there has answered, or at the deadline.
        """
        absent, last = {}, 0.0
        for site in asked:
            if numpy_generator(self.seed, plan.round, site, "there").random() >= self.pace.availability:
                absent[site] = "not there (simulated)"
                continue
            seconds = self.seconds(plan, site)
            if self.pace.deadline is not None and seconds > self.pace.deadline:
                absent[site] = f"too slow: {seconds:.3g} virtual seconds, and the deadline is {self.pace.deadline:.3g}"
                seconds = self.pace.deadline
            last = max(last, seconds)
        return absent, last

    def seconds(self, plan: Plan, site: str) -> float:
        """From plan to answer at a site, in virtual seconds."""
        compute, network = numpy_generator(self.seed, site, "pace").normal(0.0, 1.0, 2) * self.pace.spread
        hyper = plan.hyper
        rows = hyper["steps"] * hyper["batch_size"] if "steps" in hyper else hyper["epochs"] * self.rows(site)
        training = rows / self.pace.rows_per_second * math.exp(-compute)
        return float(training + (self.down + self.up) / 1e6 / self.pace.megabytes_per_second * math.exp(-network))
