"""What a site agrees to. It fails closed, and each refusal has a reason code that the server prints.

An app's code is allowed by its digest. federation.toml is not in it, so whatever that says is checked here: it may
choose among the app's own code, it may not say where rows are, and its numbers keep to the site's [bounds].
"""

import json
import math
import shutil
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from clients.bounds import BoundsTable
from clients.sitefile import AppsTable, PolicyTable
from hansa.appfiles import FEDERATION, app_digest, app_files, code_elsewhere
from hansa.choose import registered
from hansa.errors import UserError
from hansa.records import Part
from hansa.wire.link_pb2 import Plan
from privacy.config import PrivacyTable
from privacy.dp.config import DpTable
from privacy.dp.terms import HYPER
from privacy.secagg.terms import Terms
from privacy.secure import segment_of

MORE = 16  # rounds beyond [rounds] rounds that an evaluation may count, which a server that starts again asks anew
PIECE = 1 << 20  # numbers looked at at once


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
    TERMS = "terms_of_no_app"
    PLAN = "plan_absurd"
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
    Reason.TERMS: "the server sums otherwise than [privacy] in the app's federation.toml says, or more often",
    Reason.PLAN: "the plan's model or its hyper-parameters are not finite",
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
    if not _finite(values):
        raise Refused(Reason.PLAN, f"the plan of round {round}: a hyper-parameter that is not finite")


def check_vectors(plan: Plan, files: Mapping[str, Path]) -> None:
    """Whether a plan's model is one: with what is not finite, a site would tell by its answer what its rows make of it.

    Args:
        plan: as it came; what is small is in it.
        files: its larger vectors, by name.

    Raises:
        Refused: it is not.
    """
    for blob in plan.vectors:
        if blob.name == "counters":  # whole numbers
            continue
        file = files.get(blob.name)
        size = len(blob.data) if file is None else file.stat().st_size
        if size < 4:
            continue
        values = (
            np.frombuffer(blob.data, "<f4", size // 4) if file is None else np.memmap(file, "<f4", "r", 0, size // 4)
        )
        if not all(np.isfinite(values[at : at + PIECE]).all() for at in range(0, len(values), PIECE)):
            raise Refused(Reason.PLAN, f"the plan of round {plan.round}: {blob.name} is not finite")


def tells_rows(code: str, hyper: str) -> bool:
    """Whether a refusal of a plan tells of the rows here: unless a site is the unit, they say what a plan costs."""
    if code != Reason.BUDGET:
        return code == Reason.UNITS
    return bool(json.loads(hyper)[HYPER]["unit"] != "site")  # it has been read, or there would be no such refusal


def check_protection(policy: PolicyTable, secure_aggregation: bool) -> None:
    """Whether updates may leave as they do in this run.

    Raises:
        Refused: they would leave unprotected, and the site has not agreed to that.
    """
    if not secure_aggregation and not policy.allow_unprotected:
        raise Refused(Reason.UNPROTECTED, "secure aggregation is off and [policy] allow_unprotected is not true")


@dataclass(frozen=True)
class Said:
    """What an admitted app's federation.toml says of the sums of a run, to which a site holds the server."""

    privacy: PrivacyTable  # as [dp] has it
    rounds: int  # of the run

    @property
    def text(self) -> str:
        """All of it, in one form."""
        return json.dumps([self.privacy.model_dump(mode="json"), self.rounds], sort_keys=True)

    def broken_by(self, terms: Terms) -> str | None:
        """What of an attempt's terms is not as it says."""
        table, asked = self.privacy, len(terms.sites)
        if unbounded := [part.name for part in terms.parts if table.bound(part.name) is None]:
            return f"no clip for part {unbounded[0]!r}"
        parts = tuple(segment_of(table, part.name, Part(part.size, part.weight), asked) for part in terms.parts)
        rules = [
            (terms.rows == (table.max_weight or 1), f"max_weight = {terms.rows}"),
            (terms.bits == table.ring_bits, f"ring_bits = {terms.bits}"),
            (terms.parts == parts, f"{terms.parts}, where it is to be {parts}"),
            (terms.threshold >= table.least(asked), f"a threshold of {terms.threshold} of {asked}"),
            (terms.round <= self.rounds + MORE, f"round {terms.round} of {self.rounds}"),
        ]
        return next((problem for good, problem in rules if not good), None)


def said_by(app: Path) -> Said:
    """What an admitted app says of sums.

    Raises:
        Refused: it cannot be read.
    """
    try:
        tables = tomllib.loads((app / FEDERATION).read_text("utf-8-sig"))
        privacy = PrivacyTable.model_validate(tables.get("privacy", {}))
        dp = DpTable.model_validate(tables["dp"]) if "dp" in tables else None
        rounds = registered("hansa.tables")["rounds"].load().model_validate(tables.get("rounds", {})).rounds
    except ValidationError as error:
        raise Refused(Reason.FEDERATION, f"{FEDERATION} [{error.title}]: {error.error_count()} problems") from error
    return Said(privacy.under(dp), rounds)


def is_pair(policy: PolicyTable, members: int) -> bool:
    """Whether a sum over two sites may be opened: in a larger consortium the server would have it of all pairs."""
    return policy.allow_two_sites and members == 2


def check_terms(policy: PolicyTable, terms: Terms, said: Said, members: int) -> None:
    """Whether an attempt at secure aggregation is as this site and the app want it. The protocol checks the rest.

    Args:
        policy: the site's.
        terms: of the attempt.
        said: by the app.
        members: sites of the consortium.

    Raises:
        Refused: it is not.
    """
    asked, two = len(terms.sites), is_pair(policy, members)
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
    if (broken := said.broken_by(terms)) is not None:
        raise Refused(Reason.TERMS, f"terms with {broken}")


def _finite(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return not (isinstance(value, float) and not math.isfinite(value)) and all(map(_finite, inner))


def _within(broken: str | None, what: str) -> None:
    if broken is not None:
        raise Refused(Reason.BOUNDS, f"{what}: {broken} is not within [bounds]", broken)
