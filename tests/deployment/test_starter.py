"""What `hansa init` writes runs on sites as it is, whoever gives it to the server."""

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hansa.supervise import told
from server.store import DONE, State
from simulations.starter.write import init

if TYPE_CHECKING:
    from tests.deployment.conftest import Federation


@pytest.mark.long
def test_hansa_run_and_flwr_run_take_an_app_as_it_was_written(federation: "Federation", tmp_path: Path) -> None:
    """The app's [data] says where the rows of a simulation are; the sites' own say where theirs are."""
    app = federation.folder / "apps" / "own"
    init(app, federation.consortium.site("amber") / "rows.csv", "ill", None, print)
    toml = app / "federation.toml"
    for site in federation.sites:
        federation.write_site(site, apps=[app])
    toml.write_text(toml.read_text().replace("rounds = 20", "rounds = 2"))  # which leaves the digest as it was

    federation.finished(federation.start(app, "by-hansa"))

    server = told(federation.server, "server")
    assert server is not None
    (tmp_path / "config.toml").write_text(
        f'[superlink.fed]\naddress = "{server["address"]}"\nroot-certificates = "{federation.server / "ca.crt"}"\n'
    )
    flwr, env = Path(sys.executable).with_name("flwr"), {**os.environ, "FLWR_HOME": str(tmp_path)}
    before = set(federation.store.runs()["run"])
    subprocess.run([flwr, "run", app, "fed"], env=env, check=True, capture_output=True)
    federation.until(lambda: set(federation.store.runs()["run"]) - before, "the run has begun")
    (run,) = set(federation.store.runs()["run"]) - before
    assert run.startswith("own-")
    federation.until(lambda: federation.state(run) is not State.RUNNING, f"run {run} is over")
    assert federation.state(run) in DONE
    assert federation.rounds(run)["took_part"].tolist() == federation.rounds("by-hansa")["took_part"].tolist() == [4, 4]
