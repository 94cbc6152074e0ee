"""What the server learns from an attempt: sums over the sites that took part."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.secagg.errors import Refused
from privacy.secagg.keystream import Words
from privacy.secagg.packing import signed
from privacy.secagg.quantise import factor
from privacy.secagg.ring import WEIGHT_LEVELS, Segment
from privacy.secagg.terms import Terms

STEP = 1 << 16  # values made floats at once


@dataclass(frozen=True)
class Total:
    """The sum, without masks.

    Raises:
        Refused: it cannot be a sum of updates that are within their bounds.
    """

    terms: Terms
    sites: tuple[str, ...]  # whose updates are in it
    words: Words = field(repr=False)
    scalars: NDArray[np.uint64] = field(repr=False)

    def __post_init__(self) -> None:
        n = self.present
        possible = 0 <= n <= len(self.sites) and self.rows >= 0
        if possible and self.terms.parts:
            counts = zip(self._scalar("clipped").tolist(), self.terms.parts, strict=True)
            weighed = 0 <= self.weight <= n * WEIGHT_LEVELS and 0 <= self.heavy <= n
            possible = weighed and all(0 <= count <= n * part.size for count, part in counts)
        if not possible:
            raise self._impossible("weights")

    @property
    def absent(self) -> int:
        """Sites that gave nothing. Nobody knows which."""
        return int(self._scalar("absent")[0])

    @property
    def present(self) -> int:
        """Sites that gave something."""
        return len(self.sites) - self.absent

    @property
    def rows(self) -> int:
        """Rows of all these sites."""
        return int(self._scalar("rows")[0])

    @property
    def weight(self) -> int:
        """The sum of the sites' weights, in levels."""
        return int(self._scalar("weight")[0])

    @property
    def heavy(self) -> int:
        """Sites that have more rows than count."""
        return int(self._scalar("heavy")[0])

    @property
    def weight_error(self) -> float:
        """By which share the weights are off the rows in all: by rounding up, and by sites that are heavy."""
        return self.weight * self.terms.rows / WEIGHT_LEVELS / self.rows - 1 if self.rows else 0.0

    @property
    def clipped(self) -> Mapping[str, float]:
        """Which share of the values was beyond the bound, by part."""
        found = self._scalar("clipped").tolist() if self.terms.parts else []
        counts = zip(self.terms.parts, found, strict=True)
        return {part.name: count / (part.size * self.present) if count else 0.0 for part, count in counts}

    @cached_property
    def sums(self) -> Mapping[str, NDArray[np.int64]]:
        """Metric sums in fixed point, by name."""
        return {scalar.name: self._scalar(f"sum {scalar.name}") for scalar in self.terms.scalars}

    def mean(self, name: str) -> NDArray[np.float32]:
        """The mean of a part over the sites, [size] float32.

        Raises:
            Refused: the sum is beyond what the sites can have sent, or their weights are 0.
        """
        part = next(part for part in self.terms.parts if part.name == name)
        weight = self.weight if part.weight == "examples" else self.present
        if not weight:
            raise Refused("unmask", None, "the sites' weights are all 0")
        words, result = self.words[self.terms.places[name]], np.empty(part.size, np.float32)
        for start in range(0, part.size, STEP):
            values = signed(words[start : start + STEP], self.terms.bits)
            self._check(values, part, weight)
            result[start : start + STEP] = values / (factor(part, 1) * weight)
        return result

    def _check(self, values: NDArray[np.signedinteger[Any]], part: Segment, weight: int) -> None:
        if max(int(values.max()), -int(values.min())) > weight * part.levels:
            raise self._impossible(f"values of part {part.name!r}")

    def _scalar(self, name: str) -> NDArray[np.int64]:
        return self.scalars[self.terms.scalar_places[name]].view(np.int64)

    def _impossible(self, what: str) -> Refused:
        return Refused("unmask", None, f"a sum of {what} that no updates within their bounds have; a site sent another")
