"""Certificates of a site's agents: of a small authority of the site's own, so that nobody else can let an agent in.

The consortium's authority would not do: it has signed other sites' certificates, and its founder could sign more. The
head makes itself a certificate at each start; an agent's is made by `hansa site agent-key`, and let in while it lies in
the site's folder.
"""

import ssl
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from hansa.errors import UserError
from hansa.files import write_atomically, write_private
from hansa.identity import Credential, ends, fingerprint, flaw, make_agent, make_authority, make_server
from hansa.startup import read

AGENTS = "agents"  # the folder
CA, CA_KEY, HEAD = "ca.crt", "ca.key", "head.pem"
HEAD_NAME = "head.hansa.internal"  # in the head's certificate, wherever it listens


def make_key(folder: Path, site: str, name: str, now: datetime) -> Path:
    """Makes a key and a certificate for agents, in place of those of that name; at first the authority, too."""
    own = folder / AGENTS
    own.mkdir(mode=0o700, exist_ok=True)
    if not (own / CA_KEY).exists():
        made = make_authority(f"agents of {site}", now)
        write_private(own / CA_KEY, made.key)
        write_atomically(own / CA, made.certificate)
    pair = make_agent(_authority(folder), site, name, now)
    return _written(own / f"{name}.pem", pair)


def agent_files(folder: Path) -> Iterator[Path]:
    """The keys of agents that are let in."""
    own = folder / AGENTS
    return (path for path in sorted(own.glob("*.pem")) if path.name != HEAD)


def admitted(folder: Path, shown: str) -> bool:
    """Whether the certificate with the fingerprint that was shown is one of an agent that is let in."""
    return any(fingerprint(_certificate(path)) == shown for path in agent_files(folder))


def until(path: Path) -> datetime:
    """When an agent's certificate ends."""
    return ends(_certificate(path))


def head_context(folder: Path, now: datetime) -> ssl.SSLContext:
    """The head's TLS: it shows a certificate made just now, and wants one of the site's authority.

    Raises:
        UserError: the site has no agents' keys yet.
    """
    path = _written(folder / AGENTS / HEAD, make_server(_authority(folder), [HEAD_NAME], now))
    made = _context(ssl.PROTOCOL_TLS_SERVER, folder, path)
    made.verify_mode = ssl.CERT_REQUIRED
    return made


def agent_context(folder: Path, name: str, now: datetime) -> ssl.SSLContext:
    """An agent's TLS.

    Raises:
        UserError: there is no key of that name, or its certificate is not good.
    """
    path = folder / AGENTS / f"{name}.pem"
    mend = f"hansa site agent-key {name} {folder}"
    if not path.exists():
        raise UserError(f"{path}: not there; make it with {mend}, or name another one with --key")
    pair = path.read_bytes()
    try:
        wrong = flaw(Credential(pair, pair), read(folder / AGENTS, CA), now)
    except ValueError as error:
        raise UserError(f"{path}: no certificate and key in PEM; {mend}") from error
    if wrong:
        raise UserError(f"{path}: the certificate {wrong}; {mend}")
    return _context(ssl.PROTOCOL_TLS_CLIENT, folder, path)


def _context(kind: int, folder: Path, pair: Path) -> ssl.SSLContext:
    made = ssl.SSLContext(kind)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    made.load_verify_locations(folder / AGENTS / CA)
    made.load_cert_chain(pair)
    return made


def _authority(folder: Path) -> Credential:
    own = folder / AGENTS
    if not (own / CA_KEY).exists():
        raise UserError(f"{own / CA_KEY}: not there; make the agents' keys with hansa site agent-key NODE {folder}")
    return Credential(read(own, CA), read(own, CA_KEY))


def _certificate(path: Path) -> bytes:
    return path.read_bytes()  # of a file of several things in PEM, the first certificate is taken


def _written(path: Path, pair: Credential) -> Path:
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    write_private(fresh, pair.certificate + pair.key)
    return fresh.replace(path)
