"""A run under secure aggregation with its real ends: the server in this process, each site in one of its own."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from hansa.config import load
from hansa.records import Plan, Refusal, Reply
from server.checkpoint import Checkpoints
from server.securecohort import SecureCohort
from server.serving import Seat, Serving
from server.store import FILE, Store
from simulations.configured import federation_of
from simulations.demo.consortium import Consortium
from simulations.engines.siteloop import SiteLoop

SITES = ("amber", "beryl", "coral", "dolomite")
WAIT = 400.0  # seconds for what takes a few on an idle machine
PROCESS = Path(__file__).with_name("site_process.py")

TASK = """
    from torch import nn

    import hansa


    class Small(hansa.Task):
        def model(self):
            return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))
"""
FEDERATION = """
    [federation]
    name = "secure"
    task = "task.py:Small"
    seed = 5
    [strategy]
    {strategy}
    [training]
    epochs = 1
    batch_size = 8
    drop_last = true
    lr = 0.1
    [rounds]
    rounds = {rounds}
    quorum = {quorum}
    deadline = 120
    [privacy]
    clip = 0.5
    max_weight = 60
    ring_bits = {bits}
    [data]
    csv = "{folder}/sites/{{site}}/rows.csv"
    target = "ill"
    standardize = true
    split = {{ test = 0.25 }}
    [simulation]
    sites = {sites}
    device = "cpu"
"""
DATA = 'csv = "rows.csv"\ntarget = "ill"\nstandardize = true\nsplit = { test = 0.25 }\n'


@dataclass
class Starter:
    """Starts a site's process for each invitation, and again when it is gone.

    Args:
        federation: whose sites.
        app: the app's folder.
        dies: site -> rounds, and the step in each at which its process kills itself, once.
    """

    federation: "Federation"
    app: Path
    dies: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    declined: dict[str, str] = field(default_factory=dict)
    busy: dict[str, list[str]] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def look(
        self, sites: Collection[str], present: set[str], invitation: Callable[[str, int], Mapping[str, str | int]]
    ) -> None:
        for node, site in enumerate(SITES):
            process = self.processes.get(site)
            if site not in present and (process is None or process.poll() is not None):
                self.start(site, node, invitation(site, node))

    def start(self, site: str, node: int, invitation: Mapping[str, str | int]) -> None:
        home = self.federation.consortium.site(site)
        said: dict[str, Any] = {"site": str(home), "app": str(self.app), "node": node, "invitation": dict(invitation)}
        said |= {"secrets": str(self.federation.secrets / site), "dies": self.dies.get(site, {})}
        with (home / "log").open("ab") as log:
            command = [sys.executable, str(PROCESS), json.dumps(said)]
            self.processes[site] = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def drain(self, seconds: float) -> None:
        for process in self.processes.values():
            process.wait(WAIT)


@dataclass
class Federation:
    """What tests do with the consortium."""

    consortium: Consortium
    folder: Path
    secrets: Path  # a folder: what no file elsewhere may hold

    def app(
        self, name: str, strategy: str = 'name = "fedavg"', rounds: int = 3, bits: int = 32, quorum: int = 4
    ) -> Path:
        folder = self.folder / "apps" / name
        folder.mkdir(parents=True)
        facts = {"folder": self.consortium.folder, "sites": json.dumps(SITES), "strategy": strategy, "quorum": quorum}
        (folder / "task.py").write_text(textwrap.dedent(TASK))
        toml = textwrap.dedent(FEDERATION).format(**facts, rounds=rounds, bits=bits)
        (folder / "federation.toml").write_text(toml)
        return folder

    def serve(self, app: Path, dies: Mapping[str, Mapping[int, str]] | None = None) -> Path:
        """Runs an app to its end; the run's folder. Rounds wait for sites that are gone, however slow the machine."""
        seat = Seat(self.consortium.server, app.name, 1)
        starter = Starter(self, app, dies or {})
        with pytest.MonkeyPatch.context() as patient:
            patient.setattr("server.serving.ASSEMBLE", WAIT)
            patient.setattr("server.securecohort.STEP", WAIT)
            patient.setattr("server.serving.SecureCohort", partial(SecureCohort, rejoin=WAIT))
            try:
                Serving(app, seat, starter, self.log).serve()
            finally:
                for process in starter.processes.values():
                    process.kill()
        return seat.home

    def log(self, line: str) -> None:
        with (self.consortium.server / "log").open("a") as file:
            file.write(f"{line}\n")

    @property
    def store(self) -> Store:
        return Store(self.consortium.server / "runs" / FILE)

    def dropped(self, run: str) -> set[tuple[int, str]]:
        """Rounds and the sites that took no part in them."""
        events = self.store.events(run).query("kind == 'note'")
        found = zip(
            events["round"].tolist(), events["text"].str.extract(r"^(\w+) took no part")[0].tolist(), strict=True
        )
        return {(number, site) for number, site in found if isinstance(site, str)}

    def simulated(self, app: Path, dropped: set[tuple[int, str]], monkeypatch: pytest.MonkeyPatch) -> Path:
        """The run's folder of the same federation, simulated, the same sites dropped."""

        def answer(self: SiteLoop, site: str, plan: Plan, part_of: int | None) -> Reply | Refusal:
            gone = plan.kind == "train" and (plan.round, site) in dropped
            return Refusal(site, "gone", late=True) if gone else self.sites[site].handle(plan)

        monkeypatch.setattr(SiteLoop, "_answer", answer)
        runs = self.folder / "simulated"
        federation_of(load(app / "federation.toml")).run(runs, app.name)
        return runs / app.name


def assert_same(here: Path, there: Path) -> None:
    """Two runs came to the same bits: model, state, and pooled metrics."""
    one, two = load_file(here / "model.safetensors"), load_file(there / "model.safetensors")
    assert one.keys() == two.keys()
    assert [name for name in one if not torch.equal(one[name], two[name])] == []
    found, wanted = (Checkpoints(run / "checkpoints").load() for run in (here, there))
    assert found is not None
    assert wanted is not None
    (state, progress), (expected, simulated) = found, wanted
    assert torch.equal(state.params, expected.params)
    assert torch.equal(state.counters, expected.counters)
    assert all(torch.equal(state.shared[name], expected.shared[name]) for name in expected.shared)
    assert progress == simulated
    deployed, expected_metrics = (pooled(run) for run in (here, there))
    pd.testing.assert_frame_equal(deployed, expected_metrics, check_exact=True)


def pooled(run: Path) -> pd.DataFrame:
    return Store(run.parent / FILE).frame(run.name).query("scope == 'all'").reset_index(drop=True)


@pytest.fixture(scope="session")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    folder = tmp_path_factory.mktemp("secure")
    (folder / "secrets").mkdir()
    federation = Federation(Consortium(folder / "consortium", SITES), folder, folder / "secrets")
    for number, site in enumerate(SITES):
        generator = np.random.default_rng(number)
        x = generator.normal(size=(40 + 8 * number, 6))
        ill = (x @ np.arange(6) + generator.normal(size=len(x)) > number).astype(int)
        rows = pd.DataFrame(x, columns=list("abcdef")).assign(ill=ill)
        rows.to_csv(federation.consortium.site(site) / "rows.csv", index=False)
        tables = {"data": DATA, "training": 'device = "cpu"\nthreads = 1\n'}
        federation.consortium.write_site(site, tables)
    return federation
