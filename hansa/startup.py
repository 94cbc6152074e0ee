"""The folder with which an end starts: what every such folder holds, and whether it fits together."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from hansa.errors import UserError, reason
from hansa.identity import Credential, ends, fingerprint, flaw
from hansa.roster import Roster, verified
from hansa.swap import settle

CA = "ca.crt"
TLS_CERTIFICATE, TLS_KEY = "tls.crt", "tls.key"
ROSTER, ROSTER_SIGNATURE, ROSTER_KEY = "roster.json", "roster.sig", "roster.pub"
SERVER_FILE, SUPEREXEC_SECRET = "server.toml", "superexec.secret"
SITE_FILE, SIGN_KEY = "site.toml", "sign.key"

SOON = timedelta(days=30)  # before a certificate ends, from which on it is told


def numbered(name: str, number: int) -> str:
    """What belongs to a site's nth node, from 1: node.key, node-2.key, ..."""
    stem, dot, suffix = name.partition(".")
    return name if number == 1 else f"{stem}-{number}{dot}{suffix}"


def node_keys(count: int) -> list[str]:
    """The files of a site's node keys."""
    return [numbered("node.key", number) for number in range(1, count + 1)]


@dataclass(frozen=True)
class Startup:
    """What both ends have."""

    ca: bytes  # PEM
    tls: Credential
    roster: Roster


def read_startup(folder: Path, now: datetime) -> Startup:
    """Reads and checks what both ends have.

    Raises:
        UserError: a file is missing, was changed, belongs to another consortium or is out of date; one line.
    """
    settle(folder)
    roster = read_roster(folder)
    return Startup(read(folder, CA), read_tls(folder, now), roster)


def read_tls(folder: Path, now: datetime) -> Credential:
    """The folder's TLS certificate and key, if they are good: see `flaw`.

    Raises:
        UserError: a file is missing, or they are not; one line.
    """
    tls = Credential(read(folder, TLS_CERTIFICATE), read(folder, TLS_KEY))
    try:
        wrong = flaw(tls, read(folder, CA), now)
    except ValueError as error:
        raise UserError(
            f"{folder}: {TLS_CERTIFICATE} or {TLS_KEY} is no PEM file of its kind; copy both anew"
        ) from error
    if wrong:
        raise UserError(f"{folder / TLS_CERTIFICATE}: the certificate {wrong}; ask the consortium for a new one")
    return tls


def ending(folder: Path, certificate: bytes, now: datetime, mend: str) -> str | None:
    """A line when the certificate of a folder ends soon.

    Args:
        folder: in which it is.
        certificate: PEM.
        now: with its zone.
        mend: what is to be done.
    """
    left = ends(certificate) - now
    if left > SOON:
        return None
    when = f"{ends(certificate):%Y-%m-%d}, in {max(left.days, 0)} days"
    return f"warning: {folder / TLS_CERTIFICATE}: the certificate ends on {when}; {mend}"


def read_roster(folder: Path) -> Roster:
    """The folder's roster: signed by the roster key, and naming the authority that stands beside it.

    Raises:
        UserError: it is not, or a file is missing; one line.
    """
    try:
        roster = _signed_roster(folder)
    except UserError:  # perhaps they were read while they were being replaced
        settle(folder)
        roster = _signed_roster(folder)
    ca = read(folder, CA)
    try:
        known = fingerprint(ca) == roster.ca
    except ValueError as error:
        raise UserError(f"{folder / CA}: no certificate in PEM; copy it anew from the consortium's folder") from error
    if not known:
        raise UserError(f"{folder / CA}: not the authority that {ROSTER} names; copy both from one consortium")
    return roster


def _signed_roster(folder: Path) -> Roster:
    key = read(folder, ROSTER_KEY).decode(errors="replace")
    return verified(read(folder, ROSTER), read(folder, ROSTER_SIGNATURE), key)


def read(folder: Path, name: str) -> bytes:
    """A file of the folder.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return (folder / name).read_bytes()
    except OSError as error:
        raise UserError(f"{folder / name}: {reason(error)}; copy it from what `hansa provision` made") from error
