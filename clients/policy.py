"""What a site agrees to. It fails closed, and each refusal has a reason code that the server prints."""

import shutil
from enum import StrEnum
from pathlib import Path

from clients.sitefile import AppsTable, PolicyTable
from hansa.appfiles import app_digest, app_files
from hansa.errors import UserError


class Reason(StrEnum):
    """Why a site refuses."""

    APP = "app_not_allowed"
    UNPROTECTED = "unprotected_not_allowed"


# What leaves the site: fixed texts, so that nothing of the site's own can be in them.
LINES = {
    Reason.APP: "this app is not among those that the site allows ([apps] allowed in its site.toml)",
    Reason.UNPROTECTED: "the site lets no update out without secure aggregation ([policy] allow_unprotected in its "
    "site.toml)",
}


class Refused(Exception):
    """A refusal: `code` and the exception's text may leave the site, `detail` stays in its own log.

    Args:
        code: why.
        detail: one line more, for the site's own people.
    """

    def __init__(self, code: Reason, detail: str) -> None:
        super().__init__(LINES[code])
        self.code = code
        self.detail = detail


def admit(app: Path, apps: AppsTable, into: Path) -> str:
    """Copies an app that is allowed to a folder of its own, from which it may be run.

    What was delivered may hold more than was digested: compiled modules, caches, hidden files. Python would prefer
    some of them to the sources, so nothing is ever run where it was delivered.

    Args:
        app: the folder as it was delivered.
        apps: what is allowed.
        into: the folder, made anew: what was there goes.

    Returns:
        The digest.

    Raises:
        Refused: its digest is not allowed, or it has none.
    """
    try:
        files = app_files(app)
        digest = app_digest(files)
    except UserError as error:
        raise Refused(Reason.APP, str(error)) from error
    if digest not in apps.allowed:
        raise Refused(Reason.APP, f"{digest} is not in [apps] allowed")
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(mode=0o700, parents=True)
    for name, content in files.items():
        (into / name).parent.mkdir(parents=True, exist_ok=True)
        (into / name).write_bytes(content)
    return digest


def check_protection(policy: PolicyTable, secure_aggregation: bool) -> None:
    """Whether updates may leave as they do in this run.

    Raises:
        Refused: they would leave unprotected, and the site has not agreed to that.
    """
    if not secure_aggregation and not policy.allow_unprotected:
        raise Refused(Reason.UNPROTECTED, "secure aggregation is off and [policy] allow_unprotected is not true")
