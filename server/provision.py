"""`hansa provision`: makes a consortium's authority, and the folder with which each machine starts.

FOLDER/consortium    the authority and the roster key; stays with whoever provisions
FOLDER/server        for the server's machine
FOLDER/sites/NAME    for a site's machine
"""

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hansa.address import is_host, join
from hansa.errors import UserError
from hansa.files import write_atomically
from hansa.folders import made, write_folder
from hansa.identity import (
    Credential,
    fingerprint,
    make_authority,
    make_node_key,
    make_server,
    make_signing_key,
    make_site,
)
from hansa.roster import Member, Roster, sign
from hansa.sitetoml import site_toml
from hansa.startup import (
    CA,
    NODE_KEY,
    ROSTER,
    ROSTER_KEY,
    ROSTER_SIGNATURE,
    SERVER_FILE,
    SIGN_KEY,
    SITE_FILE,
    SUPEREXEC_SECRET,
    TLS_CERTIFICATE,
    TLS_KEY,
)
from hansa.tables import A_NAME, is_name
from server.consortium import CA_KEY, CONSORTIUM_FILE, HOME, ROSTER_PRIVATE, open_consortium
from server.events import ALL
from server.templates import CONSORTIUM_TOML, SERVER_TOML, listening

PORT = 9092  # of Flower's end; that of the sessions is the next


@dataclass(frozen=True)
class Founding:
    """What is settled when a consortium is made; an empty or absent one stands at its default."""

    name: str | None = None  # default: the folder's
    hosts: Sequence[str] = ()  # names and IP addresses of the server; the sites dial the first
    port: int | None = None


def provision(folder: Path, sites: Sequence[str], founding: Founding, now: datetime) -> list[str]:
    """Makes a consortium in a new folder, or adds sites to the one that is there.

    Args:
        folder: of the consortium.
        sites: to add.
        founding: of a new consortium.
        now: with its zone.

    Returns:
        The folders that were made, and what is to be done with them: a line each.

    Raises:
        UserError: a name is wrong or taken, or something would be overwritten: nothing was changed then. Or a folder
            cannot be written.
    """
    _check_names(sites)
    try:
        if (folder / HOME).is_dir():
            _check_settled(folder, founding)
            return _add(folder, sites, now)
        if folder.exists():
            raise UserError(f"{folder}: is there, and no consortium in it; give a new folder, or that of a consortium")
        return _found(folder, sites, founding, now)
    except OSError as error:
        raise UserError(f"{error.filename or folder}: {(error.strerror or str(error)).lower()}; see to it") from error


def _found(folder: Path, sites: Sequence[str], founding: Founding, now: datetime) -> list[str]:
    name, hosts, port = founding.name or folder.resolve().name, founding.hosts or ("127.0.0.1",), founding.port
    port = PORT if port is None else port
    _check_founding(name, hosts, port)
    authority, roster_key = make_authority(name, now), make_signing_key()
    facts = {"name": name, "server": join(hosts[0], port), "flower": join("127.0.0.1", port)}
    server_tls = make_server(authority, list(dict.fromkeys([*hosts, "localhost", "127.0.0.1"])), now)
    with made(folder) as new:
        shared = {CA: authority.certificate, ROSTER_KEY: f"{roster_key.public}\n".encode()}
        own = {
            CA_KEY: authority.key,
            ROSTER_PRIVATE: roster_key.private,
            CONSORTIUM_FILE: (CONSORTIUM_TOML % facts).encode(),
        }
        write_folder(new / HOME, shared | own)
        text = SERVER_TOML % {**facts, "session": listening(hosts[0], port + 1)}
        own = {SUPEREXEC_SECRET: secrets.token_bytes(32), SERVER_FILE: text.encode()}
        write_folder(new / "server", shared | _tls_files(server_tls) | own)
        (new / "sites").mkdir(mode=0o700)
        members = [_write_site(new / "sites" / site, site, authority, shared, facts["server"], now) for site in sites]
        ordered = tuple(sorted(members, key=lambda member: member.name))
        roster = Roster(consortium=name, edition=1, ca=fingerprint(authority.certificate), sites=ordered)
        _publish(new, roster, roster_key.private)
    return [
        f"{folder / 'consortium'}: the authority of {name}; keep it offline, it goes to no machine",
        f"{folder / 'server'}: for the server's machine",
        *_told(folder, sites),
    ]


