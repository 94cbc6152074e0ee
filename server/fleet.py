"""The gate's way to Flower: a member's requests to the sites' interface, and nothing else.

Flower's interfaces share one port, and all but the sites' trust whoever reaches them.
"""

import asyncio
import base64
import re
import ssl
from collections.abc import Callable, Collection
from pathlib import Path

from hansa.address import join
from hansa.errors import UserError
from hansa.splice import LIMIT, Stream
from hansa.startup import CA
from server.carrying import carry
from server.endtls import contexts, ended
from server.members import Members, Unwelcome
from server.requestfilter import Needed, RequestFilter, Rules

IDLE = 60.0  # seconds; a node asks every three
LARGEST_BODY = 64 << 20  # bytes; Flower sends 5 MB at once

_PATH = re.compile(rb"/v1/fleet/[a-z]+(-[a-z]+)*")  # all that Flower has there
_PASSED = re.compile(rb"content-type|content-length|accept|accept-encoding|user-agent|(x-)?flwr-[a-z0-9-]+")
_RETURNED = re.compile(rb"content-type|content-length|content-encoding|retry-after|(x-)?flwr-[a-z0-9-]+")
_NOT_ITS_NODE = "the node's key is none that the roster has for this certificate's site"


def rules(host: str, nodes: Collection[str]) -> Rules:
    """What passes to Flower.

    Args:
        host: the SuperLink's address, for the requests' Host.
        nodes: the public keys by which Flower knows the site's nodes (SPKI, PEM): it speaks for no others.
    """
    keys = frozenset(base64.b64encode(node.encode("ascii")) for node in nodes)
    return Rules(
        largest=lambda path: LARGEST_BODY if _PATH.fullmatch(path) else None,
        otherwise="only POST to /v1/fleet/ passes here",
        passed=_PASSED,
        returned=_RETURNED,
        added=[(b"host", host.encode("ascii"))],
        needed=Needed(b"flwr-public-key", keys, _NOT_ITS_NODE),
    )


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
                sieve = RequestFilter(rules(join(*self.superlink), self.members.find(certificate).nodes))
                server = await self._superlink()
                await carry(
                    (site, server),
                    sieve,
                    lambda: self.members.find(certificate),  # again: it may have been revoked since
                    lambda line: self.note(caller, line),
                    IDLE,
                )
        except ssl.SSLError as error:
            # What OpenSSL says of a certificate is its own text, not the caller's.
            self.note(caller, f"no certificate of this consortium's: {getattr(error, 'verify_message', error.reason)}")
        except (Unwelcome, UserError) as refusal:
            self.note(caller, str(refusal))

    async def _superlink(self) -> Stream:
        context = ssl.create_default_context(cafile=self.folder / CA)
        host, port = self.superlink
        return Stream(*await asyncio.open_connection(host, port, ssl=context, limit=LIMIT))
