"""`hansa site renew`: the site's next TLS certificate, for a new key, asked for under the present one.

The new key waits in a folder of its own until the certificate has come; then both take the place of the old pair as
one. The running processes see it (`hansa.fresh`), and `hansa site up` fetches a certificate that was granted meanwhile.
"""

import shutil
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from clients.dial import way
from clients.newest import granted
from clients.sitefolder import SiteFolder, open_site_folder
from hansa.controlclient import ControlClient, Unanswered, in_folder
from hansa.errors import UserError
from hansa.folders import made, write_folder
from hansa.identity import ends, fingerprint, make_tls_key
from hansa.request import make_request
from hansa.startup import ROSTER, ROSTER_SIGNATURE, SIGN_KEY, TLS_CERTIFICATE, TLS_KEY, read
from hansa.swap import swap

RENEWAL = "renewal"  # the folder of the new key
OFTEN = 5.0  # seconds between two questions

Say = Callable[[str], None]


def renew(path: Path, say: Say) -> None:
    """Asks for the next certificate, and waits until it was granted.

    Args:
        path: the site's folder.
        say: shows a line.

    Raises:
        UserError: the folder is not in order, its server has no gate, or the server refuses.
        RunFailed: the server does not answer.
    """
    site = open_site_folder(path, datetime.now(UTC))
    if not site.file.network.gate:
        raise UserError(f"{path}: its server has no public port ([network] gate), by which a certificate is renewed")
    control = in_folder(way(site.file), path)
    if not is_asked(path):
        with made(path / RENEWAL) as new:
            write_folder(new, {TLS_KEY: make_tls_key()})
    keys = {TLS_KEY: new_key(path), **{name: read(path, name) for name in (SIGN_KEY, *site.node_keys)}}
    if not fetch(path, site.name, control, say):
        request = make_request(site.name, keys, present=fingerprint(site.startup.tls.certificate))
        control.ask("renew", request.model_dump(mode="json"), say)
        say(f"{site.name} asks for its next certificate; fingerprint of its keys: {request.fingerprint}")
        say("waiting to be approved; Ctrl-C is safe: hansa site up fetches it, or the same command goes on")
        _wait(site, control, say)


def is_asked(path: Path) -> bool:
    """Whether a site has asked for a certificate that it has not yet."""
    return (path / RENEWAL / TLS_KEY).is_file()


def new_key(path: Path) -> bytes:
    """The key for which it has asked."""
    return read(path / RENEWAL, TLS_KEY)


def fetch(path: Path, name: str, control: ControlClient, say: Say) -> bool:
    """Puts the new certificate and its key in place, if it was granted.

    Args:
        path: the site's folder, which has asked.
        name: of the site.
        control: of the server.
        say: shows a line.

    Raises:
        UserError: the server refuses, or what it sends is not the consortium's.
        RunFailed: it does not answer.
    """
    key = new_key(path)
    found = granted(path, name, key, control)
    if found is None:
        return False
    roster = {ROSTER: found.roster, ROSTER_SIGNATURE: found.signature}
    swap(path, {TLS_CERTIFICATE: found.certificate, TLS_KEY: key, **roster})
    shutil.rmtree(path / RENEWAL, ignore_errors=True)
    say(f"{path / TLS_CERTIFICATE}: renewed, good until {ends(found.certificate):%Y-%m-%d}; nothing needs a restart")
    return True


def _wait(site: SiteFolder, control: ControlClient, say: Say) -> None:
    lost = ""
    while True:
        try:
            if not is_asked(site.path) or fetch(site.path, site.name, control, say):
                return  # hansa site up may have been first
            lost = ""
        except Unanswered as unanswered:
            if str(unanswered) != lost:
                say(f"{unanswered}; trying on")
                lost = str(unanswered)
        time.sleep(OFTEN)
