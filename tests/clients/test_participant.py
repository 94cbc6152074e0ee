"""What a site does when its worker group ends: for good, or because its work is no longer wanted."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from clients.bounds import BoundsTable
from clients.child import ChildDied, ChildFailed
from clients.failures import LINES, Failure
from clients.link import Identity, Link
from clients.participant import MAX_DEATHS, Dropped, Participant
from clients.refusals import Reason, Refused
from clients.secure import SecureHalf
from clients.sitefile import SiteFile, load_site_file
from clients.spending import Reserve, Spending
from clients.sumrules import Said
from clients.workers.group import Group
from hansa.errors import UserError
from hansa.wire.link_pb2 import Blob, Plan, Result
from privacy.config import PrivacyTable


class Fetched:
    """A link whose plans bring no vectors; while they are fetched, `meanwhile` happens."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.meanwhile = meanwhile

    def fetch(self, plan: Plan) -> dict[str, Path]:
        self.meanwhile()
        return {}


class InMemory:
    """A worker group in memory: `ends` is asked how it ends in the middle of a plan, if it does."""

    def __init__(self, ends: Callable[[], Exception | None], done: list[str]) -> None:
        self.ends, self.done, self.dead = ends, done, False

    def work(self, plan: Plan, files: Mapping[str, Path], upload: Path) -> Result:
        if (end := self.ends()) is not None:
            self.dead = isinstance(end, ChildDied)
            raise end
        self.done.append(plan.id)
        return Result(plan=plan.id)

    def stop(self) -> None:
        self.dead = True


def file_of(folder: Path) -> SiteFile:
    (path := folder / "site.toml").write_text('[site]\nname = "here"\nserver = "there:9092"\n')
    return load_site_file(path)


class Site:
    """A participant on such a group."""

    def __init__(self, spool: Path, ends: Callable[["Site"], Exception | None]) -> None:
        self.done: list[str] = []

        def start() -> Group:
            return cast(Group, InMemory(lambda: ends(self), self.done))

        nobody: Any = None
        spending = Spending(spool, "run", file_of(spool), Said(PrivacyTable(), 9), nobody, print)
        self.one = Participant(
            nobody, start, Identity(spool, spool, spool), spool, print, BoundsTable(), nobody, True, spending, nobody
        )
        self.one.group, self.one.ready = start(), nobody

    def frame(self, plan: str, link: Fetched | None = None) -> Any:
        self.one.plan = plan
        return self.one._frame(cast(Link, link or Fetched()), Plan(id=plan, hyper="{}"))


def test_rounds_that_a_slow_site_misses_do_not_count_as_deaths(tmp_path: Path) -> None:
    """A new plan ends the work on the old one, by force; a site that is always too late is not broken."""

    def a_new_plan_comes(site: Site) -> ChildDied | None:
        if site.one.plan == "last":
            return None
        site.one.plan = "another"
        return ChildDied()

    site = Site(tmp_path, a_new_plan_comes)
    for number in range(2 * MAX_DEATHS):
        with pytest.raises(Dropped):
            site.frame(str(number))
    assert site.frame("last").HasField("result")


def test_a_group_that_dies_and_dies_is_given_up(tmp_path: Path) -> None:
    asked: list[str] = []

    def it_dies(site: Site) -> ChildFailed:
        asked.append(str(site.one.plan))
        return ChildFailed(Failure.DIED)

    site = Site(tmp_path, it_dies)
    answers = [site.frame(str(number)).refused.code for number in range(2 * MAX_DEATHS)]
    assert set(answers) == {Failure.DIED}
    assert len(asked) == MAX_DEATHS + 1


def test_errors_of_the_app_are_no_deaths(tmp_path: Path) -> None:
    site = Site(tmp_path, lambda site: ChildFailed(Failure.TRAINING) if site.one.plan != "last" else None)
    for number in range(2 * MAX_DEATHS):
        assert site.frame(str(number)).refused.code == Failure.TRAINING
    assert site.frame("last").HasField("result")


class Masked:
    """A half of secure aggregation that notes what came to it."""

    def __init__(self) -> None:
        self.nothing: list[str] = []

    def start(self, plan: Plan) -> str:
        return "000001-ab"

    def absent(self, plan: Plan, why: str) -> None:
        self.nothing.append(why)


def failing(tmp_path: Path, raised: BaseException) -> tuple[Site, Masked]:
    def fails(site: Site) -> None:
        raise raised

    site, masked = Site(tmp_path, fails), Masked()
    site.one.secure, site.one.plan = cast(SecureHalf, masked), "p"
    return site, masked


@pytest.mark.parametrize(
    ("raised", "why"),
    [(ChildFailed(code), LINES[code]) for code in Failure] + [(UserError("the disk is full"), LINES[Failure.SITE])],
)
def test_once_keys_are_out_no_failure_is_told(tmp_path: Path, raised: BaseException, why: str) -> None:
    """A server that picks the model would read from it what the rows make of that."""
    site, masked = failing(tmp_path, raised)
    frame = site.one._frame(cast(Link, Fetched()), Plan(id="p", hyper="{}", terms=b"some"))
    assert (frame, masked.nothing) == (None, [why])


@pytest.mark.parametrize(
    ("plan", "code"),
    [
        (Plan(id="p", hyper='{"lr": NaN}', terms=b"some"), "plan_absurd"),
        (Plan(id="p", hyper="{}", terms=b"some", vectors=[Blob(name="params", data=b"\0\0\x80\x7f")]), "plan_absurd"),
    ],
)
def test_what_a_plan_is_by_itself_is_told(tmp_path: Path, plan: Plan, code: str) -> None:
    site, masked = failing(tmp_path, AssertionError("it is not trained"))
    frame = site.one._frame(cast(Link, Fetched()), plan)
    assert frame is not None
    assert (frame.refused.code, masked.nothing) == (code, [])


@pytest.mark.parametrize(("unit", "told"), [("site", True), ("record", False)])
def test_a_budget_that_rows_have_spent_is_not_told(tmp_path: Path, unit: str, told: bool) -> None:
    """What a plan costs follows from the number of rows, unless a site is the unit."""
    site, masked = failing(tmp_path, Refused(Reason.BUDGET, "spent"))
    hyper = json.dumps({"note": '"unit": "site"', "dp": {"unit": unit}})
    site.one.spending = cast(Spending, Unaccounted())
    frame = site.one._frame(cast(Link, Fetched()), Plan(id="p", hyper=hyper, terms=b"some"))
    assert (frame is not None, len(masked.nothing)) == (told, not told)


class Unaccounted:
    @contextmanager
    def reserved(self, plan: Plan, ready: Any) -> Iterator[Reserve]:
        yield Reserve(plan)


def test_a_plan_that_is_over_when_its_vectors_are_here_is_not_trained(tmp_path: Path) -> None:
    site = Site(tmp_path, lambda site: None)

    def a_new_plan_comes() -> None:
        site.one.plan = "new"

    with pytest.raises(Dropped):
        site.frame("old", Fetched(a_new_plan_comes))
    assert site.done == []


def test_the_process_that_holds_the_session_and_the_secrets_stays_light() -> None:
    """Masks need NumPy; what trains is in another process, and so is the app's code."""
    start = "import sys, clients.app, clients.secure; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, check=True)
    assert {"grpc", "numpy", "privacy.secagg.site"} <= set(done.stdout.split())
    assert {"torch", "pandas", "sklearn"}.isdisjoint(done.stdout.split())
