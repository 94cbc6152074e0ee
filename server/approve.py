"""`hansa approve` and `hansa revoke`: who is in the consortium, decided where its keys are, and told to the server."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from hansa.controlclient import Unanswered
from hansa.csr import sign_site
from hansa.errors import RunFailed, UserError
from hansa.files import write_atomically
from hansa.identity import fingerprint
from hansa.request import Request, Unsound, read_request
from hansa.roster import Member, Roster, sign
from hansa.startup import ROSTER, ROSTER_SIGNATURE, SERVER_FILE, read
from hansa.swap import swap
from server.consortium import ISSUED, Consortium, open_consortium
from server.invite import check_new_name
from server.people import administrator, issue
from server.publishing import publish
from server.revoked import Revoked, sign_revoked

GRANTED = "granted"  # in the consortium's own folder: an empty file for each invitation that was used up

Ask = Callable[[str, Mapping[str, Any]], Mapping[str, Any]]  # a verb and its body, put to the server as administrator
Say = Callable[[str], None]


def administrator_asks(folder: Path, now: datetime, say: Say) -> Ask:
    """Puts questions to the server through its gate, by the certificate in the consortium's own folder.

    Raises:
        UserError: the folder is not in order, or its server has no public port.
    """
    control = administrator(folder, now).control
    return lambda verb, body: control.ask(verb, body, say)


def approve(
    folder: Path, names: Sequence[str], now: datetime, ask: Ask, agreed: Callable[[str], bool], say: Say
) -> None:
    """Lets in who waits at the server, if the user agrees; and gives the server what it does not have yet.

    Args:
        folder: that `hansa provision` made.
        names: whom to let in; none: whoever waits.
        now: with its zone.
        ask: puts a question to the server.
        agreed: asks the user, about one line.
        say: shows a line.

    Raises:
        UserError: one of the names does not wait, or the folder is not in order, or older than the server's roster.
        RunFailed: the server does not answer; what was decided stands here, and it is told the next time.
    """
    own = open_consortium(folder, now)
    found = ask("requests", {})
    if _catch_up(own, int(found["edition"]), ask, say):
        found = ask("requests", {})
    waiting = _sound(own, found["requests"], say)
    if missing := [name for name in names if name not in waiting]:
        there = ", ".join(waiting) or "nobody"
        raise UserError(*(f"{name}: no request of {name}'s waits at the server ({there} does)" for name in missing))
    if not waiting:
        say("nobody waits to be approved")
    chosen = [
        request
        for name, request in waiting.items()
        if (not names or name in names) and agreed(f"{name}, {_what(request)}, keys {request.fingerprint}")
    ]
    if chosen:
        _let_in(own, chosen, now)
        _tell(open_consortium(folder, now), ask)
        say(f"approved: {', '.join(request.site for request in chosen)}; each collects its certificate by itself")


def revoke(folder: Path, name: str, now: datetime, ask: Ask, say: Say) -> None:
    """Takes a site or a person out.

    Args:
        folder: that `hansa provision` made.
        name: the site's or the person's.
        now: with its zone.
        ask: puts a question to the server.
        say: shows a line.

    Raises:
        UserError: there is nobody of that name, or the folder is not in order.
        RunFailed: the server does not answer; what was decided stands here, and it is told the next time.
    """
    own = open_consortium(folder, now)
    Revoked(own.path).add(_fingerprint_of(own, name))  # first: whatever is cut off then, the name is out
    _settle(own, own.with_members([member for member in own.roster.sites if member.name != name]))
    own = open_consortium(folder, now)
    if (folder / "server" / SERVER_FILE).is_file():
        publish(folder / "server", _publication(own))
    say(f"{name} is out of edition {own.roster.edition} of the roster")
    _tell(own, ask)
    say(f"the server at {own.table.server} lets {name} in no more")


def _catch_up(own: Consortium, edition: int, ask: Ask, say: Say) -> bool:
    """Gives the server the roster if it has an older one; whether it had."""
    if edition > own.roster.edition:
        raise UserError(
            f"{own.path}: its roster is of edition {own.roster.edition}, the server's of {edition}; approve where the "
            "newest one is, or put that folder back"
        )
    if edition < own.roster.edition:
        _tell(own, ask)
        say(f"the server has got edition {own.roster.edition} of the roster, which it did not have yet")
    return edition < own.roster.edition


def _sound(own: Consortium, requests: Sequence[object], say: Say) -> dict[str, Request]:
    """The requests that are what they say, by site: the server's word does not count here."""
    found: dict[str, Request] = {}
    for body in requests:
        try:
            request = read_request(body)
            _check(own, request, [*own.roster.sites, *found.values()])
            found[request.site] = request
        except (Unsound, UserError) as error:
            say(f"warning: passed over a request: {error}")
    return found


