"""`hansa provision`: makes a consortium's authority, and the folder with which each machine starts.

FOLDER/consortium    the authority and the roster key; stays with whoever provisions
FOLDER/server        for the server's machine
FOLDER/sites/NAME    for a site's machine
FOLDER/people/NAME   for the machine of somebody who asks the server: a researcher, an auditor, an administrator
"""

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from hansa.address import is_host, join
from hansa.errors import UserError, reason
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
from hansa.roles import Role
from hansa.roster import Member, Roster, sign
from hansa.sitetoml import site_toml
from hansa.startup import (
    CA,
    ROSTER,
    ROSTER_KEY,
    ROSTER_SIGNATURE,
    SERVER_FILE,
    SIGN_KEY,
    SITE_FILE,
    SUPEREXEC_SECRET,
    TLS_CERTIFICATE,
    TLS_KEY,
    node_keys,
)
from hansa.tables import A_NAME, is_name
from server.consortium import CA_KEY, CONSORTIUM_FILE, HOME, ROSTER_PRIVATE, Consortium, open_consortium
from server.events import ALL
from server.invite import check_nodes
from server.people import FOUNDER, Someone, add_people, issue, person_files, taken
from server.revoked import FILE as REVOKED
from server.revoked import NOBODY
from server.templates import CONSORTIUM_TOML, SERVER_TOML, direct, public

PUBLIC_PORT = 9443
PORT = 9092  # of Flower's end; without a public port, that of the sessions is the next


@dataclass(frozen=True)
class Founding:
    """What is settled when a consortium is made; an empty or absent one stands at its default."""

    name: str | None = None  # default: the folder's
    hosts: Sequence[str] = ()  # names and IP addresses of the server; the sites dial the first
    port: int | None = None
    direct: bool = False  # Flower and the sessions have a port each, and there is no gate


def provision(
    folder: Path,
    sites: Sequence[str],
    founding: Founding,
    now: datetime,
    people: Sequence[Someone] = (),
    nodes: int = 1,
) -> list[str]:
    """Makes a consortium in a new folder, or adds sites and people to the one that is there.

    Args:
        folder: of the consortium.
        sites: to add.
        founding: of a new consortium.
        now: with its zone.
        people: to add.
        nodes: of each of the sites: in so many runs can it take part at once.

    Returns:
        The folders that were made, and what is to be done with them: a line each.

    Raises:
        UserError: a name is wrong or taken, or something would be overwritten: nothing was changed then. Or a folder
            cannot be written.
    """
    _check_names(sites, people)
    check_nodes(nodes)
    if nodes != 1 and not sites:
        raise UserError("--nodes: is for the sites that are added; give --site too, or leave it out")
    try:
        if (folder / HOME).is_dir():
            _check_settled(folder, founding)
            return _add(folder, sites, now, people, nodes)
        if folder.exists():
            raise UserError(f"{folder}: is there, and no consortium in it; give a new folder, or that of a consortium")
        return _found(folder, sites, founding, now, people, nodes)
    except OSError as error:
        mend = "make room, mend its permissions, or give another folder"
        raise UserError(f"{error.filename or folder}: {reason(error)}; {mend}") from error


def _found(
    folder: Path, sites: Sequence[str], founding: Founding, now: datetime, people: Sequence[Someone], nodes: int
) -> list[str]:
    name, hosts, gate = founding.name or folder.resolve().name, founding.hosts or ("127.0.0.1",), not founding.direct
    port = (PUBLIC_PORT if gate else PORT) if founding.port is None else founding.port
    _check_founding(name, hosts, port, gate)
    if people and not gate:
        raise UserError("--direct: people ask the server at its public port, so it must have one; leave --direct out")
    authority, roster_key = make_authority(name, now), make_signing_key()
    server = join(hosts[0], port)
    server_tls = make_server(authority, list(dict.fromkeys([*hosts, "localhost", "127.0.0.1"])), now)
    with made(folder) as new:
        shared = {CA: authority.certificate, ROSTER_KEY: f"{roster_key.public}\n".encode()}
        text = CONSORTIUM_TOML % {"name": name, "server": server, "gate": str(gate).lower()}
        own = {CA_KEY: authority.key, ROSTER_PRIVATE: roster_key.private, CONSORTIUM_FILE: text.encode()}
        own[REVOKED] = NOBODY
        if gate:
            own |= person_files(authority, (Role.ADMINISTRATOR, FOUNDER), server, now)
        write_folder(new / HOME, shared | own)
        ways = public(hosts[0], port, PORT if port != PORT else PORT + 1) if gate else direct(hosts[0], port)
        text = SERVER_TOML % {"name": name, "ways": ways}
        theirs = {SUPEREXEC_SECRET: secrets.token_bytes(32), SERVER_FILE: text.encode(), REVOKED: NOBODY}
        write_folder(new / "server", shared | _tls_files(server_tls) | theirs)
        (new / "sites").mkdir(mode=0o700)
        maker = _Maker(authority, shared, (server, gate), nodes, now)
        members = [maker.write(new / "sites" / site, site) for site in sites]
        ordered = tuple(sorted(members, key=lambda member: member.name))
        roster = Roster(consortium=name, edition=1, ca=fingerprint(authority.certificate), sites=ordered)
        _publish(new, roster, roster_key.private)
        if gate:
            issue(new / HOME, FOUNDER, own[TLS_CERTIFICATE])
        if people:
            add_people(new, open_consortium(new, now), people, now)
    return [
        f"{folder / 'consortium'}: the authority of {name}; keep it offline, it goes to no machine",
        f"{folder / 'server'}: for the server's machine",
        *_told(folder, sites, people),
    ]


