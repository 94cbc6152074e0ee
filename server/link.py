"""The server's end of the sessions of one run."""

import queue
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hansa.wire.link_pb2 import Blob, ServerFrame
from hansa.wire.rules import HEARTBEAT, ORPHAN_AFTER
from server.arrivals import Arrival
from server.hello import Terms


@dataclass(frozen=True)
class Identity:
    """The files with which an end shows who it is (PEM). They are read anew when they change."""

    ca: Path
    crt: Path
    key: Path


class Links:
    """The sessions of one run, over mutually authenticated gRPC. All methods may be called from any thread.

    Args:
        terms: what a site's Hello is held against.
        identity: the server's certificate; a site's must be signed by the same CA.
        spool: a folder of this run for uploads; what is left in it by a killed server is gone on with.
        heartbeat: seconds between two beats; after three missed ones a session is ended.
        orphan_after: seconds that a site waits for a server that is gone.
    """

    def __init__(
        self,
        terms: Terms,
        identity: Identity,
        spool: Path,
        heartbeat: float = HEARTBEAT,
        orphan_after: float = ORPHAN_AFTER,
    ) -> None:
        self.events: queue.Queue[Arrival] = queue.Queue()

    def start(self, address: str) -> int:
        """Listens on `host:port` (port 0: one that is free) and returns the port.

        Raises:
            UserError: the address cannot be used.
        """
        raise NotImplementedError

    def stop(self, grace: float = 1.0) -> None:
        """Ends all sessions; calls in flight get `grace` seconds."""
        raise NotImplementedError

    def present(self) -> set[str]:
        """The sites whose session is open."""
        raise NotImplementedError

    def send(self, site: str, frame: ServerFrame) -> bool:
        """Puts a frame on its way; False if the site has no session. `Over` ends the session behind it."""
        raise NotImplementedError

    def offer(self, plan: str, vectors: Mapping[str, memoryview]) -> list[Blob]:
        """Makes vectors of a plan ready for download, and hashes them. They are not copied: leave them as they are.

        A site that holds a vector with the same hash does not fetch it again.
        """
        raise NotImplementedError

    def expect(self, plan: str, floats: int, integers: int) -> None:
        """Says how large each upload of a plan is: float32, then int64. Nothing is taken that was not expected."""
        raise NotImplementedError

    def retire(self, plan: str) -> None:
        """Forgets a plan: its vectors are no longer offered, uploads and late answers to it are dropped."""
        raise NotImplementedError
