"""Which run holds which of the sites' nodes: Flower runs one task at a time on a node, and a session lasts a whole run.

A run notes in its folder which nodes it holds, and which sites it lacks. Runs have turns: none takes a node that one of
an earlier turn may want. Two runs that each hold what the other lacks would otherwise wait for each other for ever.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from hansa.files import write_atomically
from hansa.processes import only_one
from server.launch import wanted

HOLDING, LOCK = "nodes.json", ".nodes.lock"
PATIENCE = 10.0  # seconds that a run waits for another one that chooses, which takes milliseconds


@dataclass(frozen=True)
class Holding:
    """What a run has of the sites, and what it lacks."""

    turn: int  # later than that of every run that went on when this one first asked
    nodes: Mapping[str, int] = field(default_factory=dict)  # site -> Flower's id of the node that it holds
    lacks: Sequence[str] = ()  # sites that it holds no node of


@dataclass(frozen=True)
class Chosen:
    """What a run may take now."""

    nodes: Mapping[str, int]  # site -> node to be invited
    busy: Mapping[str, Sequence[str]]  # site that can be reached -> the runs that it is busy with


def choose(own: Holding, online: Mapping[str, Sequence[int]], others: Mapping[str, Holding]) -> Chosen:
    """Chooses nodes of the sites that a run lacks.

    Args:
        own: the run's; a site that it lacks may stand in `nodes` too, by the node that it had before.
        online: site -> its nodes that can be reached.
        others: the other runs that go on, by name.
    """
    nodes, busy = dict[str, int](), dict[str, Sequence[str]]()
    for site in own.lacks:
        holders = {other.nodes[site]: run for run, other in others.items() if site in other.nodes}
        first = [run for run, other in others.items() if site in other.lacks and other.turn < own.turn]
        there = online.get(site, ())
        free = sorted(node for node in there if node not in holders)
        if len(free) > len(first):
            nodes[site] = own.nodes[site] if own.nodes.get(site) in free else free[0]
        elif there:
            busy[site] = sorted({*first, *(run for node, run in holders.items() if node in there)})
    return Chosen(nodes, busy)


class Nodes:
    """The nodes that one run holds.

    Args:
        run: the run's folder; what an earlier start of it held is what this one holds.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self._noted = read_holding(run)

    def look(self, here: Collection[str], lacks: Collection[str], online: Mapping[str, Sequence[int]]) -> Chosen:
        """Lets go of nodes that are not needed any more, and takes those that are free.

        Args:
            here: sites in a session or invited.
            lacks: sites that are to be invited.
            online: site -> its nodes that can be reached.

        Raises:
            UserError: another run does not come to an end of choosing.
        """
        if not lacks and self._noted is not None and not self._noted.lacks and self._noted.nodes.keys() == {*here}:
            return Chosen({}, {})
        with only_one(self.run.parent / LOCK, "another run is choosing nodes; trying on", PATIENCE):
            others = {run: held for run, held in holdings(self.run.parent) if run != self.run.name}
            before = self._noted or Holding(1 + max((other.turn for other in others.values()), default=0))
            chosen = choose(replace(before, lacks=sorted(lacks)), online, others)
            nodes = {site: node for site, node in before.nodes.items() if site in here} | dict(chosen.nodes)
            self._note(Holding(before.turn, nodes, sorted({*lacks} - nodes.keys())))
        return chosen

    def release(self) -> None:
        """Holds nothing any more."""
        forget(self.run)

    def _note(self, holding: Holding) -> None:
        if holding != self._noted:
            write_atomically(self.run / HOLDING, json.dumps(asdict(holding)).encode())
            self._noted = holding


def read_holding(run: Path) -> Holding | None:
    """What a run has noted in its folder."""
    with suppress(OSError, ValueError, TypeError):
        return Holding(**json.loads((run / HOLDING).read_bytes()))
    return None


def forget(run: Path) -> None:
    """Takes the note away: a run that is begun again gets a new turn."""
    (run / HOLDING).unlink(missing_ok=True)


def holdings(runs: Path) -> Iterator[tuple[str, Holding]]:
    """What the runs of a folder hold that go on: also one whose process has just died, for which its sites wait."""
    for run, _ in wanted(runs):
        if (holding := read_holding(runs / run)) is not None:
            yield run, holding


def in_words(runs: Sequence[str]) -> str:
    """Runs as a sentence names them."""
    return f"run {runs[0]}" if len(runs) == 1 else f"runs {', '.join(runs[:-1])} and {runs[-1]}"
