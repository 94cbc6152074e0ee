"""The site's end of the way to the server's public port: what this machine's processes dial, on loopback.

Flower's node can show no certificate of its own, and neither it nor gRPC finds its way through every proxy. So the node
talks TLS to this process, which talks mutual TLS to the server's gate; a session's bytes go through unread.

`python -m clients.forwarder FOLDER NODE SESSION`, the two ports, is kept running by `hansa site up`.
"""

import asyncio
import ssl
import sys
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path

from clients import renewal
from clients.dial import way
from clients.newest import refresh_roster
from clients.sitefile import load_site_file
from hansa.controlclient import ControlClient, Unanswered, in_folder
from hansa.dial import Way, in_words
from hansa.errors import RunFailed, UserError
from hansa.files import write_atomically, write_private
from hansa.fresh import Fresh
from hansa.identity import make_authority, make_server
from hansa.routes import FLEET
from hansa.splice import CHUNK, LIMIT, Stream, carry_on, splice
from hansa.startup import CA, SITE_FILE, TLS_CERTIFICATE, TLS_KEY
from hansa.swap import settle

HOST = "127.0.0.1"
LOCAL_CA, LOCAL_PAIR = "run/forwarder-ca.crt", "run/forwarder.pem"
HANDSHAKE = 15.0  # seconds
HOURLY, AGAIN = 3600.0, 60.0  # seconds between two questions for a newer roster; when the last was not answered
IDLE = 90.0  # seconds; the node asks every three, gRPC every twenty whether the other end is there


def write_local(folder: Path) -> Path:
    """Makes the certificate that the node finds on loopback, and the authority that it is given; the latter's path.

    The authority's key is dropped: it signs nothing else.
    """
    now, run = datetime.now(UTC), folder / "run"
    run.mkdir(exist_ok=True)
    authority = make_authority("this machine", now)
    pair = make_server(authority, [HOST], now)
    path = folder / LOCAL_PAIR
    path.unlink(missing_ok=True)
    write_private(path, pair.certificate + pair.key)
    write_atomically(folder / LOCAL_CA, authority.certificate)
    return folder / LOCAL_CA


class Forwarder:
    """Takes connections on loopback to the server.

    Args:
        folder: the site's.
        way: to the server.
        say: gets a line when the server cannot be reached, and when it can again.
        idle: seconds of silence after which a connection is closed.
    """

    def __init__(self, folder: Path, way: Way, say: Callable[[str], None], idle: float = IDLE) -> None:
        self.folder, self.way, self.say, self.idle = folder, way, say, idle
        files = [folder / name for name in (CA, TLS_CERTIFICATE, TLS_KEY)]
        self._context = Fresh(files, self._outbound, self._stale)
        self._tasks: set[asyncio.Task[None]] = set()
        self._trouble = ""  # what was last said, while it lasts

    async def listen(self, node: int, session: int) -> tuple[asyncio.Server, asyncio.Server]:
        """Listens for the node and for sessions, at these ports."""
        local = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        local.load_cert_chain(self.folder / LOCAL_PAIR)
        fleet = await asyncio.start_server(self._taking(self._fleet), HOST, node, ssl=local, limit=LIMIT)
        return fleet, await asyncio.start_server(self._taking(self._session), HOST, session, limit=LIMIT)

    def _taking(
        self, serve: Callable[[Stream], Awaitable[None]]
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        async def guarded(near: Stream) -> None:
            try:
                await serve(near)
            except OSError as error:
                self._tell(in_words(error))
            finally:
                await near.close()

        def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(guarded(Stream(reader, writer)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return take

    async def _session(self, near: Stream) -> None:
        end = await self.way.dial()
        await splice(near, Stream(*await asyncio.open_connection(sock=end, limit=LIMIT)), self.idle)

    async def _fleet(self, near: Stream) -> None:
        far, heard = await self._reach(), False

        async def up() -> bool:
            data = await near.reader.read(CHUNK)
            await far.send(data)
            return bool(data)

        async def down() -> bool:
            nonlocal heard
            data = await far.reader.read(CHUNK)
            if data:
                heard = True
                self._tell("")
            await near.send(data)
            return bool(data)

        await carry_on([up, down], [near, far], self.idle)
        if not heard:
            self._tell("it answers nothing: its Flower is down, or it takes this site's certificate no longer")

    async def _reach(self) -> Stream:
        """A connection to the server's Flower: both ends have shown their certificates."""
        context, end = self._context.get(), await self.way.dial()
        try:
            streams = await asyncio.open_connection(
                sock=end, ssl=context, server_hostname=FLEET, ssl_handshake_timeout=HANDSHAKE, limit=LIMIT
            )
        except BaseException:
            end.close()
            raise
        return Stream(*streams)

    def _outbound(self) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        made.load_verify_locations(self.folder / CA)
        made.load_cert_chain(self.folder / TLS_CERTIFICATE, self.folder / TLS_KEY)
        return made

    def _stale(self, error: OSError) -> None:
        self.say(f"{self.folder / TLS_CERTIFICATE}: not usable ({error.strerror}); the one before stands")

    def _tell(self, trouble: str) -> None:
        """Says what is wrong, or that nothing is any longer: once."""
        if trouble != self._trouble:
            self.say(f"{self.way.server}: {trouble or 'reached again'}")
            self._trouble = trouble


async def keep_newest(folder: Path, name: str, control: ControlClient, say: Callable[[str], None]) -> None:
    """Asks again and again for the site's next certificate, if it waits for one, and for a newer roster."""
    trouble = ""
    while True:
        try:
            await asyncio.to_thread(newest, folder, name, control, say)
            trouble = ""
        except (UserError, RunFailed, OSError) as error:
            if str(error) != trouble and not isinstance(error, Unanswered):  # that, the node's own attempts tell
                say(f"the newest roster: {error}")
            trouble = str(error)
        await asyncio.sleep(AGAIN if trouble else HOURLY)


def newest(folder: Path, name: str, control: ControlClient, say: Callable[[str], None]) -> None:
    """Fetches what there is. Raises what `renewal.fetch` and `refresh_roster` raise."""
    if renewal.is_asked(folder):
        renewal.fetch(folder, name, control, say)
    refresh_roster(folder, name, control, say)


def say(line: str) -> None:
    """A line of the log."""
    print(line, flush=True)


async def serve(folder: Path, node: int, session: int) -> None:
    """Serves a site's folder until it is cancelled.

    Raises:
        UserError: the folder is not in order.
        OSError: a port is taken.
    """
    file = load_site_file(folder / SITE_FILE)
    settle(folder)  # the one before may have been killed in the middle of a change
    forwarder = Forwarder(folder, way(file), say)
    servers = [server.serve_forever() for server in await forwarder.listen(node, session)]
    await asyncio.gather(*servers, keep_newest(folder, file.site.name, in_folder(forwarder.way, folder), say))


if __name__ == "__main__":
    try:
        asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
    except (UserError, OSError) as problem:
        sys.exit(f"error: {problem}")
