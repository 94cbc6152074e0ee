"""Sites of two processes each, deployed: under secure aggregation, with differential privacy, and when things die."""

import json
import os
from collections.abc import Sequence
from signal import SIGKILL, SIGSTOP
from typing import TYPE_CHECKING

import pytest
import torch

from hansa.processes import started
from hansa.supervise import told
from privacy.dp.ledger import ledgers, read_account
from server.checkpoint import Checkpoints

if TYPE_CHECKING:
    from pathlib import Path

    from tests.deployment.conftest import Federation

THREE = ("amber", "beryl", "coral")
RANKS = "clients.workers.serve"
DELTA, EPSILON, ROUNDS = 1e-3, 4.0, 3
DP = f'[dp]\nunit = "record"\nepsilon = {EPSILON}\ndelta = {DELTA}\nclip = 1.0\n'
TWO = 'device = "cpu"\nthreads = 1\nprocs = 2\nparallel = { dp = 2 }\ncheckpoint_interval = 0.5\n'


def app_for_ranks(
    federation: "Federation",
    name: str,
    privacy: str,
    rounds: int = ROUNDS,
    quorum: int = 3,
    pause: float = 0.0,
    grouped: Sequence[str] = THREE,
) -> "Path":
    """Its model has nothing that depends on how many processes there are; three sites allow it, some have two ranks."""
    app = federation.app(name, rounds=rounds, quorum=quorum, pause=pause, privacy=privacy)
    task = app / "task.py"
    task.write_text(task.read_text().replace("BatchNorm1d(8)", "GroupNorm(2, 8)").replace("Dropout(0.5)", "Identity()"))
    for site in federation.sites:
        federation.write_site(site, apps=[app] if site in THREE else [])
    for site in grouped:
        federation.consortium.write_site(site, {"training": TWO})
    return app


def both(federation: "Federation", site: str) -> set[int]:
    """The site's ranks, as soon as both are there."""
    federation.until(lambda: len(federation.processes(site, RANKS)) == 2, f"{site} has two ranks")
    return federation.processes(site, RANKS)


@pytest.mark.long
def test_masked_sums_of_sites_with_two_ranks_are_those_of_one_process_each(federation: "Federation") -> None:
    """The simulation trains each site in one process; what remains is the rounding."""
    app = app_for_ranks(federation, "ranks-masked", "clip = 0.5\nmax_weight = 64")
    config = app / "federation.toml"
    run = federation.start(app)
    federation.finished(run)
    assert federation.rounds(run)["took_part"].tolist() == [3] * ROUNDS
    config.write_text(config.read_text().replace(json.dumps(federation.sites), json.dumps(THREE)))
    found = [
        Checkpoints(one / "checkpoints").load() for one in (federation.server / "runs" / run, federation.simulated(app))
    ]
    here, there = (one[0].params for one in found if one is not None)
    assert not torch.equal(there, torch.zeros_like(there))
    torch.testing.assert_close(here, there, atol=1e-4, rtol=0)


@pytest.mark.long
def test_three_sites_of_two_ranks_train_under_secure_aggregation_and_record_level_privacy(
    federation: "Federation",
) -> None:
    app = app_for_ranks(federation, "ranks-private", "clip = 0.5")
    config = app / "federation.toml"
    config.write_text(config.read_text().replace("drop_last = true\n", "") + DP)
    for site in THREE:
        federation.write_site(site, apps=[app])
        budget = f'epsilon = {2 * EPSILON}\ndelta = {DELTA}\ndataset = "ranks"\n'
        federation.consortium.write_site(site, {"training": TWO, "policy": "", "budget": budget})
    run = federation.start(app)
    ranks = {site: both(federation, site) for site in THREE}
    federation.finished(run)
    assert federation.rounds(run)["took_part"].tolist() == [3] * ROUNDS
    for site in THREE:
        every = map(read_account, ledgers(federation.consortium.site(site) / "ledgers"))
        (account,) = (one for one in every if one.subject.dataset == "ranks")
        assert [(one.run, one.round) for one in account.debits.values()] == [(run, r) for r in range(1, ROUNDS + 1)]
        assert 0.99 * EPSILON < account.cost().epsilon <= EPSILON
        assert "opened" in [line["what"] for line in federation.audit(site, run)]
    federation.until(lambda: not any(map(started, set().union(*ranks.values()))), "no rank is left")


@pytest.mark.long
def test_ranks_that_die_or_hang_and_a_killed_session_leave_nothing_behind(federation: "Federation") -> None:
    app = app_for_ranks(federation, "ranks-deaths", "secure = false", 200, quorum=2, pause=0.3, grouped=["coral"])
    run = federation.start(app)
    federation.in_round(run, 2)
    (holder,), known = federation.processes("coral"), set()
    for number in (SIGKILL, SIGSTOP):
        known |= (ranks := both(federation, "coral"))
        os.kill(min(ranks), number)
        federation.until(lambda old=ranks: not any(map(started, old)), "the generation has ended")  # type: ignore[misc]
        known |= both(federation, "coral")
        assert federation.processes("coral") == {holder}
        done = len(federation.rounds(run))
        federation.until(lambda n=done: len(federation.rounds(run)) > n + 1, "rounds go on")  # type: ignore[misc]
        assert federation.rounds(run)["took_part"].tolist()[-1] == 3
    os.kill(holder, SIGKILL)
    federation.until(lambda: not any(map(started, known)), "no rank outlives the session")
    federation.until(lambda: federation.events(run).count("coral is here") == 2, "coral is back")
    federation.stop(run)
    assert federation.rounds(run)["void"].isna().all()


@pytest.mark.long
def test_a_session_outlives_flowers_node_which_is_started_again(federation: "Federation") -> None:
    app = federation.app("node", rounds=12, pause=0.3)
    run = federation.start(app)
    federation.in_round(run, 3)
    holder, ranks = federation.processes("coral"), federation.processes("coral", RANKS)

    def node() -> int | None:
        found = told(federation.consortium.site("coral"), "site")
        return found["programs"]["Node"] if found else None

    dead = node()
    assert dead is not None
    os.kill(dead, SIGKILL)
    federation.until(lambda: node() not in (None, dead), "there is another node")
    done = len(federation.rounds(run))
    federation.until(lambda: len(federation.rounds(run)) > done + 1, "rounds go on")
    assert federation.processes("coral") == holder
    assert federation.processes("coral", RANKS) == ranks
    federation.finished(run)
    assert federation.rounds(run)["took_part"].tolist() == [4] * 12
    federation.assert_as_simulated(run, app)
