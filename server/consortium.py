"""The consortium's own folder: the authority and the roster key, offline with whoever founded it."""

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field

from hansa.address import Dialled
from hansa.config import checked
from hansa.document import Document
from hansa.errors import UserError
from hansa.identity import Credential, flaw, load_signing_key, signing_public
from hansa.roster import Member, Roster
from hansa.startup import CA, ROSTER_KEY, read, read_roster
from hansa.swap import settle
from hansa.tables import A_NAME, Name, Table

HOME = "consortium"  # within what `hansa provision` made
CA_KEY, ROSTER_PRIVATE, CONSORTIUM_FILE = "ca.key", "roster.key", "consortium.toml"
ISSUED = "issued"  # in it: the certificates that were given out since it was founded, by name


class ConsortiumTable(Table):
    """[consortium]: what a site that joins later must be told."""

    name: Annotated[Name, Field(description=A_NAME)]
    server: Dialled
    gate: bool = False  # whether that is the server's public port, by which everything goes


@dataclass(frozen=True)
class Consortium:
    """What is needed to let somebody in, or out."""

    path: Path
    table: ConsortiumTable
    roster: Roster
    authority: Credential
    roster_key: bytes = field(repr=False)  # PEM

    @property
    def roster_public(self) -> bytes:
        """The contents of roster.pub."""
        return read(self.path, ROSTER_KEY)

    def with_members(self, members: list[Member]) -> Roster:
        """The roster's next edition."""
        ordered = tuple(sorted(members, key=lambda member: member.name))
        return self.roster.model_copy(update={"edition": self.roster.edition + 1, "sites": ordered})


def open_consortium(folder: Path, now: datetime) -> Consortium:
    """Reads and checks the consortium's own folder.

    Args:
        folder: that `hansa provision` made.
        now: with its zone.

    Raises:
        UserError: there is none in it, or it is not in order.
    """
    own = folder / HOME
    if not own.is_dir():
        raise UserError(f"{folder}: no consortium in it; give the folder that `hansa provision` made")
    settle(own)
    roster, document = read_roster(own), Document(own / CONSORTIUM_FILE)
    table = checked(document, {"consortium": ConsortiumTable}, needed={"consortium"})["consortium"]
    return Consortium(own, table, roster, *_authority(own, now))


def _authority(own: Path, now: datetime) -> tuple[Credential, bytes]:
    """The authority and the roster's private key, which can sign for what is there."""
    authority, roster_key = Credential(read(own, CA), read(own, CA_KEY)), read(own, ROSTER_PRIVATE)
    public = read(own, ROSTER_KEY).decode().strip()
    try:
        wrong = flaw(authority, authority.certificate, now)
        ours = signing_public(load_signing_key(roster_key)) == public
    except ValueError as error:
        raise UserError(f"{own}: {CA_KEY} or {ROSTER_PRIVATE} is no PEM key; put back the right one") from error
    if wrong:
        raise UserError(f"{own / CA}: the certificate {wrong}; put back the pair that was made, or found anew")
    if not ours:
        raise UserError(f"{own / ROSTER_PRIVATE}: does not belong to {ROSTER_KEY}; put back the one that does")
    return authority, roster_key
