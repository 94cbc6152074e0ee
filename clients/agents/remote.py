"""A node and its ranks as the head sees them."""

import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from clients.agents.frames import Broken, had
from clients.workers.rank import Hear


class Send(Protocol):
    """Sends to an agent, from any thread; without a word, if it is gone."""

    def __call__(self, said: Mapping[str, Any], frame: bytes = b"") -> None:
        """Sends."""


class Node:
    """A node whose agent is here.

    Args:
        name: as the agent says.
        host: its address, for the other nodes.
        send: sends to its agent.
        drop: ends the connection, from any thread: the agent then ends its ranks.
        patience: seconds that its agent has to end ranks.
    """

    def __init__(self, name: str, host: str, send: Send, drop: Callable[[], None], patience: float) -> None:
        self.name, self.host, self.send, self.drop, self.patience = name, host, send, drop, patience
        self.here = True
        self._ranks: dict[tuple[int, int], RemoteRank] = {}  # by term and number
        self._one = threading.Lock()

    def start(self, number: int, local: int, of: int, term: int, hear: Hear) -> "RemoteRank":
        """Starts a rank there.

        Args:
            number: from 0.
            local: its number on the node.
            of: how many there will be on the node.
            term: of the generation, counted over the whole run.
            hear: gets what it says, and of its end.

        Raises:
            ConnectionError: the agent has gone.
        """
        rank = RemoteRank(number, local, self, term, hear)
        with self._one:
            if not self.here:
                raise ConnectionError(0, f"node {self.name} has gone")
            self._ranks[term, number] = rank
        self.send({"start": number, "local": local, "of": of, "term": term})
        return rank

    def heard(self, said: Mapping[str, Any], frame: bytes) -> None:
        """Takes what its agent says of a rank.

        Raises:
            Broken: it is nothing that an agent says.
        """
        key = had(said, "term", int), had(said, "rank", int)
        with self._one:
            rank = self._ranks.get(key)
        if rank is not None:  # else of one that was buried
            rank.heard(said, frame)

    def left(self) -> None:
        """Its agent is gone, and its ranks with it."""
        with self._one:
            self.here = False
            ranks, self._ranks = list(self._ranks.values()), {}
        for rank in ranks:
            rank.went()

    def forget(self, rank: "RemoteRank") -> None:
        """Hears no more of a rank."""
        with self._one:
            self._ranks.pop((rank.term, rank.number), None)


class RemoteRank:
    """A rank on another machine; see `clients.workers.ground.Rank`."""

    def __init__(self, number: int, local: int, node: Node, term: int, hear: Hear) -> None:
        self.number, self.local, self.node, self.term, self._hear = number, local, node, term, hear
        self.host, self.pid, self.hangs = node.host, 0, False
        self._gone = threading.Event()

    @property
    def alive(self) -> bool:
        """Whether nobody has said that it is gone."""
        return not self._gone.is_set()

    def excused(self, seconds: float) -> None:
        """Its agent judges whether it is silent, and the head's own connection whether the agent is."""

    def tell(self, order: Mapping[str, Any], frame: bytes = b"") -> None:
        """Gives an order, by way of its agent."""
        self.node.send({"tell": order, "rank": self.number, "term": self.term}, frame)

    def kill(self) -> None:
        """Ends all ranks of its term on its node: no use is made of one without the others."""
        self.node.send({"kill": self.term})

    def bury(self) -> None:
        """Waits until its agent has ended it; an agent that does not is let go, and ends it for that."""
        if not self._gone.wait(self.node.patience):
            self.node.drop()
            self._gone.wait(self.node.patience)
        self.node.forget(self)

    def heard(self, said: Mapping[str, Any], frame: bytes) -> None:
        """Takes what its agent says of it.

        Raises:
            Broken: it is nothing that an agent says.
        """
        if "pid" in said:
            self.pid = had(said, "pid", int)
        elif "hangs" in said:
            self.hangs = True
        elif "gone" in said:
            self.went()
        elif "said" in said:
            self._hear((self.number, (had(said, "said", dict), frame)))
        else:
            raise Broken(f"of rank {self.number}: {', '.join(said)}")

    def went(self) -> None:
        """It is gone."""
        if not self._gone.is_set():
            self._gone.set()
            self._hear((self.number, None))