def _add(folder: Path, sites: Sequence[str], now: datetime, people: Sequence[Someone], nodes: int) -> list[str]:
    own = open_consortium(folder, now)
    _check_new(folder, own, sites, people)
    if people and not own.table.gate:
        raise UserError(
            f"{own.path / CONSORTIUM_FILE}: its server has no public port, so nobody can ask it from elsewhere"
        )
    shared, members = {CA: own.authority.certificate, ROSTER_KEY: own.roster_public}, list(own.roster.sites)
    maker = _Maker(own.authority, shared, (own.table.server, own.table.gate), nodes, now)
    for site in sites:
        with made(folder / "sites" / site) as new:
            members.append(maker.write(new, site))
    if sites:
        _publish(folder, own.with_members(members), own.roster_key)
    if people:
        add_people(folder, own, people, now)
    told = f"{ROSTER} and {ROSTER_SIGNATURE} changed: copy both to the server and to every site"
    return [*_told(folder, sites, people), *([told] if sites else [])]


@dataclass(frozen=True)
class _Maker:
    """Makes sites' folders."""

    authority: Credential
    shared: Mapping[str, bytes]  # files that are the same in each
    server: tuple[str, bool]  # the address, and whether it is the public port
    nodes: int
    now: datetime

    def write(self, folder: Path, site: str) -> Member:
        tls, sign_key = make_site(self.authority, site, self.now), make_signing_key()
        nodes = {name: make_node_key() for name in node_keys(self.nodes)}
        keys = {SIGN_KEY: sign_key.private, **{name: key.private for name, key in nodes.items()}}
        write_folder(folder, {**self.shared, **_tls_files(tls), **keys, SITE_FILE: site_toml(site, *self.server)})
        known = tuple(key.public for key in nodes.values())
        return Member(name=site, tls=fingerprint(tls.certificate), sign=sign_key.public, nodes=known)


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


def _check_names(sites: Sequence[str], people: Sequence[Someone]) -> None:
    given = [("site", site) for site in sites] + [(str(role), name) for role, name in people]
    problems = [f"--{what} {name}: must be {A_NAME}" for what, name in given if not is_name(name)]
    problems += [f"--site {ALL}: stands for all sites in a report; choose another name"] * (ALL in sites)
    problems += [
        f"--{what} {name}: is kept for who founds it; choose another name" for what, name in given if name == FOUNDER
    ]
    counts = Counter(name.casefold() for _, name in given)
    problems += [
        f"--{what} {name}: stands twice; names must differ in more than upper and lower case"
        for name, what in {name.casefold(): what for what, name in reversed(given)}.items()
        if counts[name] > 1
    ]
    if problems:
        raise UserError(*problems)


def _check_settled(folder: Path, founding: Founding) -> None:
    if founding != Founding():
        raise UserError(
            f"{folder}: --consortium, --host, --port and --direct were settled when it was made; leave them out"
        )


def _check_new(folder: Path, own: Consortium, sites: Sequence[str], people: Sequence[Someone]) -> None:
    if not sites and not people:
        raise UserError("nothing to add; give names, e.g. --site boston, --researcher ann, --auditor bob")
    there, consortium = taken(own, folder), own.roster.consortium
    given = [("site", site) for site in sites] + [(str(role), name) for role, name in people]
    problems = [
        f"--{what} {name}: {consortium} has {there[name.casefold()]} already"
        for what, name in given
        if name.casefold() in there
    ]
    leftover = [path for path in (folder / "sites" / site for site in sites) if path.exists()]
    if not problems:
        problems = [f"{path}: is there, but not in the roster; remove it and try again" for path in leftover]
    if problems:
        raise UserError(*problems)


def _check_founding(name: str, hosts: Sequence[str], port: int, gate: bool) -> None:
    problems = [] if is_name(name) else [f"--consortium {name}: must be {A_NAME}"]
    problems += [
        f"--host {host}: must be a DNS name or an IP address, without a port" for host in hosts if not is_host(host)
    ]
    last, why = (65535, "") if gate else (65534, "; the sessions have the next")
    if not 1 <= port <= last:
        problems.append(f"--port {port}: must be between 1 and {last}{why}")
    if problems:
        raise UserError(*problems)


def _told(folder: Path, sites: Sequence[str], people: Sequence[Someone]) -> list[str]:
    paths = [(folder / "sites" / site, site) for site in sites]
    paths += [(folder / "people" / name, f"{role} {name}") for role, name in people]
    return [f"{path}: for {who}, over a way that nobody else reads" for path, who in paths]
