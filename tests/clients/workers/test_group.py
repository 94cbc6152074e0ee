"""A group comes through whatever happens to a rank, and its answer is bit for bit what it would have been."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from clients.child import ChildDied, ChildFailed
from clients.failures import Failure
from clients.workers.group import STEPS, Group
from hansa.processes import started

if TYPE_CHECKING:
    from tests.clients.workers.conftest import Site

PROCS = 2
PAUSE = 0.02  # seconds a step, where something is to happen in the middle
ALL = 40  # steps of a plan


@pytest.fixture
def groups(site: "Site") -> Iterator[Callable[..., Group]]:
    with ExitStack() as stack:

        def make(**training: Any) -> Group:
            group = site.group(**{"procs": PROCS, **training})
            stack.callback(group.stop)
            return group

        yield make


@pytest.fixture(scope="module")
def group(shared: "Site") -> Iterator[Group]:
    """Whatever a test does to it, the next one finds it in order."""
    group = shared.group(procs=PROCS, checkpoint_interval=0.1)
    yield group
    group.stop()


@pytest.fixture(scope="module")
def whole(shared: "Site", group: Group) -> bytes:
    """The update of round 1, uninterrupted."""
    return shared.update(group)


def slow(site: "Site", group: Group, act: Callable[[], None], when: Callable[[], bool] | None = None) -> bytes:
    """The update of a plan in the middle of which something happens."""
    before = len(site.steps())
    site.pause(PAUSE)
    try:
        with site.meanwhile(when or (lambda: len(site.steps()) > before + 5), act):
            return site.update(group)
    finally:
        site.pause(0.0)


def reached(site: "Site", rank: int, steps: int) -> bool:
    return len(site.steps(rank)) >= steps


def kill(group: Group, rank: int, number: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    return lambda: os.kill(group.pids[rank], number)


def test_the_group_stays_and_repeats_itself(shared: "Site", group: Group, whole: bytes) -> None:
    pids = group.pids
    assert shared.update(group, 2) != whole
    assert shared.update(group, 1) == whole
    assert group.pids == pids
    assert [shared.steps(rank).count(pids[rank]) for rank in range(PROCS)] == [3 * ALL] * PROCS


def test_a_site_without_rows_for_a_plan_keeps_its_group(shared: "Site", group: Group, whole: bytes) -> None:
    pids = group.pids
    with pytest.raises(ChildFailed) as failed:
        shared.update(group, kind="evaluate", split="test")
    assert failed.value.code == Failure.SITS_OUT
    assert shared.update(group) == whole
    assert group.pids == pids


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.long), 1])
def test_a_rank_that_is_killed_changes_no_bit(shared: "Site", group: Group, whole: bytes, rank: int) -> None:
    """Both ranks have kept a step by then: the next generation goes on there."""
    generation = group.generation
    assert slow(shared, group, kill(group, rank), lambda: shared.kept(PROCS)) == whole
    assert group.generation == generation + 1
    assert 0 < shared.steps().count(group.pids[0]) < ALL
    assert not (shared.spool / STEPS).exists()


def test_an_error_in_one_rank_does_not_leave_the_others_waiting(shared: "Site", group: Group, whole: bytes) -> None:
    generation = group.generation
    (shared.trouble / "error1").touch()
    assert shared.update(group) == whole
    assert group.generation == generation + 1
    assert shared.said[-1].endswith("an error in rank 1; again")


def test_a_mistake_is_not_tried_again(shared: "Site", group: Group) -> None:
    """Rows that one rank cannot read are not read better by another process."""
    generation = group.generation
    (shared.trouble / "mistake1").touch()
    with pytest.raises(ChildFailed) as failed:
        shared.update(group)
    assert (failed.value.code, group.generation) == (Failure.INPUT, generation)


def test_a_rank_that_hangs_is_found_by_its_silence(site: "Site", groups: Callable[..., Group], whole: bytes) -> None:
    """SIGSTOP stops its heart, too, and no collective would tell in hours."""
    group = groups(heartbeat=3.0, max_restarts=10)
    hung = group.pids[1]
    assert slow(site, group, kill(group, 1, signal.SIGSTOP)) == whole
    assert "rank 1 hangs: silent for 3 s" in "".join(site.said)
    assert started(hung) is None


@pytest.mark.long
def test_a_rank_that_lives_and_does_not_come_is_waited_for_no_longer_than_is_told(
    site: "Site", groups: Callable[..., Group], whole: bytes
) -> None:
    """Its heart beats, so that only the others can tell."""
    group = groups(collective_timeout=2.0, max_restarts=10)
    (site.trouble / "stall1").touch()
    assert site.update(group) == whole
    assert "an error in rank 0; again" in "".join(site.said)


@pytest.mark.long
def test_a_rank_that_hung_between_plans_is_found(site: "Site", groups: Callable[..., Group], whole: bytes) -> None:
    group = groups(heartbeat=3.0, max_restarts=10)
    kill(group, 0, signal.SIGSTOP)()
    assert site.update(group) == whole


def test_what_dies_too_often_is_given_up_and_the_next_plan_is_done(site: "Site", groups: Callable[..., Group]) -> None:
    group = groups(procs=1, max_restarts=0, checkpoint_interval=0)
    with pytest.raises(ChildFailed) as failed:
        slow(site, group, kill(group, 0))
    assert failed.value.code == Failure.DIED
    assert site.said == ["training, generation 1: rank 0 has died; given up"]
    assert site.update(group)


@pytest.mark.long
def test_a_rank_that_died_between_plans_costs_no_restart(
    site: "Site", groups: Callable[..., Group], whole: bytes
) -> None:
    group = groups(max_restarts=0)
    os.kill(died := group.pids[1], signal.SIGKILL)
    os.waitid(os.P_PID, died, os.WEXITED | os.WNOWAIT)  # all its threads have ended
    assert site.update(group) == whole


@pytest.mark.long
def test_an_error_that_stays_is_told_as_one(site: "Site", groups: Callable[..., Group]) -> None:
    group = groups(max_restarts=0)
    (site.trouble / "error1").touch()
    with pytest.raises(ChildFailed) as failed:
        site.update(group)
    assert failed.value.code == Failure.TRAINING


@pytest.mark.long
def test_without_kept_steps_the_plan_begins_anew(site: "Site", groups: Callable[..., Group], whole: bytes) -> None:
    group = groups(checkpoint_interval=0)
    assert slow(site, group, kill(group, 1)) == whole
    assert site.steps().count(group.pids[0]) == ALL


def test_one_rank_alone_goes_on_likewise_and_ends_at_once_when_it_is_told(
    site: "Site", groups: Callable[..., Group]
) -> None:
    group = groups(procs=1, checkpoint_interval=0.1)
    alone = site.update(group)
    assert slow(site, group, kill(group, 0), lambda: site.kept(1)) == alone
    assert 0 < site.steps().count(group.pids[0]) < ALL
    with pytest.raises(ChildDied):
        slow(site, group, group.kill)
    assert group.dead


@pytest.mark.long
@pytest.mark.parametrize("parallel", [{"dp": PROCS}, {"shard": PROCS}], ids=["ddp", "fsdp2"])
def test_twenty_deaths_at_random_steps_change_no_bit(
    site: "Site", groups: Callable[..., Group], parallel: dict[str, int]
) -> None:
    group = groups(checkpoint_interval=0.2, parallel=parallel)
    whole = site.update(group)
    drawn = random.Random(20)
    for _ in range(20):
        rank = drawn.randrange(PROCS)
        at = len(site.steps(rank)) + drawn.randrange(1, ALL - 5)
        assert slow(site, group, kill(group, rank), partial(reached, site, rank, at)) == whole
    assert group.generation == 21
