"""A part of a round's sum on its way from one worker to where the round is: arrays of NumPy's, which move uncopied."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from hansa.records import Plan, Reply
from server.cohort import Collector

Arrays = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class Partial:
    """What some of the sites asked come to: never one site's update."""

    vectors: Arrays  # the running sums, whole numbers
    counters: npt.NDArray[np.int64] | None
    examples: dict[str, int]  # by site, as is all that follows
    memory: dict[str, str]
    dropped: dict[str, str]
    metrics: dict[str, Arrays]  # name -> site -> sums in fixed point
    warnings: list[str]
    own: dict[str, tuple[int, Arrays]] = field(default_factory=dict)  # rows and metric sums for each site's own report


class Own:
    """Hears each site's own answer where it works, and keeps what its report is made of."""

    def __init__(self) -> None:
        self.heard: dict[str, tuple[int, Arrays]] = {}

    def __call__(self, plan: Plan, reply: Reply) -> None:
        """Keeps rows and metric sums."""
        self.heard[reply.site] = reply.examples, {name: one.numpy() for name, one in reply.sums.items()}

    def taken(self) -> dict[str, tuple[int, Arrays]]:
        """What was heard since the last time."""
        heard, self.heard = self.heard, {}
        return heard


def partial(collector: Collector, own: dict[str, tuple[int, Arrays]]) -> Partial:
    """What a worker's collector holds."""
    return Partial(
        collector.vectors,
        None if collector.counters is None else collector.counters.numpy(),
        collector.examples,
        collector.memory,
        collector.dropped,
        {name: {site: one.numpy() for site, one in by_site.items()} for name, by_site in collector.metrics.items()},
        collector.warnings,
        own,
    )


def merge(into: Collector, one: Partial) -> None:
    """Adds what a worker has summed up; the order of workers changes nothing."""
    for name, vector in into.vectors.items():
        vector += one.vectors[name]
    if one.counters is not None:
        theirs, mine = torch.from_numpy(np.array(one.counters)), into.counters
        into.counters = theirs if mine is None else torch.maximum(mine, theirs)
    into.examples |= one.examples
    into.memory |= one.memory
    into.dropped |= one.dropped
    for name, by_site in one.metrics.items():
        into.metrics.setdefault(name, {}).update({s: torch.from_numpy(np.array(x)) for s, x in by_site.items()})
    into.warnings += one.warnings


def replies(one: Partial) -> list[Reply]:
    """Each site's own answer, without its vectors."""
    return [
        Reply(site, rows, sums={name: torch.from_numpy(np.array(x)) for name, x in sums.items()})
        for site, (rows, sums) in one.own.items()
    ]
