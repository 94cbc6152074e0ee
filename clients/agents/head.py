"""The head: takes a site's agents in, and starts the group's ranks through them.

It listens in a thread of its own for the whole run. A node is here when its agent has shown a certificate of the site's
own authority, and has found the site's folder and an app that it allows.
"""

import asyncio
import contextlib
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from clients.agents.frames import VERSION, Broken, had
from clients.agents.keys import admitted, head_context
from clients.agents.remote import Node, RemoteRank, Send
from clients.agents.talk import Talk, in_a_line
from clients.child import ChildFailed
from clients.failures import Failure
from clients.sitefile import SiteTrainingTable
from clients.workers.rank import Hear
from hansa.address import as_ip, join
from hansa.errors import UserError, reason
from hansa.files import write_atomically
from hansa.identity import fingerprint_of_der
from hansa.splice import Stream, keep_alive
from hansa.tables import is_name

HANDSHAKE = 10.0  # seconds
STRANGERS = 32  # connections at once that have not yet shown who they are
LOOK = 0.1  # seconds between two looks at whether nodes are still waited for


class Head:
    """A site's head in one run; see `clients.workers.ground.Ground`.

    Args:
        folder: the site's, which all nodes have.
        app: the folder of the admitted app.
        run: the run's id.
        spool: the run's folder, in the site's.
        training: how many nodes and ranks, and for how long they may be silent.
        listen: host and port for the agents; port 0: the system chooses.
        say: writes a line to the site's log, from any thread.

    Raises:
        UserError: it cannot listen there, or the site has no agents' keys.
    """

    def __init__(
        self,
        folder: Path,
        app: Path,
        run: str,
        spool: Path,
        training: SiteTrainingTable,
        listen: tuple[str, int],
        say: Callable[[str], None],
    ) -> None:
        self.training, self._folder, self._run, self._say = training, folder, run, say
        self._context = head_context(folder, datetime.now(UTC))
        self._app, self._mark = spool / "app", (spool / "mark", secrets.token_hex(16))
        self._spool, self._from = spool, app
        self._nodes: dict[str, Node] = {}
        self._changed = threading.Condition()
        self._chosen: list[Node] = []
        self._term, self._strangers = 0, 0
        self.waits, self._over = None, threading.Event()
        try:
            family = socket.AF_INET6 if ":" in listen[0] else socket.AF_INET
            self._end = socket.create_server(listen, family=family)
        except OSError as error:
            where = join(*listen)
            raise UserError(
                f"site.toml [training] listen: {where}: {reason(error)}; has another run got it?"
            ) from error
        self.address = join(listen[0], self._end.getsockname()[1])
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="head", daemon=True)

    def __enter__(self) -> Self:
        self._spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.rmtree(self._app, ignore_errors=True)
        shutil.copytree(self._from, self._app)
        write_atomically(self._mark[0], self._mark[1].encode())
        self._serving = self._loop.create_task(self._listen())  # before the thread: the end may come at once
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Tells the agents that the run is over: they end their ranks, and wait for the next."""
        self._loop.call_soon_threadsafe(self._serving.cancel)
        self._thread.join()

    def wait(self, nodes: int, within: float, cancelled: Callable[[], bool]) -> int:
        """Waits until so many nodes are here; how many are, fewer if the time is over or the wait was cancelled.

        Args:
            nodes: how many.
            within: seconds.
            cancelled: asked again and again.
        """
        deadline = time.monotonic() + within
        with self._changed:
            while len(self._nodes) < nodes and time.monotonic() < deadline and not (self._over.is_set() or cancelled()):
                self._changed.wait(LOOK)
            return len(self._nodes)

    def gather(self, cancelled: Callable[[], bool]) -> int:
        """See Ground: waits for nodes that are missing, then goes on with those that are there."""
        self.wait(self.training.nodes, self.training.node_wait, cancelled)
        if cancelled():
            return 0
        if self._over.is_set():
            raise ChildFailed(Failure.NODES)
        return self.take()

    def take(self) -> int:
        """Takes the nodes that are here for the next generation; how many ranks it is to have.

        Raises:
            ChildFailed: there are too few.
        """
        with self._changed:
            here = [self._nodes[name] for name in sorted(self._nodes)]
        self._chosen, self._term = here[: self.training.nodes], self._term + 1
        world = self._room(len(self._chosen))
        if len(self._chosen) < self.training.nodes:
            found = ", ".join(node.name for node in self._chosen) or "none"
            of, wait = self.training.nodes, self.training.node_wait
            self._say(f"nodes: {len(self._chosen)} of {of} within {wait:g} s: {found}")
        if not world:
            raise ChildFailed(Failure.NODES)
        return world

    def leave(self) -> None:
        """See Ground."""
        self._over.set()

    def more(self, world: int) -> bool:
        """See Ground."""
        with self._changed:
            return self._room(min(len(self._nodes), self.training.nodes)) > world

    def start(self, number: int, hear: Hear) -> RemoteRank:
        """See Ground: ranks follow the nodes, whose order is that of their names."""
        node = self._chosen[number // (of := self._each)]
        return node.start(number, number % of, of, self._term, hear)

    @property
    def _each(self) -> int:
        return self.training.procs // self.training.nodes

    def _room(self, nodes: int) -> int:
        """How many ranks so many nodes make; 0, if the model cannot be spread over them."""
        world, named = nodes * self._each, self.training.parallel
        return 0 if named is not None and world % named.tp else world

    def _serve(self) -> None:
        with self._end, contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serving)
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    async def _listen(self) -> None:
        self._end.setblocking(False)
        async with asyncio.TaskGroup() as tasks:
            while True:
                try:
                    end, (peer, *_) = await self._loop.sock_accept(self._end)
                except OSError as error:  # too many files are open
                    self._say(f"agents: {reason(error)}")
                    await asyncio.sleep(1.0)
                    continue
                if self._strangers < STRANGERS:
                    self._strangers += 1
                    tasks.create_task(self._take(end, peer))
                else:
                    end.close()

    async def _take(self, end: socket.socket, peer: str) -> None:
        """Serves a connection to its end."""
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        known = False
        try:
            keep_alive(end)
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: protocol, end, ssl=self._context, ssl_handshake_timeout=HANDSHAKE
            )
            writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
            try:
                talk = Talk(reader, writer, self.training.heartbeat)
                node = await self._meet(talk, peer)
                self._strangers, known = self._strangers - 1, True
                await self._follow(node, talk)
            except asyncio.CancelledError:
                talk.send({"over": True})
                await Stream(reader, writer).close()
                raise
            finally:
                transport.abort()
        except Turned as turned:
            self._say(f"agents: {peer} was turned away: {turned}")
        except (Broken, OSError, EOFError) as error:
            if not known:
                self._say(f"agents: {peer} was turned away: {in_a_line(error)}")
        finally:
            self._strangers -= not known

    async def _meet(self, talk: Talk, peer: str) -> Node:
        """Lets an agent in.

        Raises:
            Turned: not that one.
        """
        shown = talk.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        if not await asyncio.to_thread(admitted, self._folder, fingerprint_of_der(shown)):
            raise Turned("its key is none of those in the site's folder agents")
        said, _ = await talk.next()
        name, host = had(said, "hello", str), had(said, "address", str)
        if had(said, "version", int) != VERSION:
            raise Turned("it is of another version of hansa")
        if not is_name(name) or as_ip(host) is None:
            raise Turned("it gives no name or no address")
        gpus, own = had(said, "devices", int), self.training.device in ("auto", "cuda") and not self.training.devices
        if own and 0 < gpus < self._each:
            raise Turned(
                f"node {name} has {gpus} GPUs for {self._each} ranks; name devices in site.toml, or lower procs"
            )
        app, mark = (str(path.relative_to(self._folder)) for path in (self._app, self._mark[0]))
        talk.send({"run": self._run, "app": app, "mark": mark, "is": self._mark[1], "limit": self.training.heartbeat})
        said, _ = await talk.next()
        if "refused" in said:
            raise Turned(f"node {name}: {' '.join(had(said, 'refused', str).split())[:500]}")
        if "ready" not in said:
            raise Broken(", ".join(said)[:200])
        return Node(name, host, self._sender(talk), self._dropper(talk), self.training.heartbeat)

    async def _follow(self, node: Node, talk: Talk) -> None:
        """Hears a node's agent until it is gone."""
        with self._changed:
            old, self._nodes[node.name] = self._nodes.get(node.name), node
            self._changed.notify_all()
        if old is not None:  # its connection is dead, and nobody has noticed
            old.left()
            old.drop()
        self._say(f"nodes: {node.name} is here, at {node.host}")
        why = "its connection ended"
        try:
            async with talk.beating():
                while True:
                    node.heard(*await talk.next())
        except (Broken, OSError, EOFError) as error:
            why = in_a_line(error)
        finally:
            with self._changed:
                if self._nodes.get(node.name) is node:
                    del self._nodes[node.name]
            node.left()
            if not asyncio.current_task().cancelling():  # type: ignore[union-attr]  # we are in one
                self._say(f"nodes: {node.name} is gone: {why}")

    def _sender(self, talk: Talk) -> Send:
        def send(said: Mapping[str, Any], frame: bytes = b"") -> None:
            with contextlib.suppress(RuntimeError):  # the run is over
                self._loop.call_soon_threadsafe(talk.send, said, frame)

        return send

    def _dropper(self, talk: Talk) -> Callable[[], None]:
        def drop() -> None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(talk.writer.transport.abort)

        return drop


class Turned(Exception):
    """An agent that is not let in, and why."""
