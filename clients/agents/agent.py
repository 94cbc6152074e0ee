"""A node's agent: connects out to the head, starts ranks when it is told to, and ends them when the head is gone.

Ranks die with the thread that starts them. All of this runs in that one: so they die with the agent, however it ends.
"""

import asyncio
import random
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from clients.agents.frames import VERSION, Broken, had
from clients.agents.keys import HEAD_NAME, agent_context
from clients.agents.machine import devices, interface
from clients.agents.talk import Talk, in_a_line
from clients.policy import admit
from clients.refusals import Refused
from clients.sitefile import SiteTrainingTable, load_site_file
from clients.workers.ground import environment
from clients.workers.rank import Event, LocalRank
from hansa.errors import RunFailed, UserError
from hansa.splice import Stream, keep_alive
from hansa.startup import SITE_FILE

CONNECT = 15.0  # seconds until a connection must stand
FIRST, LONGEST = 0.5, 5.0  # seconds between two attempts, doubled from the one to the other, and spread by half
LOOK = 0.2  # seconds between two looks at the ranks
FRESH = 10.0  # seconds in which a shared folder shows what another machine has just written there


@dataclass(frozen=True)
class Wanted:
    """What an agent was started for."""

    folder: Path  # the site's, as it is on this node
    head: tuple[str, int]  # host, port
    node: str
    key: str  # of the file in agents/
    address: str | None  # this node's, for the others; None: the one by which it reaches the head
    run: str | None  # the only one that it takes part in; None: any, one after the other
    patience: float | None  # seconds without a head after which it ends; None: it goes on


class Over(Exception):
    """The run is over."""


