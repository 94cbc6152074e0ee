"""A site's folder: its file, its keys, and the roster that says whose they are."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clients.sitefile import SiteFile, load_site_file
from hansa.errors import UserError
from hansa.identity import fingerprint, load_signing_key, node_public, signing_public, uris
from hansa.roster import Roster
from hansa.startup import (
    ROSTER,
    SIGN_KEY,
    SITE_FILE,
    TLS_CERTIFICATE,
    Startup,
    node_keys,
    read,
    read_startup,
)
from hansa.wire.rules import site_uri

T = TypeVar("T")

KIT = "joining.kit"  # in the folder of a site that is about to join


@dataclass(frozen=True)
class SiteFolder:
    """A folder whose parts fit together. Flower and gRPC read the other keys from their files."""

    path: Path
    file: SiteFile
    startup: Startup
    sign_key: Ed25519PrivateKey = field(repr=False)

    @property
    def name(self) -> str:
        """The site's."""
        return self.file.site.name

    @property
    def node_keys(self) -> list[str]:
        """The files of its nodes' keys."""
        member = self.roster.member(self.name)
        return node_keys(len(member.nodes)) if member else []

    @property
    def roster(self) -> Roster:
        """The consortium's."""
        return self.startup.roster


def open_site_folder(path: Path, now: datetime) -> SiteFolder:
    """Reads and checks a site's folder.

    Raises:
        UserError: site.toml is wrong, a line a problem; or a key, a certificate or the roster is missing, was changed,
            is out of date or belongs to another site or consortium, in one line.
    """
    check_joined(path)
    if not (path / SITE_FILE).is_file():
        raise UserError(f"{path}: no site's folder, there is no {SITE_FILE} in it; give the one that join has made")
    file, startup = load_site_file(path / SITE_FILE), read_startup(path, now)
    sign_key = _check_own(path, file.site.name, startup)
    return SiteFolder(path, file, startup, sign_key)


def check_joined(path: Path) -> None:
    """Whether a folder is not one in which somebody has only begun to join.

    Raises:
        UserError: it is.
    """
    if (path / KIT).exists() and not (path / SITE_FILE).exists():
        raise UserError(f"{path}: {path.name} has not joined yet: go on with hansa site join {path / KIT} {path}")


def _check_own(path: Path, name: str, startup: Startup) -> Ed25519PrivateKey:
    """The site's signing key, when the site's entry in the roster is made of the keys that are here."""
    member, certificate = startup.roster.member(name), startup.tls.certificate
    if member is None:
        there = ", ".join(site.name for site in startup.roster.sites)
        raise UserError(f'{path / SITE_FILE} [site] name: "{name}" is not in {ROSTER} (sites: {there})')
    if site_uri(name) not in uris(certificate) or fingerprint(certificate) != member.tls:
        raise _foreign(path, TLS_CERTIFICATE, name)
    sign_key = _parsed(load_signing_key, read(path, SIGN_KEY))
    if sign_key is None or signing_public(sign_key) != member.sign:
        raise _foreign(path, SIGN_KEY, name)
    for file, node in zip(node_keys(len(member.nodes)), member.nodes, strict=True):
        if _parsed(node_public, read(path, file)) != node:
            raise _foreign(path, file, name)
    return sign_key


def _parsed(parse: Callable[[bytes], T], key: bytes) -> T | None:
    """What is made of a key; None if it is none. The parser's own words are dropped."""
    try:
        return parse(key)
    except ValueError:
        return None


def _foreign(path: Path, file: str, name: str) -> UserError:
    return UserError(f"{path / file}: not the one that {ROSTER} has for {name}; copy both from the site's own folder")
