"""Differential privacy in the whole deployment, under secure aggregation: who enters what, and who refuses."""

import json
from typing import TYPE_CHECKING

import pytest

from privacy.dp.accounting import epsilon
from privacy.dp.ledger import Account, ledgers, read_account
from server.store import State

if TYPE_CHECKING:
    from pathlib import Path

    from tests.deployment.conftest import Federation

DELTA, EPSILON, ROUNDS = 1e-3, 4.0, 4
DP = f"""
[dp]
unit = "record"
epsilon = {EPSILON}
delta = {DELTA}
clip = 1.0
"""


def private(federation: "Federation", name: str, limits: dict[str, float]) -> "Path":
    """An app under [dp]; sites with a budget of so much."""
    app = federation.app(name, rounds=ROUNDS, quorum=3, privacy="clip = 0.5")
    task, config = app / "task.py", app / "federation.toml"
    task.write_text(task.read_text().replace("BatchNorm1d(8)", "GroupNorm(2, 8)"))
    config.write_text(config.read_text().replace("drop_last = true\n", "") + DP)
    for site in federation.sites:
        federation.write_site(site, apps=[app])
        budget = f'epsilon = {limits.get(site, 20.0)}\ndelta = {DELTA}\ndataset = "{name}"\n'
        federation.consortium.write_site(site, {"policy": "", "budget": budget})
    return app


def account(federation: "Federation", site: str, dataset: str) -> Account:
    every = map(read_account, ledgers(federation.consortium.site(site) / "ledgers"))
    (found,) = (one for one in every if one.subject.dataset == dataset)
    return found


@pytest.mark.long
def test_the_ledgers_of_the_sites_agree_with_the_report(federation: "Federation") -> None:
    app = private(federation, "private", {})
    run = federation.start(app)
    federation.finished(run)
    assert federation.rounds(run).query("kind == 'train'")["took_part"].tolist() == [4] * ROUNDS
    report = json.loads((federation.server / "runs" / run / "privacy.json").read_text())["each"]
    assert (report["epsilon"], report["delta"], report["unit"]) == (EPSILON, DELTA, "record")
    simulated = federation.simulated(app)
    there = json.loads((simulated / "privacy.json").read_text())
    for site in federation.sites:
        found = account(federation, site, "private")
        assert [(d.run, d.round) for d in found.debits.values()] == [(run, r) for r in range(1, ROUNDS + 1)]
        spent = found.cost().epsilon
        assert 0.99 * EPSILON < spent <= EPSILON
        assert spent == pytest.approx(there[site]["epsilon"])
        (kind,) = {d.event for d in found.debits.values() if d.event}
        assert spent == pytest.approx(epsilon([kind] * ROUNDS, DELTA).epsilon)


@pytest.mark.long
def test_a_site_whose_budget_is_spent_stops_before_the_release_and_the_run_says_so(federation: "Federation") -> None:
    app = private(federation, "spent", {"coral": 2.5})
    run = federation.start(app)
    federation.finished(run)
    assert "1 of 4 sites gave nothing" in federation.events(run)  # which one, its rows would tell
    assert "budget_spent" in [line["facts"].get("code") for line in federation.audit("coral", run)]
    assert account(federation, "coral", "spent").cost().epsilon <= 2.5
    assert federation.state(run) is State.FINISHED