class Agent:
    """A node's agent.

    Args:
        wanted: what it was started for.
        say: writes a line of its log.
    """

    def __init__(self, wanted: Wanted, say: Callable[[str], None]) -> None:
        self.wanted, self._say = wanted, say
        self._ranks: dict[int, LocalRank] = {}
        self._hang: set[int] = set()  # of which it was told
        self._term, self._trouble = 0, ""

    async def serve(self) -> None:
        """Serves heads until it is cancelled, or there is no more use for it.

        Raises:
            RunFailed: no head came for too long.
        """
        seen, pause = time.monotonic(), FIRST
        while True:
            try:
                async with asyncio.timeout(CONNECT):
                    stream = await self._connect()
                try:
                    if await self._meet(stream):
                        pause = FIRST
                    seen = time.monotonic()
                finally:
                    stream.abort()
            except Over:
                if self.wanted.run is not None:
                    return
                seen, pause = time.monotonic(), FIRST
            except (UserError, Broken, OSError, EOFError) as error:
                self._tell(in_a_line(error))
            if self.wanted.patience is not None and time.monotonic() - seen > self.wanted.patience:
                raise RunFailed(f"node {self.wanted.node}: no head at {self._at} for {self.wanted.patience:g} s")
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, LONGEST)

    @property
    def _at(self) -> str:
        return ":".join(map(str, self.wanted.head))

    def _tell(self, trouble: str) -> None:
        """Says what is wrong, once."""
        if trouble != self._trouble:
            self._say(f"head {self._at}: {trouble}; trying on")
            self._trouble = trouble

    async def _connect(self) -> Stream:
        local = None if self.wanted.address is None else (self.wanted.address, 0)
        context = agent_context(self.wanted.folder, self.wanted.key, datetime.now(UTC))  # it may be a new one by now
        made = await asyncio.open_connection(
            *self.wanted.head, ssl=context, server_hostname=HEAD_NAME, local_addr=local
        )
        keep_alive(made[1].get_extra_info("socket"))
        return Stream(*made)

    async def _meet(self, stream: Stream) -> bool:
        """Takes part in a head's run until one of the two is over; whether it took part at all."""
        file = load_site_file(self.wanted.folder / SITE_FILE)
        talk = Talk(stream.reader, stream.writer, file.training.heartbeat)
        address = self.wanted.address or stream.writer.get_extra_info("sockname")[0]
        hello = {"hello": self.wanted.node, "address": address, "devices": devices(), "version": VERSION}
        talk.send(hello)
        try:
            told, _ = await talk.next()
        except EOFError:
            raise EOFError("it hung up without a word; its log says why: does it take this node's key?") from None
        with tempfile.TemporaryDirectory(prefix="hansa-app-") as scratch:
            app = Path(scratch) / "app"
            try:
                run = await self._accept(told, app)
            except (UserError, Refused) as refused:
                line = str(refused) if isinstance(refused, UserError) else refused.detail
                talk.send({"refused": line})
                self._tell(line)
                with suppress(EOFError):
                    await talk.next()  # it closes the connection when it has read that
                return False
            talk.send({"ready": True})
            self._say(f"node {self.wanted.node}: takes part in run {run}")
            self._trouble, talk.limit = "", had(told, "limit", float)
            look = asyncio.create_task(self._look(talk))
            try:
                async with talk.beating():
                    while True:
                        await self._obey(talk, app, *await talk.next(), training=file.training)
            except Over:
                self._say(f"node {self.wanted.node}: run {run} is over")
                raise
            finally:
                look.cancel()
                await self._end()

    async def _accept(self, told: Mapping[str, Any], app: Path) -> str:
        """Checks that the head's folder is ours, and that its app may run here; copies it.

        Raises:
            UserError, Refused: this node does not take part.
        """
        run, site = had(told, "run", str), self.wanted.folder
        if self.wanted.run not in (None, run):
            raise UserError(f"this agent is for run {self.wanted.run}, and not for {run}")
        mark, deadline = site / had(told, "mark", str), time.monotonic() + FRESH
        while not (mark.is_file() and mark.read_text() == had(told, "is", str)):
            if time.monotonic() > deadline:
                raise UserError(f"{mark} is not there as the head wrote it; all nodes must share the site's folder")
            await asyncio.sleep(LOOK)
        admit(site / had(told, "app", str), load_site_file(site / SITE_FILE).apps, app)
        return run

    async def _obey(
        self, talk: Talk, app: Path, said: dict[str, Any], frame: bytes, training: SiteTrainingTable
    ) -> None:
        if "over" in said:
            raise Over
        if "kill" in said:
            if had(said, "kill", int) >= self._term:
                await self._end(talk)
        elif "start" in said:
            await self._start(talk, said, training)
        elif "tell" in said:
            rank = self._ranks.get(had(said, "rank", int))
            if rank is not None and had(said, "term", int) == self._term:
                order = had(said, "tell", dict)
                if "app" in order:  # its first: what this node has is for this node to say
                    order |= {"app": str(app), "site": str(self.wanted.folder)}
                await asyncio.to_thread(rank.tell, order, frame)
        else:
            raise Broken(", ".join(said)[:200])

    async def _start(self, talk: Talk, said: Mapping[str, Any], training: SiteTrainingTable) -> None:
        number, local, term = (had(said, key, int) for key in ("start", "local", "term"))
        if term != self._term:
            await self._end(talk)
            self._term = term
        address = self.wanted.address or talk.writer.get_extra_info("sockname")[0]
        env = environment(training, had(said, "of", int))
        if (name := interface(address)) is not None:
            env |= {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}
        log = self.wanted.folder / "logs" / f"training-{self.wanted.node}.log"
        log.parent.mkdir(exist_ok=True)
        loop = asyncio.get_running_loop()

        def hear(event: Event) -> None:
            loop.call_soon_threadsafe(self._heard, talk, term, event)

        try:
            rank = LocalRank(number, local, address, log, env, talk.limit, hear)
        except OSError as error:
            self._say(f"rank {number} cannot be started: {error.strerror}")
            talk.send({"rank": number, "term": term, "gone": True})
            return
        self._ranks[number] = rank
        talk.send({"rank": number, "term": term, "pid": rank.pid})

    def _heard(self, talk: Talk, term: int, event: Event) -> None:
        """Passes on what a rank says."""
        number, answer = event
        if term != self._term or number not in self._ranks:
            return
        if answer is None:
            talk.send({"rank": number, "term": term, "gone": True})
        else:
            talk.send({"rank": number, "term": term, "said": answer[0]}, answer[1])

    async def _look(self, talk: Talk) -> None:
        """Tells of ranks that have died or hang."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(LOOK)
            late = time.monotonic() - before - LOOK
            for number, rank in list(self._ranks.items()):
                if late > LOOK:
                    rank.excused(late)
                if not rank.alive:
                    talk.send({"rank": number, "term": self._term, "gone": True})
                elif rank.hangs and number not in self._hang:
                    self._hang.add(number)
                    talk.send({"rank": number, "term": self._term, "hangs": True})

    async def _end(self, talk: Talk | None = None) -> None:
        """Ends all ranks, whatever they do, and tells of it."""
        ranks, self._ranks, self._hang = self._ranks, {}, set()
        for rank in ranks.values():
            rank.kill()
        for number, rank in ranks.items():
            await asyncio.to_thread(rank.bury)
            if talk is not None:
                talk.send({"rank": number, "term": self._term, "gone": True})


def serve(wanted: Wanted, say: Callable[[str], None]) -> None:
    """Serves as an agent until a signal stops it, or there is no more use for it.

    Raises:
        UserError: its key or site.toml is not in order.
        RunFailed: no head came for too long.
    """

    async def until_told() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, task.cancel)
        await agent.serve()

    load_site_file(wanted.folder / SITE_FILE)
    agent_context(wanted.folder, wanted.key, datetime.now(UTC))
    agent = Agent(wanted, say)
    say(f"node {wanted.node}: an agent for the head at {':'.join(map(str, wanted.head))}; Ctrl-C stops it")
    try:
        asyncio.run(until_told())
    except asyncio.CancelledError:
        say(f"node {wanted.node}: stopped")
    else:
        say(f"node {wanted.node}: done")
