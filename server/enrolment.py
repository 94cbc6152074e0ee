"""Sites that ask to join, or for their next certificate: what the server keeps for those who approve them.

    FOLDER/requests/NAME.json       waits for the consortium's administrator
    FOLDER/invitations/NONCE.json   an invitation that was used: by which keys, and whether they were approved
    FOLDER/certificates/NAME.crt    the newest certificate of a site, for it to collect

The server can neither invite nor approve: it has no key for that. It keeps what it is given, and refuses what is false.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hansa.csr import requested_key
from hansa.errors import UserError
from hansa.files import write_atomically
from hansa.identity import certified_key, fingerprint
from hansa.processes import only_one
from hansa.request import Claim, Request, Unsound, read_request
from hansa.roster import Member, Roster
from hansa.startup import ROSTER, ROSTER_KEY, ROSTER_SIGNATURE, read, read_roster
from hansa.swap import settle
from hansa.tables import Table

REQUESTS, INVITATIONS, CERTIFICATES = "requests", "invitations", "certificates"
WAITING, APPROVED, NOTHING = "waiting", "approved", "nothing"  # what became of a request
PATIENCE = 10.0  # seconds that one act waits for another

Permit = Callable[[str], None]


def freely(site: str) -> None:
    """Permits what nobody keeps a record of."""


class Used(Table):
    """What became of an invitation."""

    site: str
    keys: str  # digest of the first keys that used it
    approved: bool = False


def enrol(folder: Path, body: object, now: datetime, permit: Permit = freely) -> dict[str, Any]:
    """A stranger asks to join, by an invitation.

    Args:
        folder: the server's.
        body: of the question: a `Request`.
        now: with its zone.
        permit: told the site, when all is checked and nothing done.

    Returns:
        The state of the request, "waiting" or "approved", and the fingerprint of the keys.

    Raises:
        Unsound: the request is not what it says, or the invitation is forged, out of date or used up.
        UserError: the server's folder is not in order.
    """
    request = read_request(body)
    if request.invited is None:
        raise Unsound("form", "there is no invitation in the request")
    if not request.invited.is_by(read(folder, ROSTER_KEY).decode(errors="replace").strip()):
        raise Unsound("forged", "the invitation is not signed by the roster key of this server's consortium")
    with alone(folder):
        if member := read_roster(folder).member(request.site):
            if not is_of(request, member):
                raise Unsound("member", f"{request.site} is a member already, with other keys")
            permit(request.site)
            return {"state": APPROVED, "fingerprint": request.fingerprint}
        used = _use(folder, request, now)
        _check_latest(folder, request)
        permit(request.site)
        write_atomically(_invitation(folder, request), used.model_dump_json().encode())
        write_atomically(_place(folder, request.site), request.model_dump_json().encode())
    return {"state": WAITING, "fingerprint": request.fingerprint}


def renew(folder: Path, site: str, body: object, permit: Permit = freely) -> dict[str, Any]:
    """A site asks for its next certificate, under its present one.

    Args:
        folder: the server's.
        site: the caller.
        body: of the question: a `Request`.
        permit: told the site, when all is checked and nothing done.

    Raises:
        Unsound: the request is not what it says, or not the caller's.
        UserError: the server's folder is not in order.
    """
    request = read_request(body)
    member = read_roster(folder).member(site)
    if request.site != site:
        raise Unsound("another_site", f"{site} asks for a certificate of {request.site}'s")
    if not request.follows(member):
        raise Unsound(
            "keys", f"the request is not by the keys, or not under the certificate, that {ROSTER} has for {site}"
        )
    with alone(folder):
        permit(site)
        write_atomically(_place(folder, site), request.model_dump_json().encode())
    return {"state": WAITING, "fingerprint": request.fingerprint}


def collect(folder: Path, body: object, permit: Permit = freely) -> dict[str, Any]:
    """Whoever has a site's signing key asks what became of its request. The answer holds no secret.

    Args:
        folder: the server's.
        body: of the question: a `Claim`.
        permit: told the site, when all is checked.

    Returns:
        The state, "waiting", "nothing" or "approved", and with that the certificate, the roster and its signature.

    Raises:
        Unsound: nobody of these keys is a member, or waits.
        UserError: the server's folder is not in order.
    """
    try:
        claim = Claim.model_validate(body)
    except ValidationError:
        raise Unsound("form", "no question that this version of hansa knows; update hansa at both ends") from None
    waiting, roster = waits(folder, claim.site), read_roster(folder)
    member = roster.member(claim.site)
    if not any(one is not None and claim.is_by(one.sign) for one in (waiting, member)):
        raise Unsound("unknown", f"nobody with these keys waits to be {claim.site}; start again with hansa site join")
    permit(claim.site)
    if waiting is not None or member is None:
        return {"state": WAITING}
    try:
        certificate = (folder / CERTIFICATES / f"{claim.site}.crt").read_text()
    except OSError:
        return {"state": NOTHING}  # it has the certificate that it was founded with
    return {"state": APPROVED, "certificate": certificate, **signed_roster(folder)}


def requests(folder: Path) -> dict[str, Any]:
    """What waits for the administrator, and the edition of the server's roster."""
    found = (waits(folder, path.stem) for path in sorted((folder / REQUESTS).glob("*.json")))
    return {
        "edition": read_roster(folder).edition,
        "requests": [one.model_dump(mode="json") for one in found if one is not None],
    }


