"""A site's end of its session. Light: no torch, no NumPy."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from hansa.wire.link_pb2 import Blob, Plan, ServerFrame, SiteFrame


@dataclass(frozen=True)
class Invitation:
    """Where a site dials, and what it says there."""

    address: str  # host:port
    run: str
    epoch: int
    node: int  # Flower's
    layout: str  # digest
    strategy: str  # digest
    token: str = field(repr=False)


@dataclass(frozen=True)
class Identity:
    """The files with which an end shows who it is (PEM). They are read anew for every connection."""

    ca: Path
    crt: Path
    key: Path
    server_name: str | None = None  # that the server's certificate must bear, where it is not the address


class Turned(Exception):
    """The server has turned the site away; the text is one line, fit to print."""

    def __init__(self, code: str, line: str) -> None:
        super().__init__(line)
        self.code = code


class Orphaned(Exception):
    """No server for `orphan_after` seconds."""


class UploadRefused(Exception):
    """The server will not take an upload: what is in it, or the plan is over. One line; the session goes on."""


class Link:
    """One session, kept through the loss of connections and of servers. All methods may be called from any thread.

        with Link(invitation, identity, spool) as link:
            for frame in link:  # Plan, Committed; ends after Over
                ...

    A plan that comes again (same id) was lost on the way, or its answer was: answer again, uploads are not sent twice.

    Args:
        invitation: from the server, by Flower.
        identity: the site's certificate and the one CA that it trusts.
        spool: folder for vectors. Only this object writes in it.
        orphan_after: seconds to look for a server before the first Welcome says how long.
    """

    def __init__(self, invitation: Invitation, identity: Identity, spool: Path, orphan_after: float = 30.0) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Says Bye and closes."""
        raise NotImplementedError

    def next(self, timeout: float | None = None) -> ServerFrame | None:
        """The next Plan, Committed or Over; None after `timeout` seconds.

        Raises:
            Turned: the server wants nothing of this site.
            Orphaned: the server is gone.
        """
        raise NotImplementedError

    def __iter__(self) -> Iterator[ServerFrame]:
        """Frames up to Over."""
        raise NotImplementedError

    def send(self, frame: SiteFrame) -> None:
        """Puts a Result or Refused on its way: it leaves when there is a connection."""
        raise NotImplementedError

    def fetch(self, plan: Plan) -> dict[str, Path]:
        """The plan's vectors by name, as files in the spool: fetched where it has none with that hash, and checked.

        Files that neither this plan nor the one before names are removed. Raises as `next` does.

        Raises:
            UserError: the disk is full.
        """
        raise NotImplementedError

    def upload(self, plan: str, file: Path) -> Blob:
        """Sends an upload, and says under which hash the server has it; goes on at the byte after a drop.

        Raises:
            UploadRefused: the server cannot use it.
        """
        raise NotImplementedError

    def close(self, line: str = "") -> None:
        """Says Bye with a line, and closes."""
        raise NotImplementedError
