"""What a site does when its worker group ends: for good, or because its work is no longer wanted."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from clients.bounds import BoundsTable
from clients.child import ChildDied, ChildFailed
from clients.failures import Failure
from clients.link import Identity, Link
from clients.participant import MAX_DEATHS, Dropped, Participant
from clients.sitefile import PolicyTable
from clients.spending import Spending
from clients.workers.group import Group
from hansa.wire.link_pb2 import Plan, Result


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


class Site:
    """A participant on such a group."""

    def __init__(self, spool: Path, ends: Callable[["Site"], Exception | None]) -> None:
        self.done: list[str] = []

        def start() -> Group:
            return cast(Group, InMemory(lambda: ends(self), self.done))

        nobody: Any = None
        spending = Spending(spool, "run", None, PolicyTable(), nobody, print)
        self.one = Participant(
            nobody, start, Identity(spool, spool, spool), spool, print, BoundsTable(), nobody, True, spending
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