def signed_roster(folder: Path) -> dict[str, str]:
    """The roster as it travels."""
    return {"roster": read(folder, ROSTER).decode(), "signature": read(folder, ROSTER_SIGNATURE).decode()}


def waits(folder: Path, site: str) -> Request | None:
    """The request of a site that waits."""
    try:
        return Request.model_validate_json(_place(folder, site).read_bytes())
    except (OSError, ValidationError):
        return None


def settle_requests(folder: Path, roster: Roster) -> None:
    """Drops the requests that a roster has granted, whose invitations are then used up, and those of sites now out."""
    for path in (folder / REQUESTS).glob("*.json"):
        if (request := waits(folder, path.stem)) is None:
            continue
        member = roster.member(request.site)
        if member is None and request.invited is None:
            path.unlink()
        elif member is not None and is_of(request, member) and _issued(folder, request, member):
            if request.invited is not None:
                used = Used(site=request.site, keys=request.keys, approved=True)
                write_atomically(_invitation(folder, request), used.model_dump_json().encode())
            path.unlink()


def is_of(request: Request, member: Member) -> bool:
    """Whether a request is by a member's keys, that of TLS aside."""
    return (request.site, request.sign, request.nodes) == (member.name, member.sign, member.nodes)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One act at a time.

    Raises:
        UserError: another does not end.
    """
    with only_one(folder / ".enrolment.lock", "the server is busy with another request; try again", PATIENCE):
        for name in (REQUESTS, INVITATIONS, CERTIFICATES):
            (folder / name).mkdir(mode=0o700, exist_ok=True)
        settle(folder)
        yield


def _use(folder: Path, request: Request, now: datetime) -> Used:
    """What is noted of the invitation: the first keys that use it, which may ask again.

    Raises:
        Unsound: it may not be used, or not by these keys, or not any more.
    """
    path = _invitation(folder, request)
    try:
        used = Used.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        if request.invited is None or now > request.invited.invitation.expires:
            raise Unsound("expired", "the invitation is out of date; ask the consortium for a new one") from None
        return Used(site=request.site, keys=request.keys)
    except (OSError, ValidationError) as error:
        raise UserError(f"{path}: cannot be read; restore it, or invite the site anew") from error
    if used.keys != request.keys:
        raise Unsound("used", "the invitation was used already, by other keys; ask the consortium for a new one")
    if used.approved:
        raise Unsound("used", "the invitation was used already, and the site was taken out; ask for a new one")
    return used


def _check_latest(folder: Path, request: Request) -> None:
    """Raises Unsound where the site has asked by an invitation that was made later."""
    before = waits(folder, request.site)
    asked = [one.invited.invitation.expires for one in (before, request) if one is not None and one.invited is not None]
    if asked and asked[0] > asked[-1]:
        raise Unsound("superseded", f"{request.site} has asked by a later invitation, which counts")


def _issued(folder: Path, request: Request, member: Member) -> bool:
    """Whether a member's certificate is for the key of the request."""
    try:
        certificate = (folder / CERTIFICATES / f"{member.name}.crt").read_bytes()
    except OSError:
        return False
    return fingerprint(certificate) == member.tls and certified_key(certificate) == requested_key(request.csr.encode())


def _place(folder: Path, site: str) -> Path:
    return folder / REQUESTS / f"{site}.json"


def _invitation(folder: Path, request: Request) -> Path:
    nonce = request.invited.invitation.nonce if request.invited else ""
    return folder / INVITATIONS / f"{nonce}.json"
