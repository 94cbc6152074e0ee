"""One end of a connection between the head and an agent."""

import asyncio
import os
import ssl
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from clients.agents.frames import Frame, Frames, framed
from clients.workers.heartbeat import BEATS
from hansa.splice import CHUNK


class Talk:
    """Frames that come and go, in one event loop.

    Args:
        reader: of the connection.
        writer: of it.
        limit: seconds of silence after which the other end counts as gone.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: float) -> None:
        self.reader, self.writer, self.limit = reader, writer, limit
        self._frames, self._come = Frames(), deque[Frame]()

    def send(self, said: Mapping[str, Any], frame: bytes = b"") -> None:
        """Sends something, if the other end is there."""
        if not self.writer.is_closing():
            self.writer.write(framed(said, frame))

    async def next(self) -> Frame:
        """What the other end says next, signs of life left out.

        Raises:
            EOFError: it has closed the connection.
            OSError: it is gone, or silent.
            Broken: it says nothing that can be understood.
        """
        while True:
            while self._come:
                said, frame = self._come.popleft()
                if "beat" not in said:
                    return said, frame
            self._come += self._frames.feed(await self._read())

    @asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Gives signs of life meanwhile."""

        async def beat() -> None:
            while True:
                self.send({"beat": True})
                await asyncio.sleep(self.limit / BEATS)

        heart = asyncio.create_task(beat())
        try:
            yield
        finally:
            heart.cancel()

    async def _read(self) -> bytes:
        for last in (False, True):  # where this process itself was held up, what came meanwhile is there by now
            try:
                async with asyncio.timeout(self.limit / 2):
                    data = await self.reader.read(CHUNK)
            except TimeoutError:
                if last:
                    raise TimeoutError(0, f"silent for {self.limit:g} s") from None
            else:
                if data:
                    return data
                raise EOFError("it closed the connection")
        raise AssertionError


def in_a_line(error: Exception) -> str:
    """Why a connection is of no use any more."""
    match error:
        case ssl.SSLCertVerificationError():
            return f"its certificate: {error.verify_message}"
        case ssl.SSLError() if "ALERT" in (error.reason or ""):
            return f"it does not take this end's certificate ({(error.reason or '').lower().replace('_', ' ')})"
        case ssl.SSLError():
            return f"no TLS 1.3 ({(error.reason or 'none').lower().replace('_', ' ')})"
        case TimeoutError() if not error.strerror:
            return "no answer in time"
        case OSError() if error.errno:
            return os.strerror(error.errno).lower()
        case OSError():
            return (error.strerror or str(error) or "it is gone").lower()
    return str(error)