def _add(folder: Path, sites: Sequence[str], now: datetime) -> list[str]:
    own = open_consortium(folder, now)
    _check_new(folder, own.roster, sites)
    shared, members = {CA: own.authority.certificate, ROSTER_KEY: own.roster_public}, list(own.roster.sites)
    for site in sites:
        with made(folder / "sites" / site) as new:
            members.append(_write_site(new, site, own.authority, shared, own.table.server, now))
    _publish(folder, own.with_members(members), own.roster_key)
    return [
        *_told(folder, sites),
        f"{ROSTER} and {ROSTER_SIGNATURE} changed: copy both to the server and to every site",
    ]


def _write_site(
    folder: Path, site: str, authority: Credential, shared: Mapping[str, bytes], server: str, now: datetime
) -> Member:
    tls, sign_key, node_key = make_site(authority, site, now), make_signing_key(), make_node_key()
    keys = {SIGN_KEY: sign_key.private, NODE_KEY: node_key.private}
    write_folder(folder, {**shared, **_tls_files(tls), **keys, SITE_FILE: site_toml(site, server)})
    return Member(name=site, tls=fingerprint(tls.certificate), sign=sign_key.public, node=node_key.public)


def _publish(folder: Path, roster: Roster, key: bytes) -> None:
    """Signs a roster and lays it into every folder that is there, the authority's last: it tells what is settled."""
    data = roster.to_bytes()
    signature = sign(data, key)
    for path in [folder / "server", *sorted((folder / "sites").iterdir()), folder / HOME]:
        if path.is_dir() and not path.name.startswith("."):
            write_atomically(path / ROSTER, data)
            write_atomically(path / ROSTER_SIGNATURE, signature)


def _tls_files(tls: Credential) -> dict[str, bytes]:
    return {TLS_CERTIFICATE: tls.certificate, TLS_KEY: tls.key}


def _check_names(sites: Sequence[str]) -> None:
    if not sites:
        raise UserError("--site: is missing; give the name of each site, e.g. --site boston --site lyon")
    problems = [f"--site {site}: must be {A_NAME}" for site in sites if not is_name(site)]
    problems += [f"--site {ALL}: stands for all sites in a report; choose another name"] * (ALL in sites)
    counts = Counter(site.casefold() for site in sites)
    problems += [
        f"--site {site}: stands twice; names must differ in more than upper and lower case"
        for site, count in counts.items()
        if count > 1
    ]
    if problems:
        raise UserError(*problems)


def _check_settled(folder: Path, founding: Founding) -> None:
    if founding != Founding():
        raise UserError(f"{folder}: --consortium, --host and --port were settled when it was made; leave them out")


def _check_new(folder: Path, roster: Roster, sites: Sequence[str]) -> None:
    there = {member.name.casefold() for member in roster.sites}
    problems = [f"--site {site}: {roster.consortium} has this site" for site in sites if site.casefold() in there]
    leftover = [path for path in (folder / "sites" / site for site in sites) if path.exists()]
    if not problems:
        problems = [f"{path}: is there, but not in the roster; remove it and try again" for path in leftover]
    if problems:
        raise UserError(*problems)


def _check_founding(name: str, hosts: Sequence[str], port: int) -> None:
    problems = [] if is_name(name) else [f"--consortium {name}: must be {A_NAME}"]
    problems += [
        f"--host {host}: must be a DNS name or an IP address, without a port" for host in hosts if not is_host(host)
    ]
    if not 1 <= port <= 65534:
        problems.append(f"--port {port}: must be between 1 and 65534; the sessions have the next")
    if problems:
        raise UserError(*problems)


def _told(folder: Path, sites: Sequence[str]) -> list[str]:
    return [f"{folder / 'sites' / site}: for {site}, over a way that nobody else reads" for site in sites]
