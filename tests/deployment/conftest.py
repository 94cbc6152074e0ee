"""A consortium deployed on this machine: a server and four sites, each with its own supervisor and Flower processes."""

import io
import json
import re
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

from clients.memory import MemoryOnDisk
from hansa.appfiles import app_digest, app_files
from hansa.config import load
from hansa.processes import command_of, marked
from hansa.startup import SITE_FILE
from hansa.supervise import told
from server import command
from server.checkpoint import Checkpoints, Progress
from server.store import DONE, FILE, State, Store
from simulations.configured import federation_of
from simulations.demo.consortium import Consortium

SITES = ("amber", "beryl", "coral", "dolomite")
WAIT = 180.0  # seconds for what takes a few on an idle machine

# Dropout draws while it trains, batch norm has an integer buffer. Only the deployed sites are slow.
TASK = """
    import os
    import time

    from torch import nn

    import hansa


    class Slow(hansa.Task):
        def model(self):
            return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))

        def batch_transform(self, batch):
            if "HANSA_SITE" in os.environ:
                time.sleep({pause})
            return batch
"""
PYPROJECT = """
    [project]
    name = "{name}"
    version = "1.0.0"
    [tool.flwr.app]
    publisher = "test"
    [tool.flwr.app.components]
    serverapp = "server.app:app"
    clientapp = "clients.app:app"
    [tool.flwr.app.config]
    hansa-run = ""
    hansa-epoch = 1
"""
FEDERATION = """
    [federation]
    name = "{name}"
    task = "task.py:Slow"
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
    [privacy]
    {privacy}
    [data]
    csv = "{folder}/sites/{{site}}/rows.csv"
    target = "ill"
    standardize = true
    split = {{ test = 0.25 }}
    [simulation]
    sites = {sites}
    device = "cpu"
"""
DATA = 'csv = "{csv}"\ntarget = "ill"\nstandardize = true\nsplit = {{ test = 0.25 }}\n'


@dataclass
class Federation:
    """What tests do with the consortium."""

    consortium: Consortium
    folder: Path  # of apps and simulations

    sites = SITES

    @property
    def server(self) -> Path:
        return self.consortium.server

    @cached_property
    def store(self) -> Store:
        return Store(self.server / "runs" / FILE)

    def app(
        self,
        name: str,
        strategy: str = 'name = "fedavg"',
        rounds: int = 4,
        quorum: int = 4,
        pause: float = 0.0,
        privacy: str = "secure = false",
    ) -> Path:
        """A new app, which all sites allow."""
        folder = self.folder / "apps" / name
        folder.mkdir(parents=True)
        facts = {"folder": self.consortium.folder, "sites": json.dumps(SITES), "name": name}
        facts |= {"strategy": strategy, "rounds": rounds, "quorum": quorum, "privacy": privacy}
        texts = {"pyproject.toml": PYPROJECT, "federation.toml": FEDERATION, "task.py": TASK}
        for file, text in texts.items():
            (folder / file).write_text(textwrap.dedent(text).format(**facts, pause=pause))
        for site in SITES:
            self.write_site(site, apps=[folder])
        return folder

    def write_site(self, site: str, apps: Sequence[Path] = (), csv: str = "rows.csv") -> None:
        """A site's settings: the apps that it allows, the file of its rows."""
        digests = json.dumps([app_digest(app_files(app)) for app in apps])
        tables = {"apps": f"allowed = {digests}\n", "data": DATA.format(csv=csv)}
        tables |= {"training": 'device = "cpu"\nthreads = 1\n', "policy": "allow_unprotected = true\n"}
        self.consortium.write_site(site, tables)

    def write_server(self, **runs: float) -> None:
        """Settles keys of [runs] in server.toml, which each start of a run reads anew."""
        file = self.server / "server.toml"
        for key, value in runs.items():
            file.write_text(re.sub(rf"(?m)^{key} = \S+", f"{key} = {value:g}", file.read_text()))

    def start(self, app: Path, run: str | None = None) -> str:
        """Starts a run; its id."""
        run = run or app.name
        command.start(app, self.server, name=run, detach=True, console=Console(file=io.StringIO()))
        return run

    def resume(self, run: str) -> None:
        command.resume(self.server, name=run, detach=True, console=Console(file=io.StringIO()))

    def stop(self, run: str) -> None:
        command.stop(self.server, run, Console(file=io.StringIO()))

    def logs(self, run: str) -> str:
        """What `hansa logs` shows of a run that is over."""
        said = io.StringIO()
        command.logs(self.server, run, Console(file=said, soft_wrap=True))
        return said.getvalue()

    def until(self, condition: Callable[[], object], what: str, seconds: float = WAIT) -> None:
        """Waits for a condition, and prints how long it took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() < began + seconds, f"not within {seconds:g} s: {what}"
            time.sleep(0.1)
        print(f"{time.monotonic() - began:.1f} s until {what}")

    def status(self) -> str:
        """What `hansa status` shows."""
        said = io.StringIO()
        command.status(self.server, Console(file=said, soft_wrap=True))
        return said.getvalue()

    def state(self, run: str) -> State | None:
        """How a run stands; None if it has not begun."""
        if run not in self.store.runs()["run"].tolist():
            return None
        return State(self.store.entry(run)["state"])

    def rounds(self, run: str) -> pd.DataFrame:
        """The training rounds of a run."""
        return self.store.rounds(run).query("kind == 'train'") if self.state(run) else pd.DataFrame()

    def events(self, run: str) -> str:
        return "\n".join(self.store.events(run)["text"])

    def in_round(self, run: str, number: int) -> None:
        """Waits until a round of a run is under way."""
        self.until(
            lambda: len(self.rounds(run)) >= number - 1 or self.state(run) not in (None, State.RUNNING),
            f"run {run} is in round {number}",
        )
        assert self.state(run) is State.RUNNING, self.events(run)

    def finished(self, run: str, seconds: float = WAIT) -> None:
        """Waits until a run is complete."""
        self.until(lambda: self.state(run) not in (None, State.RUNNING), f"run {run} is over", seconds)
        assert self.state(run) in DONE, self.events(run)

    def processes(self, site: str, what: str = "flwr-clientapp") -> set[int]:
        """The processes of a site that hold a session, or that train (`clients.workers.serve`)."""
        supervisor = told(self.consortium.site(site), "site")
        return {pid for pid in marked(supervisor["mark"]) if what in command_of(pid)} if supervisor else set()

    def process(self, run: str) -> int:
        """The process that serves a run."""
        return int(json.loads((self.server / "runs" / run / "process.json").read_text())[1])

    def noted(self, site: str, run: str, what: str) -> bool:
        return what in [line["what"] for line in self.audit(site, run)]

    def audit(self, site: str, run: str) -> list[dict[str, Any]]:
        """What a site noted of a run."""
        path = self.consortium.site(site) / "audit.jsonl"
        lines = path.read_text().splitlines() if path.is_file() else []
        return [line for line in map(json.loads, lines) if line["run"] == run]

    def simulated(self, app: Path) -> Path:
        """The run's folder of the same federation, simulated."""
        runs = self.folder / "simulated"
        federation_of(load(app / "federation.toml")).run(runs, app.name)
        return runs / app.name

    def assert_as_simulated(self, run: str, app: Path) -> None:
        """The deployed run gave what the simulation gives, bit for bit: model, state, site memory, pooled metrics."""
        here, there = self.server / "runs" / run, self.simulated(app)
        _assert_same_tensors(load_file(here / "model.safetensors"), load_file(there / "model.safetensors"))
        (state, progress), (expected, simulated) = _checkpoint(here), _checkpoint(there)
        _assert_same_tensors(state.shared, expected.shared)
        _assert_same_tensors(
            {"params": state.params, "counters": state.counters},
            {"params": expected.params, "counters": expected.counters},
        )
        assert progress == simulated
        for site, version in progress.memory.items():
            own = MemoryOnDisk(self.consortium.site(site) / "memory" / run).load(version)
            _assert_same_tensors(own, MemoryOnDisk(there / "memory" / site).load(version))
        pd.testing.assert_frame_equal(
            _pooled(self.store, run), _pooled(Store(there.parent / FILE), app.name), check_exact=True
        )


