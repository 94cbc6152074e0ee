"""The server's one public port: who comes is sent on by the TLS server name in the first bytes, which stay closed.

`python -m server.gate FOLDER LISTEN SUPERLINK` is kept running by `hansa server up`.
"""

import asyncio
import resource
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from hansa.address import split
from hansa.errors import UserError
from hansa.routes import CONTROL, FLEET, session_label
from hansa.splice import LIMIT, Stream, keep_alive
from hansa.startup import SERVER_FILE
from server.clienthello import HelloReader, NoName
from server.desk import Desk
from server.fleet import Fleet
from server.serverfile import load_server_file
from server.sessions import Sessions

HELLO = 5.0  # seconds in which the first bytes must have told where they go
WAITING = 256  # connections that have not told yet; one more, and the oldest is closed: a real one waits milliseconds
FROM_ONE = 256  # connections from one address
FILES = 5  # that a connection may need
READ = 4096  # bytes of a hello that are taken at once
QUIET = 60.0  # seconds until the same line is written again
LINES = 20  # that are written in that time

Route = Callable[[Stream, bytes, str], Awaitable[None]]  # a connection, what was read from it, where it comes from
Address = tuple[str, int]


class Gate:
    """Sends connections on.

    Args:
        routes: by server name.
        sessions: of the runs.
        note: gets a line for the log: who, and what there is to say of it.
        most: connections at once.
        hello: seconds in which the first bytes must have told where they go.
    """

    def __init__(
        self,
        routes: Mapping[str, Route],
        sessions: Sessions,
        note: Callable[[str, str], None],
        most: int,
        hello: float = HELLO,
    ) -> None:
        self.routes, self.sessions, self.note, self.most, self.hello = routes, sessions, note, most, hello
        self._tasks: set[asyncio.Task[None]] = set()
        self._from: Counter[str] = Counter()
        self._waiting: dict[Stream, None] = {}  # in the order of their coming

    async def listen(self, address: Address) -> asyncio.Server:
        """Takes connections, until the server that it returns is closed."""
        return await asyncio.start_server(self._came, *address, limit=LIMIT, backlog=1024)

    def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream, peer = Stream(reader, writer), writer.get_extra_info("peername")
        caller = str(peer[0]) if peer else "?"
        if self._from.total() >= self.most or self._from[caller] >= FROM_ONE:
            self.note(caller, "too many connections at once; closed the newest")
            stream.abort()
            return
        if len(self._waiting) >= WAITING:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.abort()
        self._from[caller] += 1
        self._waiting[stream] = None
        task = asyncio.create_task(self._serve(stream, caller))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, stream: Stream, caller: str) -> None:
        try:
            keep_alive(stream.writer.get_extra_info("socket"))
            name, first = await self._name(stream)
            self._waiting.pop(stream, None)
            await self._send_on(stream, first, name, caller)
        except NoName as reason:
            self.note(caller, f"{reason}; if it is a site of ours, its site.toml needs [network] gate = true")
        except (OSError, EOFError, TimeoutError):
            pass  # it is gone, or too slow; or what it asked for is down, and it will try again
        finally:
            self._waiting.pop(stream, None)
            self._from[caller] -= 1
            self._from += Counter()  # forgets who has none
            await stream.close()

    async def _name(self, stream: Stream) -> tuple[str, bytes]:
        """The server name, and all that was read."""
        hello = HelloReader()
        async with asyncio.timeout(self.hello):
            while data := await stream.reader.read(READ):
                if name := hello.feed(data):
                    return name, bytes(hello.taken)
        raise EOFError

    async def _send_on(self, stream: Stream, first: bytes, name: str, caller: str) -> None:
        if route := self.routes.get(name):
            await route(stream, first, caller)
        elif run := session_label(name):
            if not await self.sessions.serve(stream, first, run):
                self.note(caller, "a session of a run that is not held here")
        else:
            raise NoName("another server name")


class Log:
    """Lines on the standard output, few enough that nobody can fill the log."""

    def __init__(self) -> None:
        self._said: set[tuple[str, str]] = set()
        self._since = time.monotonic()

    def note(self, who: str, line: str) -> None:
        """Writes a line, unless it was written just now, or too many were."""
        if time.monotonic() > self._since + QUIET:
            self._said, self._since = set(), time.monotonic()
        if (who, line) not in self._said and len(self._said) < LINES:
            self._said.add((who, line))
            print(f"{who}: {line}", flush=True)


def most_connections() -> int:
    """How many connections this process may hold; it asks the system for as many as it gives."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 1 << 15)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return max(soft, wanted) // FILES


async def serve(folder: Path, listen: Address, superlink: Address) -> None:
    """Serves the gate of a server's folder until it is cancelled.

    Raises:
        UserError: the folder is not in order.
        OSError: the address cannot be used.
    """
    log, host = Log(), split(load_server_file(folder / SERVER_FILE).server.sessions)[0]
    routes: dict[str, Route] = {FLEET: Fleet(folder, superlink, log.note), CONTROL: Desk(folder, log.note)}
    gate = Gate(routes, Sessions(folder / "runs", host), log.note, most_connections())
    async with await gate.listen(listen) as server:
        await server.serve_forever()


if __name__ == "__main__":
    try:
        asyncio.run(serve(Path(sys.argv[1]), split(sys.argv[2]), split(sys.argv[3])))
    except (UserError, OSError) as problem:
        sys.exit(f"error: {problem}")
