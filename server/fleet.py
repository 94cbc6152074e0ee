"""The gate's way to Flower: a member's requests to the sites' interface, and nothing else."""

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

from hansa.address import join
from hansa.errors import UserError
from hansa.splice import CHUNK, LIMIT, Stream, carry_on
from hansa.startup import CA
from server.endtls import contexts, ended
from server.fleetfilter import FleetFilter, Moves
from server.members import Members, Unwelcome

IDLE = 60.0  # seconds; a node asks every three


class Fleet:
    """Serves connections to `routes.FLEET`.

    Args:
        folder: the server's.
        superlink: host and port.
        note: gets a line for the gate's log: who, and what there is to say of it.
    """

    def __init__(self, folder: Path, superlink: tuple[str, int], note: Callable[[str, str], None]) -> None:
        self.folder, self.superlink, self.note = folder, superlink, note
        self.members = Members(folder)
        self.contexts = contexts(folder, lambda line: note("gate", line))
        self.contexts.get()  # what is wrong from the start is told at the start

    async def __call__(self, raw: Stream, first: bytes, caller: str) -> None:
        """Serves one connection.

        Args:
            raw: the connection.
            first: what was read from it.
            caller: where it comes from.
        """
        try:
            async with ended(raw, first, self.contexts.get(), IDLE) as (site, certificate):
                node = self.members.find(certificate).node
                server = await self._superlink()
                await self._filter(site, certificate, server, FleetFilter(join(*self.superlink), node), caller)
        except ssl.SSLError as error:
            # What OpenSSL says of a certificate is its own text, not the caller's.
            self.note(caller, f"no certificate of this consortium's: {getattr(error, 'verify_message', error.reason)}")
        except (Unwelcome, UserError) as refusal:
            self.note(caller, str(refusal))

    async def _superlink(self) -> Stream:
        context = ssl.create_default_context(cafile=self.folder / CA)
        host, port = self.superlink
        return Stream(*await asyncio.open_connection(host, port, ssl=context, limit=LIMIT))

    async def _filter(self, site: Stream, certificate: bytes, server: Stream, sieve: FleetFilter, caller: str) -> None:
        async def make(moves: Moves) -> bool:
            await server.send(moves.to_server)
            await site.send(moves.to_site)
            if moves.refused:
                self.note(caller, moves.refused)
            return not moves.over

        async def up() -> bool:
            data = await site.reader.read(CHUNK)
            self.members.find(certificate)  # again: it may have been revoked since
            return await make(sieve.from_site(data))

        async def down() -> bool:
            return await make(sieve.from_server(await server.reader.read(CHUNK)))

        await carry_on([up, down], [site, server], IDLE)
