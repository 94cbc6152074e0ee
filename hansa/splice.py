"""Two connections joined: what comes on one goes out on the other, unread."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

CHUNK = 1 << 18  # bytes that are taken at once
LIMIT = 1 << 19  # bytes that wait on either side before reading pauses
FLUSH = 5.0  # seconds that an end gets to take what is still on its way to it

# Seconds without traffic until the system asks whether the other machine is there, between two questions, and how many
# stay unanswered; a firewall that forgets quiet connections after a minute sees traffic in time.
KEEPALIVE = {"TCP_KEEPIDLE": 20, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


@dataclass(frozen=True, eq=False)
class Stream:
    """A connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        """Sends, and waits while the other end is slow."""
        if data:
            self.writer.write(data)
            await self.writer.drain()

    async def close(self) -> None:
        """Closes it when what is on its way has left, or after a while."""
        self.writer.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(FLUSH):
                await self.writer.wait_closed()
        self.writer.transport.abort()

    def abort(self) -> None:
        """Closes it at once."""
        self.writer.transport.abort()


Carry = Callable[[], Awaitable[bool]]  # takes what has come on one side to the other; False: that side has ended


async def splice(one: Stream, other: Stream, idle: float) -> None:
    """Carries bytes both ways, until an end closes or both are silent for `idle` seconds; then both are closed."""

    def carrying(source: Stream, sink: Stream) -> Carry:
        async def carry() -> bool:
            data = await source.reader.read(CHUNK)
            await sink.send(data)
            return bool(data)

        return carry

    await carry_on([carrying(one, other), carrying(other, one)], [one, other], idle)


async def carry_on(ways: Sequence[Carry], ends: Sequence[Stream], idle: float) -> None:
    """Carries each way again and again, until one has ended or none moves for `idle` seconds; then closes the ends."""
    loop = asyncio.get_running_loop()
    moved = loop.time()

    async def pump(way: Carry) -> None:
        nonlocal moved
        while await way():
            moved = loop.time()

    pumps = [asyncio.create_task(pump(way)) for way in ways]
    try:
        done: set[asyncio.Task[None]] = set()
        while not done and (left := moved + idle - loop.time()) > 0:
            done, _ = await asyncio.wait(pumps, timeout=left, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in pumps:
            task.cancel()
        for end in ends:
            end.writer.close()  # before anything that may itself be cancelled
        ended = await asyncio.gather(*pumps, return_exceptions=True)
        await asyncio.gather(*(end.close() for end in ends))
    for result in ended:
        if isinstance(result, Exception) and not isinstance(result, OSError):  # a lost connection is an end like any
            raise result


def keep_alive(end: socket.socket) -> None:
    """Sets a TCP connection up so that a dead one is noticed and a quiet one is not forgotten on the way."""
    end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            end.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
