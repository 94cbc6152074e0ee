"""The people of a consortium who ask its server from elsewhere: their certificates, and folders for their machines."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from hansa.errors import UserError
from hansa.files import write_atomically
from hansa.folders import made, write_folder
from hansa.identity import Credential, ends, fingerprint, make_person, uris
from hansa.person import PERSON_FILE, Person, open_person, person_toml
from hansa.roles import Role, uri
from hansa.startup import CA, SOON, TLS_CERTIFICATE, TLS_KEY
from hansa.swap import swap
from server.consortium import ISSUED, Consortium, open_consortium
from server.revoked import Revoked

FOUNDER = "founder"  # the administrator whose certificate is in the consortium's own folder

Someone = tuple[Role, str]


def person_files(authority: Credential, who: Someone, server: str, now: datetime) -> dict[str, bytes]:
    """What somebody's folder holds."""
    tls = make_person(authority, *who, now)
    files = {CA: authority.certificate, TLS_CERTIFICATE: tls.certificate, TLS_KEY: tls.key}
    return {**files, PERSON_FILE: person_toml(*who, server)}


def add_people(folder: Path, own: Consortium, people: Sequence[Someone], now: datetime) -> None:
    """Makes the folders people/NAME.

    Args:
        folder: that `hansa provision` made.
        own: what is in it.
        people: whom nobody has the name of.
        now: with its zone.
    """
    (folder / "people").mkdir(mode=0o700, exist_ok=True)
    for who in people:
        files = person_files(own.authority, who, own.table.server, now)
        with made(folder / "people" / who[1]) as new:
            write_folder(new, files)
        issue(own.path, who[1], files[TLS_CERTIFICATE])


def issue(own: Path, name: str, certificate: bytes) -> None:
    """Keeps a certificate that was given out: by it, its owner can be revoked."""
    (own / ISSUED).mkdir(mode=0o700, exist_ok=True)
    write_atomically(own / ISSUED / f"{name}.crt", certificate)


def taken(own: Consortium, folder: Path) -> dict[str, str]:
    """The names of sites and people that nobody else may have, in small letters: who has it."""
    revoked = Revoked(own.path).fingerprints()
    issued = {path.stem: path.read_bytes() for path in sorted((own.path / ISSUED).glob("*.crt"))}
    names = {name.casefold(): name for name, one in issued.items() if fingerprint(one) not in revoked}
    names |= {path.name.casefold(): path.name for path in (folder / "people").glob("[!.]*")}
    return {**names, **{site.name.casefold(): site.name for site in own.roster.sites}, FOUNDER: FOUNDER}


def administrator(folder: Path, now: datetime) -> Person:
    """The founder, as the server's administrator; a certificate that is missing or ends soon is made anew.

    Args:
        folder: that `hansa provision` made.
        now: with its zone.

    Raises:
        UserError: the folder is not in order, or its server has no public port.
    """
    own = open_consortium(folder, now)
    if not own.table.gate:
        raise UserError(f"{folder}: its server has no public port ([consortium] gate), so add sites by hansa provision")
    if not _lasts(own, now):
        files = person_files(own.authority, (Role.ADMINISTRATOR, FOUNDER), own.table.server, now)
        swap(own.path, {name: files[name] for name in files if name != PERSON_FILE or not (own.path / name).exists()})
        issue(own.path, FOUNDER, files[TLS_CERTIFICATE])
    return open_person(own.path, now)


def _lasts(own: Consortium, now: datetime) -> bool:
    """Whether the founder's certificate is good, and for a while."""
    try:
        found = (own.path / TLS_CERTIFICATE).read_bytes()
        mine = uri(Role.ADMINISTRATOR, FOUNDER) in uris(found) and now + SOON < ends(found)
        return mine and fingerprint(found) not in Revoked(own.path).fingerprints()
    except (OSError, ValueError):
        return False
