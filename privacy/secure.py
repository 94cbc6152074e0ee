"""A run under secure aggregation: what [privacy] means for a strategy's uploads, and the terms of each attempt."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hansa.errors import UserError
from hansa.records import Part, Plan
from privacy.config import TUNE, PrivacyTable
from privacy.secagg.ring import Segment, check_fit, most_levels
from privacy.secagg.terms import Scalars, Terms

COUNTERS = "counters"  # the sum of the integer buffers; metric sums have a slash in their names


@dataclass(frozen=True)
class Secure:
    """How the updates of a run are summed.

    Args:
        table: [privacy].
        parts: the vectors of a train plan's uploads, as the strategy declares them.
        counters: integers in the model's integer buffers.
        remembers: whether the strategy keeps memory at the sites.

    Raises:
        UserError: what [privacy] says of the parts is not enough, or too much.
    """

    table: PrivacyTable
    parts: Mapping[str, Part]
    counters: int
    remembers: bool = False  # whether the strategy keeps memory at the sites, from which they start

    def __post_init__(self) -> None:
        if problems := [f"[privacy] {problem}" for problem in self._problems()]:
            raise UserError(*problems)

    def threshold(self, asked: int) -> int:
        """Answers of so many sites without which no sum is opened."""
        return self.table.least(asked)

    def check(self, asked: int) -> None:
        """Raises UserError if the ring has no room for the sum over so many sites."""
        for name, part in self.parts.items():
            check_fit(segment_of(self.table, name, part, asked), asked, self.table.ring_bits)

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
        train, sites = plan.kind == "train", tuple(sorted(asked))
        starts = tuple(plan.memory.get(site, "") for site in sites)
        return Terms(
            plan.run,
            purpose(plan),
            epoch,
            plan.round,
            attempt,
            roster,
            sites,
            self.threshold(len(asked)),
            model,
            self.table.max_weight or 1,
            self.table.ring_bits,
            tuple(segment_of(self.table, *one, len(asked)) for one in self.parts.items()) if train else (),
            (*([Scalars(COUNTERS, self.counters)] if train and self.counters else []), *scalars),
            starts if any(starts) else (),
        )

    def _problems(self) -> Iterator[str]:
        clip, names = self.table.clip, ", ".join(self.parts)
        weighs = any(part.weight == "examples" for part in self.parts.values()) and self.table.max_weight is None
        if clip is None:
            yield f"clip{' and max_weight are' if weighs else ' is'} not set, and nobody can guess: run {TUNE}"
            return
        if missing := [repr(name) for name in self.parts if self.table.bound(name) is None]:
            yield f"clip: says nothing of {' and '.join(missing)}, which the strategy uploads; run {TUNE}"
        for name in clip if isinstance(clip, Mapping) else ():
            if name not in self.parts:
                yield f"clip: the strategy uploads no part {name!r}, but {names}; remove it"
        if weighs:
            yield f"max_weight is not set: the rows from which a site weighs no more; run {TUNE}"


def segment_of(table: PrivacyTable, name: str, part: Part, sites: int) -> Segment:
    """How a part becomes whole numbers in a sum over so many sites; [privacy] must have a bound for it."""
    bound = table.bound(name)
    assert bound is not None
    return Segment(name, part.size, part.weight, bound, most_levels(sites, part.weight, table.ring_bits) or 1)


def purpose(plan: Plan) -> str:
    """What a round is for: each has rounds of its own."""
    return f"{plan.kind}-{plan.split}"
