"""Privacy of a whole site: each update is clipped as one vector, and the sum of all is noised (McMahan et al. 2018).

Two inputs are neighbours if one of the sites that took part gave zeros in place of what it had. Who took part, and what
the sites weigh, is public. Integer buffers are outside: a site sends back those that it got.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from hansa.layout import chunks
from hansa.records import Upload
from privacy.dp.mechanism import Event
from privacy.dp.randomness import Stream
from privacy.secagg.ring import Segment

PIECE = 1 << 16  # floats at once: their float64 stay in the cache
MARGIN = 1 - 2.0**-20  # of the clip, so that what is rounded to float32 is within it too
ROUNDED = 2.0**-22  # a mean's rounding to float32, twice, over its norm; 2^-23 would do
COARSER = 1 + 2.0**-20  # what the float64 before a secure sum's rounding add: 2^-22 of a level at most
PLAIN_STEPS = {"examples": 2.0**-33, "uniform": 2.0**-45}  # what `privacy.fixed_point` is off by, by kind of weight


@dataclass(frozen=True)
class Clipping:
    """What is done to one site's update.

    Args:
        norm: L2 norm of all its parts together; not finite where a value is not.
        clip: the norm that it may have.
    """

    norm: float
    clip: float

    @property
    def below(self) -> bool:
        """Whether the norm is within the clip; the bit of adaptive clipping."""
        return self.norm <= self.clip

    @property
    def factor(self) -> float:
        """By which each value is multiplied; 0 for an update that is not finite."""
        if not math.isfinite(self.norm):
            return 0.0
        most = self.clip * MARGIN
        return 1.0 if self.norm <= most else most / self.norm

    @property
    def remark(self) -> str | None:
        """For the site's own log; the server is not told, for it would be told of the data."""
        return None if math.isfinite(self.norm) else "the update is not finite; zeros were sent in its place"

    def apply(self, part: Tensor) -> None:
        """Clips a part, or a piece of one, in place."""
        if not self.factor:
            part.zero_()  # NaN times 0 is NaN
        elif self.factor < 1:
            for piece in chunks(len(part), PIECE):
                part[piece] = part[piece].double().mul_(self.factor)


def measured(pieces: Iterable[Tensor], clip: float) -> Clipping:
    """The first pass over an update that comes in pieces; the second is `Clipping.apply` on each.

    Args:
        pieces: float32 vectors, of all parts, each value once.
        clip: L2 norm.
    """
    # The square of a finite float32 fits float64, so the sum is finite only if all values are.
    squares = (float(piece[at].double().square().sum()) for piece in pieces for at in chunks(len(piece), PIECE))
    return Clipping(math.sqrt(math.fsum(squares)), clip)


def clipped(upload: Upload, clip: float) -> Clipping:
    """Clips all parts of an upload as one vector, in place."""
    clipping = measured(upload.values(), clip)
    for part in upload.values():
        clipping.apply(part)
    return clipping


@dataclass(frozen=True)
class Grid:
    """How a part is rounded before it is summed: a value is off by at most `step`, and zero stays zero."""

    size: int  # values
    step: float  # in what is summed, a weighted value

    @classmethod
    def of(cls, part: Segment, one: int = 1) -> Self:
        """Of a part of a secure sum: a weighted value goes up or down to a whole number of bound / levels.

        Args:
            part: of the sum.
            one: the weight in the sum that `SiteSum.weights` count as 1.
        """
        return cls(part.size, part.bound / part.levels / one * COARSER)


@dataclass(frozen=True)
class SiteSum:
    """Gaussian noise on the sum of clipped updates, in one round.

    Args:
        clip: L2 norm of each, by which they were clipped in this round.
        noise_multiplier: standard deviation of the noise over the sum's sensitivity.
        weights: of the sites that took part, by site: public whole numbers, not what the data say, as they are summed
            (1 each; in a secure sum the levels that `privacy.secagg.quantise.weight_level` makes of them).
        grids: how the parts are rounded.
    """

    clip: float
    noise_multiplier: float
    weights: Mapping[str, int]
    grids: tuple[Grid, ...] = ()

    @property
    def weight(self) -> int:
        """Of all sites together."""
        return sum(self.weights.values())

    @property
    def stretch(self) -> float:
        """By how much rounding may lengthen one site's weighted update: d values by a step each, so sqrt(d) steps."""
        return math.sqrt(sum(grid.size * grid.step**2 for grid in self.grids))

    @property
    def sensitivity(self) -> float:
        """L2 distance between the sums of two neighbours: what one site adds, and the rounding of their means."""
        longest = self.clip + self.stretch  # of a mean, whatever the weights
        return max(self.weights.values()) * self.clip + self.stretch + ROUNDED * self.weight * longest

    @property
    def std(self) -> float:
        """Standard deviation of the noise on each coordinate of the sum."""
        return self.noise_multiplier * self.sensitivity

    @property
    def event(self) -> Event:
        """What a round costs. Sites that the server draws are not drawn in secret: nothing is gained by it."""
        return Event(self.noise_multiplier, 1.0, 1)

    def noised(self, mean: Mapping[str, Tensor], stream: Stream) -> dict[str, Tensor]:
        """The means of the parts with the noise of their sum, [size] float32.

        Args:
            mean: of each part over the sites, weighted by `weights`.
            stream: of a key that has noised nothing else.
        """
        means = {name: part.clone() for name, part in sorted(mean.items())}
        for part in means.values():
            stream.normal(part, self.std / self.weight)
        return means
