"""What a site agrees to. It fails closed, and each refusal has a reason code that the server prints.

An app's code is allowed by its digest. federation.toml is not in it, so whatever that says is checked here: it may
choose among the app's own code, it may not say where rows are, and its numbers keep to the site's [bounds].
"""

import json
import shutil
import tomllib
from enum import StrEnum
from pathlib import Path

from pydantic import ValidationError

from clients.bounds import BoundsTable
from clients.sitefile import AppsTable, PolicyTable
from hansa.appfiles import FEDERATION, app_digest, app_files, code_elsewhere
from hansa.errors import UserError
from privacy.config import PrivacyTable
from privacy.secagg.terms import Terms


class Reason(StrEnum):
    """Why a site refuses."""

    APP = "app_not_allowed"
    FEDERATION = "federation_unusable"
    CODE = "code_not_in_app"
    DATA = "no_data_of_its_own"
    BOUNDS = "out_of_bounds"
    UNPROTECTED = "unprotected_not_allowed"
    SITES = "too_few_sites"
    CLIP = "clip_too_large"
    RING = "ring_too_small"
    PRIVATE = "no_differential_privacy"
    BUDGET = "budget_spent"
    LEDGER = "ledger_unusable"
    UNITS = "rows_unfit"
    NOISE = "noise_of_server"


# What leaves the site: fixed texts, so that nothing of the site's own can be in them.
LINES = {
    Reason.APP: "this app is not among those that the site allows ([apps] allowed in its site.toml)",
    Reason.FEDERATION: "the app's federation.toml cannot be read; the site's log says why",
    Reason.CODE: "federation.toml names a file of code that is not in the app",
    Reason.DATA: "federation.toml says where rows are, but only the site may: it needs a [data] table in its site.toml",
    Reason.BOUNDS: "a number is not within what the site allows ([bounds] in its site.toml)",
    Reason.UNPROTECTED: "the site lets no update out without secure aggregation ([policy] allow_unprotected in its "
    "site.toml)",
    Reason.SITES: "a sum over so few sites may not be opened ([policy] min_sites and allow_two_sites in the site's "
    "site.toml)",
    Reason.CLIP: "[privacy] clip is larger than the site allows ([policy] max_clip in its site.toml)",
    Reason.RING: "[privacy] ring_bits is less than the site allows ([policy] min_ring_bits in its site.toml)",
    Reason.PRIVATE: "the site lets out what was trained under differential privacy only ([budget] in its site.toml)",
    Reason.BUDGET: "it would take more than the site's privacy budget ([budget] in its site.toml) has left",
    Reason.LEDGER: "the site's ledger of what it released cannot be used; the site's log says why",
    Reason.UNITS: "[dp] does not fit the site's rows; the site's log says why",
    Reason.NOISE: "only the server would add noise, and the site does not rely on that ([policy] trust_server_noise in "
    "its site.toml)",
}


class Refused(Exception):
    """A refusal: `code` and the exception's text may leave the site, `detail` stays in its own log.

    Args:
        code: why.
        detail: one line more, for the site's own people.
        key: of federation.toml, which may be named outside; its value and the site's bounds stay here.
    """

    def __init__(self, code: Reason, detail: str, key: str = "") -> None:
        super().__init__(f"{key}: {LINES[code]}" if key else LINES[code])
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
    _within(bounds.broken_by(tables), FEDERATION)


def check_plan(bounds: BoundsTable, hyper: str, round: int) -> None:
    """Whether a plan keeps to the bounds, whatever federation.toml had said.

    Args:
        bounds: the site's.
        hyper: the plan's hyper-parameters, JSON. What is no JSON is left to those who read the plan.
        round: the plan's.

    Raises:
        Refused: it does not.
    """
    try:
        values = json.loads(hyper)
    except (ValueError, RecursionError):
        return
    _within(bounds.broken_by_plan(values, round) if isinstance(values, dict) else None, f"the plan of round {round}")


def check_protection(policy: PolicyTable, secure_aggregation: bool) -> None:
    """Whether updates may leave as they do in this run.

    Raises:
        Refused: they would leave unprotected, and the site has not agreed to that.
    """
    if not secure_aggregation and not policy.allow_unprotected:
        raise Refused(Reason.UNPROTECTED, "secure aggregation is off and [policy] allow_unprotected is not true")


def secured(app: Path, sites: int) -> bool:
    """Whether an admitted app's federation.toml wants secure aggregation over so many sites.

    Raises:
        Refused: its [privacy] cannot be read.
    """
    try:
        table = PrivacyTable.model_validate(tomllib.loads((app / FEDERATION).read_text("utf-8-sig")).get("privacy", {}))
    except ValidationError as error:
        raise Refused(Reason.FEDERATION, f"{FEDERATION} [privacy]: {error.error_count()} problems") from error
    return table.wants(sites)


def check_terms(policy: PolicyTable, terms: Terms) -> None:
    """Whether an attempt at secure aggregation is as this site wants it. The protocol checks the rest by itself.

    Raises:
        Refused: it is not.
    """
    asked, two = len(terms.sites), policy.allow_two_sites
    if terms.threshold < (2 if two and asked == 2 else policy.min_sites):
        raise Refused(
            Reason.SITES, f"a sum over {terms.threshold} of {asked} sites, where min_sites = {policy.min_sites}"
        )
    for part in terms.parts:
        if policy.max_clip is not None and part.bound > policy.max_clip:
            raise Refused(
                Reason.CLIP, f"part {part.name!r} is clipped at {part.bound:g}, max_clip = {policy.max_clip:g}"
            )
    if terms.bits < policy.min_ring_bits:
        raise Refused(Reason.RING, f"a ring of {terms.bits} bits, where min_ring_bits = {policy.min_ring_bits}")


def _within(broken: str | None, what: str) -> None:
    if broken is not None:
        raise Refused(Reason.BOUNDS, f"{what}: {broken} is not within [bounds]", broken)
