"""A connection to the server's public port, through a proxy if there is one."""

import asyncio
import os
import socket
import ssl
from dataclasses import dataclass

from hansa.address import split
from hansa.errors import UserError
from hansa.proxy import Connect, Proxy, Refused, parse
from hansa.splice import keep_alive

PROXY = "HANSA_PROXY"  # the variable that names a proxy where no file names one
PATIENCE = 15.0  # seconds until a connection must stand


@dataclass(frozen=True)
class Way:
    """How the server is reached."""

    server: str  # host:port
    proxy: Proxy | None

    async def dial(self) -> socket.socket:
        """A connection.

        Raises:
            OSError: there is none; TimeoutError and Refused are such.
        """
        async with asyncio.timeout(PATIENCE):
            if self.proxy is None:
                return await _connected(*split(self.server))
            end = await _connected(self.proxy.host, self.proxy.port)
            try:
                await _through(end, Connect(self.server, self.proxy))
            except BaseException:
                end.close()
                raise
            return end


def way(server: str, proxy: Proxy | None) -> Way:
    """The way to a server by the proxy that a file names; if it names none, by that of the environment.

    Raises:
        UserError: the environment's proxy is none.
    """
    if proxy is None and (named := os.environ.get(PROXY)):
        try:
            proxy = parse(named)
        except ValueError as error:
            raise UserError(f"{PROXY}: {error}") from None
    return Way(server, proxy)


def in_words(error: OSError) -> str:
    """Why there is no connection, in a line that repeats nothing of a proxy's password."""
    match error:
        case Refused():
            return str(error)
        case ssl.SSLCertVerificationError():
            return f"what answers there is not this consortium's server: {error.verify_message}"
        case ssl.SSLError() if "ALERT" in (error.reason or ""):
            return f"the server does not take this certificate ({error.reason})"
        case ssl.SSLError():
            return f"no TLS with what answers there ({error.reason}); is it the server's public port?"
        case TimeoutError():
            return "no connection in time"
        case socket.gaierror():
            return f"the name is not known here ({error.strerror})"
    return os.strerror(error.errno).lower() if error.errno else "the connection was lost"


async def _connected(host: str, port: int) -> socket.socket:
    loop = asyncio.get_running_loop()
    failed: OSError = ConnectionError("no address")
    for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        end = socket.socket(family, kind, protocol)
        try:
            end.setblocking(False)
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            keep_alive(end)
            await loop.sock_connect(end, address)
            return end
        except BaseException as error:
            end.close()
            if not isinstance(error, OSError):
                raise
            failed = error
    raise failed


async def _through(end: socket.socket, connect: Connect) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(end, connect.question)
    while not connect.feed(await loop.sock_recv(end, 4096)):
        pass
