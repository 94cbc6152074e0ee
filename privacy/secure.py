"""A run under secure aggregation: what [privacy] means for a strategy's uploads, and the terms of each attempt."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hansa.errors import UserError
from hansa.records import Part, Plan
from privacy.config import TUNE, PrivacyTable
from privacy.secagg.ring import Segment, most_levels
from privacy.secagg.terms import Scalars, Terms, threshold

COUNTERS = "counters"  # the sum of the integer buffers; metric sums have a slash in their names


@dataclass(frozen=True)
class Secure:
    """How the updates of a run are summed.

    Args:
        table: [privacy].
        parts: the vectors of a train plan's uploads, as the strategy declares them.
        counters: integers in the model's integer buffers.

    Raises:
        UserError: what [privacy] says of the parts is not enough, or too much.
    """

    table: PrivacyTable
    parts: Mapping[str, Part]
    counters: int

    def __post_init__(self) -> None:
        if problems := [f"[privacy] {problem}" for problem in self._problems()]:
            raise UserError(*problems)

    def threshold(self, asked: int) -> int:
        """Answers of so many sites without which no sum is opened."""
        return max(self.table.threshold or 0, threshold(asked))

    def terms(
        self,
        plan: Plan,
        asked: Sequence[str],
        scalars: Iterable[Scalars],
        *,
        epoch: int = 0,
        attempt: int = 0,
        roster: bytes = bytes(32),
        model: bytes = bytes(32),
    ) -> Terms:
        """The terms of an attempt; a simulation has one attempt a round, no roster, and one model for all.

        Args:
            plan: of the round.
            asked: the sites that got it.
            scalars: its metric sums, without the counters.
            epoch: of the server's start.
            attempt: at the round, from 1.
            roster: its digest.
            model: SHA-256 of what the plan broadcasts.

        Raises:
            UserError: no rounding of so many sites' updates fits the ring.
        """
        train, bits = plan.kind == "train", self.table.ring_bits
        return Terms(
            plan.run,
            purpose(plan),
            epoch,
            plan.round,
            attempt,
            roster,
            tuple(sorted(asked)),
            self.threshold(len(asked)),
            model,
            self.table.max_weight or 1,
            bits,
            tuple(self._segment(*one, len(asked), bits) for one in self.parts.items()) if train else (),
            (*([Scalars(COUNTERS, self.counters)] if train and self.counters else []), *scalars),
        )

    def _segment(self, name: str, part: Part, sites: int, bits: int) -> Segment:
        bound = self.table.bound(name)
        assert bound is not None  # _problems has seen to it
        return Segment(name, part.size, part.weight, bound, most_levels(sites, part.weight, bits) or 1)

    def _problems(self) -> Iterator[str]:
        clip, names = self.table.clip, ", ".join(self.parts)
        if missing := [repr(name) for name in self.parts if self.table.bound(name) is None]:
            yield f"clip: a bound of {' and '.join(missing)} is missing, which secure sums need: {TUNE} finds it"
        for name in clip if isinstance(clip, Mapping) else ():
            if name not in self.parts:
                yield f"clip: the strategy uploads no part {name!r}, but {names}; remove it"
        if self.table.max_weight is None and any(part.weight == "examples" for part in self.parts.values()):
            yield f"max_weight is missing, and sites weigh by their rows, up to a most that all know: {TUNE} finds it"


def purpose(plan: Plan) -> str:
    """What a round is for: each has rounds of its own."""
    return f"{plan.kind}-{plan.split}"
