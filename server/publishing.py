"""What the consortium's administrator publishes: the roster's next edition, certificates, and who is out.

The server takes nothing on the administrator's word: the roster key has signed the roster and, for its edition, the
list of who is out; the authority the certificates; and no edition is older than the server's.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from hansa.errors import UserError
from hansa.files import write_atomically
from hansa.identity import certifies, fingerprint
from hansa.kit import Signature
from hansa.request import Unsound
from hansa.roster import Fingerprint, Roster, verified
from hansa.startup import CA, ROSTER, ROSTER_KEY, ROSTER_SIGNATURE, read, read_roster
from hansa.swap import swap
from hansa.tables import Name, Table
from server.enrolment import CERTIFICATES, Permit, alone, freely, settle_requests, signed_roster
from server.former import Former
from server.revoked import Revoked, is_signed


class Publication(Table):
    """What is published."""

    roster: str  # the contents of roster.json
    signature: Signature
    certificates: Mapping[Name, Annotated[str, Field(max_length=8192)]] = Field(default_factory=dict)  # PEM
    revoked: tuple[Fingerprint, ...]  # all that the consortium knows of
    revoked_signature: Signature


def publish(folder: Path, body: object, permit: Permit = freely) -> dict[str, Any]:
    """Takes a roster that is newer than the server's, or the same again.

    Args:
        folder: the server's.
        body: of the question: a `Publication`.
        permit: called when all is checked and nothing done.

    Returns:
        The edition that now stands.

    Raises:
        Unsound: it is not signed as it must be, or is older.
        UserError: the server's folder is not in order.
    """
    try:
        said = Publication.model_validate(body)
    except ValidationError:
        raise Unsound("form", "nothing that this version of hansa can publish; update hansa at both ends") from None
    with alone(folder):
        before = read_roster(folder)
        roster = _checked(folder, said, before)
        permit("")
        _lay_in(folder, said, before, roster)
    return {"edition": roster.edition}


def newer(folder: Path, body: object) -> dict[str, Any]:
    """The roster, for a site that has an older edition; else the edition only.

    Raises:
        Unsound: the site does not say which it has.
        UserError: the server's folder is not in order.
    """
    edition = body.get("edition") if isinstance(body, Mapping) else None
    if not isinstance(edition, int):
        raise Unsound("form", "edition is missing; update hansa at both ends")
    own = read_roster(folder).edition
    return {"edition": own, **(signed_roster(folder) if own > edition else {})}


def _checked(folder: Path, said: Publication, before: Roster) -> Roster:
    try:
        key = read(folder, ROSTER_KEY).decode(errors="replace")
        roster = verified(said.roster.encode(), said.signature.encode(), key)
    except UserError:
        raise Unsound("forged", f"{ROSTER} is not signed by the roster key of this server's consortium") from None
    if not is_signed(said.revoked, roster, said.revoked_signature, key.strip()):
        line = f"the list of revoked certificates is not signed for edition {roster.edition} by the roster key"
        raise Unsound("forged", f"{line} of this server's consortium")
    if (roster.consortium, roster.ca) != (before.consortium, before.ca):
        raise Unsound("other_consortium", f"{ROSTER} is of another consortium or authority")
    if roster.edition < before.edition or (roster.edition == before.edition and roster != before):
        raise Unsound("edition", f"{ROSTER} is of edition {roster.edition}, the server's of {before.edition}")
    ca = read(folder, CA)
    for name, text in said.certificates.items():
        member, certificate = roster.member(name), text.encode()
        if member is None or not certifies(certificate, ca, name) or member.tls != fingerprint(certificate):
            raise Unsound("certificate", f"the certificate for {name} is not the one that {ROSTER} has")
    return roster


def _lay_in(folder: Path, said: Publication, before: Roster, roster: Roster) -> None:
    """Those who are out first: whatever is cut off then, nobody is in who should not be."""
    former, now = dict(Former(folder).sites()), {site.name: site for site in roster.sites}
    out = set(said.revoked)  # fingerprints
    for site in before.sites:
        after = now.get(site.name)
        if after is None or (after.sign, after.nodes) != (site.sign, site.nodes):
            out |= {site.tls, *(one for one, name in former.items() if name == site.name)}
        elif after.tls != site.tls:
            former[site.tls] = site.name
    Revoked(folder).add(*out)
    for name, certificate in said.certificates.items():
        write_atomically(folder / CERTIFICATES / f"{name}.crt", certificate.encode())
    Former(folder).put({one: name for one, name in former.items() if one not in out})
    swap(folder, {ROSTER: said.roster.encode(), ROSTER_SIGNATURE: f"{said.signature}\n".encode()})
    settle_requests(folder, roster)
