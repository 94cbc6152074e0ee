"""Secure aggregation in the whole deployment, by Flower; the coins are the operating system's."""

import os
from signal import SIGKILL
from typing import TYPE_CHECKING

import pytest
import torch

from server.checkpoint import Checkpoints
from server.store import State

if TYPE_CHECKING:
    from pathlib import Path

    from tests.deployment.conftest import Federation

PRIVACY = "clip = 0.5\nmax_weight = 64"


def params(run: "Path") -> torch.Tensor:
    found = Checkpoints(run / "checkpoints").load()
    assert found is not None
    return found[0].params


def masked_only(federation: "Federation", app: "Path") -> None:
    """The sites let nothing out without masks."""
    for site in federation.sites:
        federation.write_site(site, apps=[app])
        federation.consortium.write_site(site, {"policy": "max_clip = 0.5\nmin_ring_bits = 32\n"})


@pytest.mark.long
def test_a_masked_run_comes_to_what_the_simulation_does_but_for_the_rounding(federation: "Federation") -> None:
    app = federation.app("masked", 'name = "scaffold"', privacy=PRIVACY)
    masked_only(federation, app)
    run = federation.start(app)
    federation.finished(run)
    assert federation.rounds(run)["took_part"].tolist() == [4] * 4
    there = params(federation.simulated(app))
    torch.testing.assert_close(params(federation.server / "runs" / run), there, atol=1e-4, rtol=0)
    assert [entry["what"] for entry in federation.audit("coral", run)].count("opened") == 6


@pytest.mark.long
def test_a_site_whose_session_is_killed_is_missed_by_nobody_and_comes_back(federation: "Federation") -> None:
    app = federation.app("masked-killed", rounds=40, quorum=3, pause=0.3, privacy=PRIVACY)
    masked_only(federation, app)
    run = federation.start(app)
    federation.in_round(run, 3)
    (holder,) = federation.processes("coral")
    os.kill(holder, SIGKILL)
    federation.until(lambda: federation.events(run).count("coral is here") == 2, "coral is back")
    back = len(federation.rounds(run))
    federation.until(lambda: len(federation.rounds(run)) > back + 1, "it has taken part in a whole round")
    federation.stop(run)
    assert federation.rounds(run)["took_part"].tolist()[-1] == 4
    assert federation.rounds(run)["void"].isna().all()


@pytest.mark.long
def test_sites_refuse_a_run_that_would_show_their_updates(federation: "Federation") -> None:
    app = federation.app("bare")
    masked_only(federation, app)
    run = federation.start(app)
    federation.until(lambda: federation.state(run) is State.FAILED, "the run has failed")
    assert "unprotected_not_allowed" in federation.events(run)
