"""What app a site agrees to run, and whether its updates may leave as they do. It fails closed.

An app's code is allowed by its digest. federation.toml is not in it, so whatever that says is checked here: it may
choose among the app's own code, it may not say where rows are, and its numbers keep to the site's [bounds].
"""

import shutil
import tomllib
from pathlib import Path

from clients.bounds import BoundsTable
from clients.refusals import Reason, Refused, refuse_unbounded
from clients.sitefile import AppsTable, PolicyTable
from hansa.appfiles import FEDERATION, app_digest, app_files, code_elsewhere
from hansa.errors import UserError


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


def check_federation(app: Path, bounds: BoundsTable, own_data: bool) -> None:
    """Whether an admitted app's federation.toml says only what it may.

    Args:
        app: the folder of the admitted app.
        bounds: of its numbers.
        own_data: whether site.toml says where the site's rows are.

    Raises:
        Refused: it does not.
    """
    try:
        tables = tomllib.loads((app / FEDERATION).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:  # the last: tables within tables within tables
        raise Refused(Reason.FEDERATION, f"{FEDERATION}: {error}") from error
    code = app_files(app).keys()
    for text in code_elsewhere(tables, code):
        raise Refused(Reason.CODE, f"{FEDERATION} names {text!r}, and the app has no such file")
    if "data" in tables and not own_data:
        raise Refused(Reason.DATA, f"{FEDERATION} has a [data] table, site.toml has none")
    refuse_unbounded(bounds.broken_by(tables), FEDERATION)


def check_protection(policy: PolicyTable, secure_aggregation: bool) -> None:
    """Whether updates may leave as they do in this run.

    Raises:
        Refused: they would leave unprotected, and the site has not agreed to that.
    """
    if not secure_aggregation and not policy.allow_unprotected:
        raise Refused(Reason.UNPROTECTED, "secure aggregation is off and [policy] allow_unprotected is not true")
