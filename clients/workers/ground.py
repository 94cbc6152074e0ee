"""Where a group's ranks run: on this machine, or on the site's nodes (`clients.agents`)."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from clients.parallel.config import LOOPBACK
from clients.sitefile import SiteTrainingTable
from clients.workers.rank import Hear, LocalRank
from hansa.wire.link_pb2 import Waiting


class Rank(Protocol):
    """A rank as the group sees it, wherever its process is."""

    @property
    def number(self) -> int:
        """From 0."""

    @property
    def local(self) -> int:
        """Its number among those of its machine, from 0."""

    @property
    def host(self) -> str:
        """The address at which its machine reaches the others of the group."""

    @property
    def pid(self) -> int:
        """Its process, on its machine."""

    @property
    def alive(self) -> bool:
        """Whether its process runs, if only stopped."""

    @property
    def hangs(self) -> bool:
        """Whether it is silent although it lives; to be asked often."""

    def excused(self, seconds: float) -> None:
        """This process was held up for so long, and heard nothing."""

    def tell(self, order: Mapping[str, Any], frame: bytes = b"") -> None:
        """Gives an order; one that is gone, or takes nothing, is found by its silence."""

    def kill(self) -> None:
        """Ends it and what it has started, at once; from any thread."""

    def bury(self) -> None:
        """Waits for the end of one that was killed or has ended, and frees what it held."""


class Ground(Protocol):
    """What a group's ranks run on. It is there for a whole run, and outlives the groups on it."""

    def gather(self, cancelled: Callable[[], bool]) -> int:
        """Waits for the machines, as long as is worth it; how many ranks the next generation is to have.

        Raises:
            ChildFailed: there are too few machines.
        """

    def more(self, world: int) -> bool:
        """Whether there is room for more ranks than so many."""

    @property
    def waits(self) -> Waiting | None:
        """What `gather` waits for, for the server to know; None: nothing that takes long."""

    def leave(self) -> None:
        """Waits for no machines any more, now and later: the run is over. From any thread."""

    def start(self, number: int, hear: Hear) -> Rank:
        """Starts a rank of the generation that was gathered for; from the thread with which local ones are to die.

        Raises:
            OSError: it cannot be started.
        """


class Here:
    """This machine.

    Args:
        log: the file that gets what the ranks write.
        training: how many ranks, and for how long they may be silent.
    """

    def __init__(self, log: Path, training: SiteTrainingTable) -> None:
        self.log, self.training, self.waits = log, training, None

    def leave(self) -> None:
        """See Ground."""

    def gather(self, cancelled: Callable[[], bool]) -> int:
        """See Ground."""
        return self.training.procs

    def more(self, world: int) -> bool:
        """See Ground."""
        return world < self.training.procs

    def start(self, number: int, hear: Hear) -> Rank:
        """See Ground."""
        env = environment(self.training, self.training.procs)
        return LocalRank(number, number, LOOPBACK, self.log, env, self.training.heartbeat, hear)


def environment(training: SiteTrainingTable, procs: int) -> dict[str, str]:
    """Variables of each of so many ranks of a machine: they share its cores, which libraries must know early."""
    share = max(1, len(os.sched_getaffinity(0)) // procs)
    quiet = {"TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR")}  # DDP's remarks on our choices
    return quiet if training.procs == 1 else {**quiet, "OMP_NUM_THREADS": str(training.threads or share)}
