"""Adaptive clipping (Andrew, Thakkar, McMahan, Ramaswamy, NeurIPS 2021): the clip follows a quantile of the norms.

A round is clipped and noised by one C: the next C is made of what this round's sum says, and used in the next round.
"""

import math
from dataclasses import dataclass

from hansa.errors import UserError
from privacy.dp.mechanism import Event
from privacy.dp.sitewise import ROUNDED, Clipping

FEW = 20  # sites: the noise that hides the bit of one drowns the share of all
LEAST, MOST = 1e-30, 1e30  # of a clip
BIT = "dp/bit"  # the name of their sum among those of the metrics
HALF = 0.5  # the bound of a bit, as it is summed


@dataclass(frozen=True)
class Adaptive:
    """How the clip of site-level privacy moves.

    Args:
        sites: asked in a round.
        noise_multiplier: z, of a round in all: of the updates and of the bits together.
        quantile: of the norms, at which the clip shall be.
        learning_rate: 0.2 moves a clip that is far too small by a tenth a round.
        bit_noise: standard deviation of the noise on the sum of the bits; the paper's choice is sites / 20.

    Raises:
        UserError: too few sites, or a round's noise that leaves none for the updates.
    """

    sites: int
    noise_multiplier: float
    quantile: float = 0.5
    learning_rate: float = 0.2
    bit_noise: float | None = None

    def __post_init__(self) -> None:
        mend = "remove adaptive, and fix clip from a pilot"
        if self.sites <= FEW:
            raise UserError(
                f"[dp] adaptive: {self.sites} sites a round are too few, the noise that hides one site's bit drowns "
                f"the share of all; {mend}"
            )
        if not self.noise_multiplier < 2 * self.bit_std:
            raise UserError(
                f"[dp] adaptive: noise_multiplier {self.noise_multiplier:.4g} is not below {2 * self.bit_std:.4g}, "
                f"which is what the bits of {self.sites} sites alone get; ask more sites a round, or {mend}"
            )

    @property
    def bit_std(self) -> float:
        """s_b, standard deviation of the noise on the sum of the bits."""
        return self.sites / 20 if self.bit_noise is None else self.bit_noise

    @property
    def update_multiplier(self) -> float:
        """z_D = (z^-2 - (2 s_b)^-2)^(-1/2), for the updates (their theorem 1).

        A bit counts as +-1/2, so that a site moves their sum by 1/2, and its noise multiplier is 2 s_b. Two Gaussian
        releases of multipliers a and b at once are one of (a^-2 + b^-2)^(-1/2).
        """
        if not self.noise_multiplier:
            return 0.0
        return 1 / math.sqrt(self.noise_multiplier**-2 - (2 * self.bit_std) ** -2)

    @property
    def event(self) -> Event:
        """What a round costs, the bits included."""
        return Event(self.noise_multiplier, 1.0, 1)

    def mean_bit_std(self, sites: int) -> float:
        """Standard deviation of the noise on the mean of the bits of so many sites, with room for its rounding."""
        return self.bit_std * (1 + ROUNDED * sites) / sites

    def after(self, clip: float, mean_bit: float) -> float:
        """The next round's clip: C * exp(-learning_rate * (share below C - quantile)), their eq. in section 2.1.

        Args:
            clip: C of this round.
            mean_bit: noised mean of the bits.
        """
        moved = -self.learning_rate * (mean_bit + HALF - self.quantile)
        return min(max(clip * math.exp(moved), LEAST), MOST)


def bit(clipping: Clipping) -> float:
    """A site's bit as it is summed: 1/2 if its update was within the clip, else -1/2; never weighted."""
    return HALF if clipping.below else -HALF
