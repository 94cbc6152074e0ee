"""What a site has to do in a round, and how sites are put together into chunks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from clients.batches import Batches
from clients.site import Begun, SiteHalf
from hansa.records import Plan


@dataclass(frozen=True)
class Work:
    """One site and its plan, which differs from others' where it is a straggler."""

    half: SiteHalf
    plan: Plan
    begun: Begun

    @cached_property
    def batches(self) -> Batches:
        """Those that the site would see alone."""
        return self.half.batches(self.plan, self.begun.train)

    @property
    def steps(self) -> int:
        """Of local training."""
        return self.batches.steps


def dealt(works: Sequence[Work], most: int, alike: Callable[[Work], object]) -> list[list[Work]]:
    """Chunks of at most `most` sites that are alike, as even as can be; in each, those with most steps come first.

    Neither threads nor workers come in, so that no bit depends on them.
    """
    groups: dict[object, list[Work]] = {}
    for work in works:
        groups.setdefault(alike(work), []).append(work)
    chunks = []
    for group in groups.values():
        group.sort(key=lambda work: (-work.steps, work.half.site.name))
        number = -(-len(group) // most)
        cuts = [len(group) * i // number for i in range(number + 1)]
        chunks += [group[start:stop] for start, stop in pairwise(cuts)]
    return chunks
