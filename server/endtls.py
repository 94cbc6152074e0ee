"""Ends the TLS of a connection whose first bytes were read already, and asks for the other end's certificate."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from hansa.fresh import Fresh
from hansa.splice import LIMIT, Stream, splice
from hansa.startup import CA, TLS_CERTIFICATE, TLS_KEY

HANDSHAKE = 10.0  # seconds


def contexts(folder: Path, note: Callable[[str], None], required: bool = True) -> Fresh[ssl.SSLContext]:
    """The TLS settings of a server's folder, made anew when its certificate changes; until that is whole, the old ones.

    Args:
        folder: the server's.
        note: gets a line when the files cannot be used.
        required: whether who comes must show a certificate of the authority's; one that is shown must be.
    """

    def make() -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.minimum_version = ssl.TLSVersion.TLSv1_3
        made.num_tickets = 0  # each connection shows its certificate, and it is checked
        made.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
        made.verify_flags |= ssl.VERIFY_X509_STRICT
        made.load_verify_locations(folder / CA)
        made.load_cert_chain(folder / TLS_CERTIFICATE, folder / TLS_KEY)
        return made

    files = [folder / name for name in (CA, TLS_CERTIFICATE, TLS_KEY)]
    return Fresh(files, make, lambda error: note(f"{files[1]}: not usable ({error.strerror}); the one before stands"))


@asynccontextmanager
async def ended(raw: Stream, first: bytes, context: ssl.SSLContext, idle: float) -> AsyncIterator[tuple[Stream, bytes]]:
    """What comes within the TLS, and the other end's certificate (DER; b"" if it shows none).

    Raises:
        OSError: the handshake fails, in words of OpenSSL; or the connection is lost.
    """
    loop = asyncio.get_running_loop()
    # asyncio's TLS begins at the first byte of a socket: it gets one of a pair, and finds there what was read before.
    here, there = socket.socketpair()
    carrying = asyncio.create_task(_carry(raw, here, first, idle))
    reader = asyncio.StreamReader(limit=LIMIT)
    protocol = asyncio.StreamReaderProtocol(reader)
    try:
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol, there, ssl=context, ssl_handshake_timeout=HANDSHAKE
        )
        stream = Stream(reader, asyncio.StreamWriter(transport, protocol, reader, loop))
        try:
            yield stream, transport.get_extra_info("ssl_object").getpeercert(binary_form=True) or b""
        finally:
            await stream.close()
        await carrying
    finally:
        there.close()
        carrying.cancel()
        await asyncio.gather(carrying, return_exceptions=True)


async def _carry(raw: Stream, here: socket.socket, first: bytes, idle: float) -> None:
    inner = Stream(*await asyncio.open_connection(sock=here, limit=LIMIT))
    inner.writer.write(first)
    await splice(raw, inner, idle)
