"""`hansa site join`: from an invitation kit to a folder with which `hansa site up` starts.

All private keys are made here, and stay. The folder is begun before the server is asked, and finished when the
consortium has approved: until then it holds the kit, by which the same command goes on.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from clients.newest import Granted, granted
from clients.sitefolder import KIT, open_site_folder
from hansa.controlclient import ControlClient, Unanswered
from hansa.dial import way
from hansa.errors import UserError
from hansa.files import write_private
from hansa.folders import made, write_folder
from hansa.identity import make_node_key, make_signing_key, make_tls_key
from hansa.kit import Kit, read_kit
from hansa.proxy import Proxy, parse
from hansa.request import make_request
from hansa.sitetoml import site_toml
from hansa.startup import (
    CA,
    ROSTER,
    ROSTER_KEY,
    ROSTER_SIGNATURE,
    SIGN_KEY,
    SITE_FILE,
    TLS_CERTIFICATE,
    TLS_KEY,
    node_keys,
    read,
)
from hansa.swap import settle, swap

OFTEN, SELDOM = 3.0, 15.0  # seconds between two questions
PATIENT = 120.0  # seconds after which they become seldom
STILL = 300.0  # seconds between two lines while nothing happens

Say = Callable[[str], None]


def join(kit: Path, folder: Path | None, proxy: str | None, say: Say) -> None:
    """Joins a consortium, and waits until it has approved.

    Args:
        kit: the file that the consortium has sent.
        folder: of the site; None: one of the site's name, here.
        proxy: URL of one on the way to the server; None: as HANSA_PROXY says, or none.
        say: shows a line.

    Raises:
        UserError: the kit is none, the folder is something else, or the server refuses.
        RunFailed: the server does not answer.
    """
    invited, by = read_kit(kit), _proxy(proxy)
    folder = folder or Path(invited.site)
    road = way(invited.server, by)
    _begin(folder, invited)
    keys = {name: read(folder, name) for name in (TLS_KEY, SIGN_KEY, *node_keys(invited.nodes))}
    control = ControlClient(road, folder / CA)
    request = make_request(invited.site, keys, invited.invited)
    control.ask("enrol", request.model_dump(mode="json"), say)
    say(f"{invited.site} asks to join {invited.consortium}, at {invited.server}")
    say(f"tell the consortium the fingerprint of these keys: {request.fingerprint}")
    say("waiting to be approved; Ctrl-C is safe, and the same command goes on")
    found = _wait(folder, invited.site, control, say)
    _finish(folder, invited, found, proxy)
    for line in _next_steps(folder, invited):
        say(line)


def _proxy(url: str | None) -> Proxy | None:
    try:
        return None if url is None else parse(url)
    except ValueError as error:
        raise UserError(f"--proxy: {error}") from None


def _begin(folder: Path, kit: Kit) -> None:
    """Makes the folder with its keys, unless the same was begun before.

    Raises:
        UserError: something else is there.
    """
    settle(folder)
    if (folder / SITE_FILE).exists():
        (folder / KIT).unlink(missing_ok=True)
        raise UserError(f"{folder}: is a site's folder already; start it with hansa site up {folder}")
    if (folder / KIT).exists():
        before = read_kit(folder / KIT)
        if (before.site, before.roster_key, before.ca) != (kit.site, kit.roster_key, kit.ca):
            raise UserError(f"{folder}: {before.site} was about to join {before.consortium} there; give another folder")
        for name in node_keys(kit.nodes):  # a later kit may be for more nodes
            if not (folder / name).exists():
                write_private(folder / name, make_node_key().private)
        return
    if folder.exists():
        raise UserError(f"{folder}: is there, and nobody began to join in it; give a new folder")
    with made(folder) as new:
        files = {CA: kit.ca.encode(), ROSTER_KEY: f"{kit.roster_key}\n".encode(), TLS_KEY: make_tls_key()}
        keys = {SIGN_KEY: make_signing_key(), **{name: make_node_key() for name in node_keys(kit.nodes)}}
        private = {name: key.private for name, key in keys.items()}
        write_folder(new, {**files, **private, KIT: kit.to_bytes()})


def _wait(folder: Path, site: str, control: ControlClient, say: Say) -> Granted:
    """Asks until the request is granted; that nobody answers for a while is no reason to give up."""
    began = told = time.monotonic()
    lost = ""
    while True:
        try:
            if found := granted(folder, site, read(folder, TLS_KEY), control):
                return found
            lost = ""
        except Unanswered as unanswered:
            if str(unanswered) != lost:
                say(f"{unanswered}; trying on")
                lost = str(unanswered)
        if time.monotonic() > told + STILL:
            say("still waiting to be approved")
            told = time.monotonic()
        time.sleep(OFTEN if time.monotonic() < began + PATIENT else SELDOM)


def _finish(folder: Path, kit: Kit, found: Granted, proxy: str | None) -> None:
    files = {TLS_CERTIFICATE: found.certificate, ROSTER: found.roster, ROSTER_SIGNATURE: found.signature}
    swap(folder, {**files, SITE_FILE: site_toml(kit.site, kit.server, gate=True, proxy=proxy)})
    (folder / KIT).unlink(missing_ok=True)
    open_site_folder(folder, datetime.now(UTC))


def _next_steps(folder: Path, kit: Kit) -> list[str]:
    return [
        f"{kit.site} is a member of {kit.consortium}; its folder is {folder}, for its owner's eyes only",
        f"next: edit {folder / SITE_FILE} (where the rows are, which apps may run), then",
        f"    hansa site doctor {folder}",
        f"    hansa site up {folder}",
    ]
