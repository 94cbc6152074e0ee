"""Mechanisms: what is done to data before something of it leaves, and the event that it is to an accountant.

An event is plain data, so that a ledger can keep it; `privacy.dp.accounting` says what events cost together.
"""

from dataclasses import dataclass
from typing import Literal

Unit = Literal["record", "group", "site"]  # who is protected: a row, all rows of one id, all that a site has


@dataclass(frozen=True)
class Event:
    """One kind of release, so many times: Gaussian noise on a sum, of all units or of a Poisson sample of them.

    Args:
        noise_multiplier: standard deviation of the noise over the sum's sensitivity to one unit; 0: no noise.
        sample_rate: the chance of each unit to be in the sum, drawn anew and in secret each time; 1: all are.
        count: how many times.
    """

    noise_multiplier: float
    sample_rate: float
    count: int


@dataclass(frozen=True)
class DpSgd:
    """Local steps of DP-SGD (Abadi et al. 2016, algorithm 1), as one plan orders them.

    Each step draws every unit with the chance `sample_rate`, scales its gradient down to L2 norm `clip`, adds the
    gradients up, adds Gaussian noise of standard deviation noise_multiplier * clip to each coordinate, and divides by
    the expected number of units.

    Args:
        unit: who is protected; "group": the rows of one id are clipped as one.
        units: rows or groups that are trained on.
        sample_rate: of a step.
        noise_multiplier: see Event.
        clip: L2 norm.
        steps: of the plan; an empty draw is a step too, noised and counted.
    """

    unit: Literal["record", "group"]
    units: int
    sample_rate: float
    noise_multiplier: float
    clip: float
    steps: int

    @property
    def event(self) -> Event:
        """What one plan costs. The sum's sensitivity to adding or removing one unit is `clip`."""
        return Event(self.noise_multiplier, self.sample_rate, self.steps)
