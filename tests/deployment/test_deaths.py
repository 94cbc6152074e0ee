"""Any process may be killed at any time: the run goes on, or goes on again, with nothing lost."""

import os
from signal import SIGKILL
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from hansa.supervise import told
from server.store import State

if TYPE_CHECKING:
    from tests.deployment.conftest import Federation


def test_a_training_process_that_is_killed_does_its_plan_again(federation: "Federation") -> None:
    """SCAFFOLD: the site's memory must not take the round in twice."""
    app = federation.app("child", 'name = "scaffold"', rounds=5, pause=0.3)
    run = federation.start(app)
    federation.in_round(run, 3)
    holder, (worker,) = federation.processes("coral"), federation.processes("coral", "clients.workers.serve")
    os.kill(worker, SIGKILL)
    federation.until(lambda: federation.processes("coral", "clients.workers.serve") - {worker}, "coral trains again")
    federation.until(lambda: len(federation.rounds(run)) >= 3, "round 3 is done")
    assert federation.processes("coral") == holder
    federation.finished(run)
    assert federation.rounds(run)["took_part"].tolist() == [4] * 5
    federation.assert_as_simulated(run, app)


@pytest.mark.long
def test_a_site_whose_session_is_killed_comes_back_while_the_others_go_on(federation: "Federation") -> None:
    run = federation.start(federation.app("clientapp", rounds=80, quorum=3, pause=0.3))
    federation.in_round(run, 3)
    (holder,) = federation.processes("coral")
    os.kill(holder, SIGKILL)
    federation.until(lambda: "coral left" in federation.events(run), "the server has noticed")
    federation.until(lambda: federation.processes("coral") - {holder}, "coral has another process")
    federation.until(lambda: federation.events(run).count("coral is here") == 2, "coral is back")
    back = len(federation.rounds(run))
    federation.until(lambda: len(federation.rounds(run)) > back + 1, "it has taken part in a whole round")
    federation.stop(run)
    assert federation.rounds(run)["took_part"].tolist()[-1] == 4
    assert federation.rounds(run)["took_part"].min() >= 3
    assert federation.rounds(run)["void"].isna().all()


@pytest.mark.long
def test_a_run_whose_server_process_is_killed_goes_on_with_the_same_sites(federation: "Federation") -> None:
    app = federation.app("serverapp", 'name = "scaffold"', rounds=10, pause=0.3)
    run = federation.start(app)
    federation.in_round(run, 5)
    holders = {site: federation.processes(site) for site in federation.sites}
    before = federation.store.frame(run).query("round < 4")
    os.kill(dead := federation.process(run), SIGKILL)
    federation.until(lambda: federation.process(run) != dead, "the run has another process")
    federation.until(lambda: len(federation.rounds(run)) > 5, "round 6 is done")
    assert {site: federation.processes(site) for site in federation.sites} == holders
    federation.finished(run)
    after = federation.store.frame(run).query("round < 4")
    pd.testing.assert_frame_equal(before, after, check_exact=True)
    assert "its process was gone; start 2 goes on" in federation.events(run)
    assert federation.rounds(run)["round"].tolist() == list(range(1, 11))
    federation.assert_as_simulated(run, app)


@pytest.mark.long
def test_a_run_survives_the_death_of_the_superlink(federation: "Federation") -> None:
    app = federation.app("superlink", rounds=10, pause=0.3)
    run = federation.start(app)
    federation.in_round(run, 3)
    process, holders = federation.process(run), [federation.processes(site) for site in federation.sites]

    def link() -> int | None:
        found = told(federation.server, "server")
        return found["programs"]["SuperLink"] if found else None

    dead = link()
    assert dead is not None
    os.kill(dead, SIGKILL)
    federation.until(lambda: link() not in (None, dead), "there is another SuperLink")
    federation.finished(run)
    assert federation.process(run) == process
    assert federation.rounds(run)["took_part"].tolist() == [4] * 10
    assert all(holders)
    federation.assert_as_simulated(run, app)


@pytest.mark.long
def test_sites_without_a_server_let_go_and_take_part_again_when_it_is_back(federation: "Federation") -> None:
    """`hansa server up` and the run's process are killed, so that nobody starts the run again."""
    federation.write_server(heartbeat=1, orphan_after=3)
    app = federation.app("orphans", rounds=8, pause=0.3)
    run = federation.start(app)
    federation.in_round(run, 3)
    assert all(federation.processes(site) for site in federation.sites)
    supervisor = federation.consortium.supervisors[federation.server]
    supervisor.kill()
    supervisor.wait()
    os.kill(federation.process(run), SIGKILL)
    federation.until(lambda: not any(map(federation.processes, federation.sites)), "no site holds a session")
    last = {site: federation.audit(site, run)[-1] for site in federation.sites}
    assert {entry["facts"].get("line") for entry in last.values()} == {"the server was gone for too long"}
    assert federation.state(run) is State.RUNNING

    federation.write_server(heartbeat=5, orphan_after=30)
    federation.consortium.start(federation.server)
    federation.finished(run)
    federation.assert_as_simulated(run, app)


@pytest.mark.long
def test_a_run_that_crashes_at_the_server_leaves_sites_and_port_to_the_next(federation: "Federation") -> None:
    bad = federation.app("crashing", rounds=3)
    task = bad / "task.py"
    task.write_text(f"{task.read_text()}\n    def server_data(self):\n        return [None]\n")
    good = federation.app("next", rounds=1)
    for site in federation.sites:
        federation.write_site(site, apps=[bad, good])
    run = federation.start(bad)
    federation.until(lambda: federation.state(run) is State.CRASHED, "the run has crashed")
    federation.finished(federation.start(good))