def _check(own: Consortium, request: Request, others: Sequence[Member | Request]) -> None:
    """Raises Unsound or UserError where a request is not one that could be granted."""
    if request.invited is None:
        if not request.follows(own.roster.member(request.site)):
            raise Unsound(
                "keys", f"it asks for {request.site}'s next certificate, but not with what {request.site} has"
            )
        return
    if (own.path / GRANTED / request.invited.invitation.nonce).exists():
        raise Unsound("used", f"{request.site}'s invitation was used already")
    if not request.invited.is_by(own.roster_public.decode(errors="replace").strip()):
        raise Unsound("forged", f"{request.site} was not invited by this consortium")
    check_new_name(own, request.site)
    if any(request.sign == one.sign or set(request.nodes) & set(one.nodes) for one in others):
        raise Unsound("keys", f"{request.site} shows a key of another site's")


def _what(request: Request) -> str:
    return "its next certificate" if request.invited is None else "a new site"


def _let_in(own: Consortium, requests: Sequence[Request], now: datetime) -> None:
    members = {member.name: member for member in own.roster.sites}
    for request in requests:
        certificate = sign_site(own.authority, request.csr.encode(), request.site, now)
        issue(own.path, request.site, certificate)
        members[request.site] = Member(
            name=request.site, tls=fingerprint(certificate), sign=request.sign, nodes=request.nodes
        )
    _settle(own, own.with_members(list(members.values())))
    (own.path / GRANTED).mkdir(mode=0o700, exist_ok=True)
    for request in requests:
        if request.invited is not None:
            write_atomically(own.path / GRANTED / request.invited.invitation.nonce, b"")


def _settle(own: Consortium, roster: Roster) -> None:
    data = roster.to_bytes()
    swap(own.path, {ROSTER: data, ROSTER_SIGNATURE: sign(data, own.roster_key)})


def _tell(own: Consortium, ask: Ask) -> None:
    try:
        ask("publish", _publication(own))
    except Unanswered as unanswered:
        later = f"hansa approve {own.path.parent}"
        raise RunFailed(f"{unanswered}; it is done here, and the server does not know: tell it by {later}") from None


def _publication(own: Consortium) -> dict[str, Any]:
    certificates = {}
    for member in own.roster.sites:
        path = own.path / ISSUED / f"{member.name}.crt"
        if path.is_file() and fingerprint(path.read_bytes()) == member.tls:
            certificates[member.name] = path.read_text()
    revoked = sorted(Revoked(own.path).fingerprints())
    return {
        "roster": read(own.path, ROSTER).decode(),
        "signature": read(own.path, ROSTER_SIGNATURE).decode().strip(),
        "certificates": certificates,
        "revoked": revoked,
        "revoked_signature": sign_revoked(revoked, own.roster, own.roster_key),
    }


def _fingerprint_of(own: Consortium, name: str) -> str:
    """The fingerprint of a site's or a person's certificate."""
    if member := own.roster.member(name):
        return member.tls
    path = own.path / ISSUED / f"{name}.crt"
    if path.parent.is_dir() and name in {one.stem for one in path.parent.glob("*.crt")}:
        return fingerprint(path.read_bytes())
    known = sorted({member.name for member in own.roster.sites} | {one.stem for one in path.parent.glob("*.crt")})
    raise UserError(f"{name}: no site or person of {own.roster.consortium} ({', '.join(known)})")