def _checkpoint(run: Path) -> tuple[Any, Progress]:
    found = Checkpoints(run / "checkpoints").load()
    assert found is not None
    return found


def _pooled(store: Store, run: str) -> pd.DataFrame:
    return store.frame(run).query("scope == 'all'").reset_index(drop=True)


def _assert_same_tensors(one: Any, two: Any) -> None:
    assert one.keys() == two.keys()
    assert [name for name in one if not torch.equal(one[name], two[name])] == []


class Public(Consortium):
    """A consortium whose server has one public port, and whose sites have two nodes each."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, SITES, nodes=2)
        file = self.server / "server.toml"
        found = re.search(r'(?m)^flower = "(\S+)"', text := file.read_text())
        assert found is not None
        text = text.replace(found[0], f'flower = "127.0.0.1:0"\npublic = "{found[1]}"')
        file.write_text(re.sub(r"(?m)^session = .*\n", "", text))
        for site in SITES:
            self.write_site(site, {"network": "gate = true\n"})


def with_rows(consortium: Consortium, folder: Path) -> Federation:
    """The consortium with rows at each site, and no app allowed."""
    federation = Federation(consortium, folder)
    for number, site in enumerate(SITES):
        generator = np.random.default_rng(number)
        x = generator.normal(size=(40 + 8 * number, 6))
        ill = (x @ np.arange(6) + generator.normal(size=len(x)) > number).astype(int)
        rows = pd.DataFrame(x, columns=list("abcdef")).assign(ill=ill)
        rows.to_csv(consortium.site(site) / "rows.csv", index=False)
        federation.write_site(site)
    return federation


@pytest.fixture(scope="session")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    folder = tmp_path_factory.mktemp("deployed")
    consortium = Consortium(folder / "consortium", SITES)
    federation = with_rows(consortium, folder)
    with consortium:
        yield federation


@pytest.fixture
def public(tmp_path: Path) -> Iterator[Federation]:
    """Two nodes a site, and one port for all."""
    consortium = Public(tmp_path / "consortium")
    federation = with_rows(consortium, tmp_path)
    with consortium:
        yield federation


@pytest.fixture
def federation(deployed: Federation) -> Iterator[Federation]:
    """The consortium, with all sites connected and no run under way."""
    deployed.until(lambda: deployed.consortium.connected() >= set(SITES), "all sites are connected")
    yield deployed
    for run in deployed.store.runs().query("state == 'running'")["run"]:
        deployed.stop(run)
    for site in SITES:  # with a budget it would refuse other tests' runs
        path = deployed.consortium.site(site) / SITE_FILE
        tables = re.split(r"^(?=\[)", path.read_text(), flags=re.MULTILINE)
        path.write_text("".join(table for table in tables if not table.startswith("[budget]")))
