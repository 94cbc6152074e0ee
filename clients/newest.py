"""What a site fetches from the server's control end: its certificate when it was granted, and the newest roster.

Nothing is taken on the server's word: the authority beside it has signed the certificate, the roster key the roster.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hansa.controlclient import ControlClient
from hansa.errors import UserError
from hansa.identity import Credential, certified_key, certifies, fingerprint, flaw, tls_public
from hansa.request import make_claim
from hansa.roster import Roster, verified
from hansa.startup import CA, ROSTER, ROSTER_KEY, ROSTER_SIGNATURE, SIGN_KEY, TLS_CERTIFICATE, read, read_roster
from hansa.swap import swap

Say = Callable[[str], None]


@dataclass(frozen=True)
class Granted:
    """A certificate, and the roster that has it."""

    certificate: bytes
    roster: bytes
    signature: bytes


def granted(folder: Path, site: str, tls_key: bytes, control: ControlClient) -> Granted | None:
    """The certificate for a key, and the roster that has it; None: it is not granted yet.

    Args:
        folder: the site's: its authority, roster key and signing key.
        site: its name.
        tls_key: for which it has asked, PEM.
        control: of the server.

    Raises:
        UserError: the server refuses, or what it sends is not the consortium's.
        RunFailed: it does not answer.
    """
    claim = make_claim(site, read(folder, SIGN_KEY))
    answer = control.ask("collect", claim.model_dump(mode="json"), _quiet)
    if answer.get("state") != "approved":
        return None
    certificate, roster, signature = (_text(answer, key) for key in ("certificate", "roster", "signature"))
    if not certifies(certificate, read(folder, CA), site):
        raise UserError("the server sent a certificate that the consortium's authority did not sign for this site")
    if certified_key(certificate) != tls_public(tls_key):
        return None  # it is the one before
    if wrong := flaw(Credential(certificate, tls_key), read(folder, CA), datetime.now(UTC)):
        raise UserError(f"the certificate that was granted {wrong}; nothing was replaced, so try again then")
    newest = _checked(folder, roster, signature)
    if (folder / ROSTER).exists() and read_roster(folder).edition > newest.edition:
        raise UserError(f"the server sent an older {ROSTER} than this site has; ask the consortium")
    member = newest.member(site)
    if member is None or member.tls != fingerprint(certificate):
        raise UserError(f"the server sent a certificate that its {ROSTER} does not have; ask the consortium")
    return Granted(certificate, roster, signature)


def refresh_roster(folder: Path, site: str, control: ControlClient, say: Say) -> None:
    """Lays in the server's roster if it is newer; never an older one, and never one that this site's files do not fit.

    Raises:
        UserError: the server refuses, or what it sends is not the consortium's.
        RunFailed: it does not answer.
    """
    own = read_roster(folder)
    answer = control.ask("roster", {"edition": own.edition}, _quiet)
    if "roster" not in answer:
        return
    data, signature = _text(answer, "roster"), _text(answer, "signature")
    roster = _checked(folder, data, signature)
    if roster.edition <= own.edition:
        return
    member = roster.member(site)
    if member is None or member.tls != fingerprint(read(folder, TLS_CERTIFICATE)):
        say(f"edition {roster.edition} of the roster has another certificate for {site}; fetch it: hansa site renew")
        return
    swap(folder, {ROSTER: data, ROSTER_SIGNATURE: signature})
    sites = ", ".join(one.name for one in roster.sites)
    say(f"the roster is now of edition {roster.edition} (sites: {sites})")


def _text(answer: Mapping[str, Any], key: str) -> bytes:
    value = answer.get(key)
    if not isinstance(value, str):
        raise UserError(f"the server's answer has no {key}; update hansa at both ends")
    return value.encode()


def _quiet(line: str) -> None:
    """Shows nothing: these questions are answered without a line."""


def _checked(folder: Path, data: bytes, signature: bytes) -> Roster:
    try:
        roster = verified(data, signature, read(folder, ROSTER_KEY).decode(errors="replace"))
    except UserError:
        raise UserError(f"the server sent a {ROSTER} that the consortium's roster key did not sign") from None
    if roster.ca != fingerprint(read(folder, CA)):
        raise UserError(f"the server sent a {ROSTER} of another authority than {folder / CA}")
    return roster
