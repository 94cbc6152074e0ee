"""A researcher whose machine has nothing but her folder: a run of two sites, from its start to its model."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from hansa.appfiles import app_digest, app_files
from hansa.flower import free_port
from hansa.roles import Role
from hansa.supervise import told
from server.provision import Founding, provision

SITES = ("east", "west")
PEOPLE = [(Role.RESEARCHER, "ann"), (Role.RESEARCHER, "amy"), (Role.AUDITOR, "bob"), (Role.ADMINISTRATOR, "eve")]
WAIT = 180.0  # seconds for what takes a few on an idle machine
HANSA = str(Path(sys.executable).with_name("hansa"))

FILES = {
    "task.py": """
        import os
        import time

        from torch import nn

        import hansa


        class Small(hansa.Task):
            def model(self):
                return nn.Linear(3, 1)

            def batch_transform(self, batch):
                time.sleep(0.2)
                return batch
    """,
    "pyproject.toml": """
        [project]
        name = "small"
        version = "1.0.0"
        [tool.flwr.app]
        publisher = "test"
        [tool.flwr.app.components]
        serverapp = "server.app:app"
        clientapp = "clients.app:app"
        [tool.flwr.app.config]
        hansa-run = ""
        hansa-epoch = 1
    """,
    "federation.toml": """
        [federation]
        name = "small"
        task = "task.py:Small"
        [strategy]
        name = "fedavg"
        [training]
        epochs = 1
        batch_size = 32
        lr = 0.1
        [rounds]
        rounds = 3
        quorum = 2
    """,
}


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.2)


@cache
def without(folder: Path) -> Sequence[str]:
    """Runs a command where a folder is not to be seen, if the system lets us: in a file system of its own."""
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(folder)]
    try:
        found = subprocess.run([*hidden, "ls", str(folder / "server")], capture_output=True, check=False)
    except FileNotFoundError:
        return []
    return hidden if found.returncode == 2 else []  # ls: there is none


@dataclass
class Far:
    """Everybody's machine is a folder of its own; only the server's has the server's."""

    server: Path
    people: Path
    app: Path

    def start(self, who: str, *arguments: str) -> subprocess.Popen[str]:
        command = [*without(self.server.parent), HANSA, *arguments, "--server", str(self.people / who)]
        home = self.people / who
        return subprocess.Popen(command, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def do(self, who: str, *arguments: str, code: int = 0) -> str:
        process = self.start(who, *arguments)
        said, _ = process.communicate(timeout=WAIT)
        assert process.returncode == code, said
        return said

    def status(self) -> str:
        """What it says; "" where nobody answers."""
        process = self.start("bob", "status")
        said, _ = process.communicate(timeout=WAIT)
        return said if process.returncode == 0 else ""

    def connected(self) -> bool:
        said = self.status()
        return all(f"site {site}: connected" in said for site in SITES)


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Far]:
    heart = tmp_path_factory.mktemp("made") / "heart"
    provision(heart, SITES, Founding(port=free_port()), datetime.now(UTC), PEOPLE)
    server = heart / "server"
    text = (server / "server.toml").read_text()
    (server / "server.toml").write_text(text.replace("127.0.0.1:9092", f"127.0.0.1:{free_port()}"))
    app = tmp_path_factory.mktemp("researcher") / "app"
    app.mkdir()
    for name, content in FILES.items():
        (app / name).write_text(textwrap.dedent(content))
    for number, site in enumerate(SITES):
        x = np.random.default_rng(number).normal(size=(64, 3))
        rows = pd.DataFrame(x, columns=list("abc")).assign(ill=(x.sum(1) > 0).astype(int))
        rows.to_csv(heart / "sites" / site / "rows.csv", index=False)
        file = heart / "sites" / site / "site.toml"
        said = file.read_text().replace("allowed = []", f"allowed = {json.dumps([app_digest(app_files(app))])}")
        said = said.replace("allow_unprotected = false", "allow_unprotected = true").replace('"auto"', '"cpu"')
        file.write_text(f'{said}\n[data]\ncsv = "rows.csv"\ntarget = "ill"\n')
    people = Path(shutil.move(heart / "people", tmp_path_factory.mktemp("elsewhere")))
    processes = []
    with (heart / "log").open("ab") as log:
        for what, folder in [("server", server), *(("site", heart / "sites" / site) for site in SITES)]:
            command = [HANSA, what, "up", str(folder)]
            processes.append(subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL))
        try:
            far = Far(server, people, app)
            until(far.connected, "both sites are connected")
            yield far
        finally:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                process.wait(60)
    assert "Traceback" not in (server / "logs" / "control.log").read_text()


@pytest.mark.long
def test_her_machine_does_not_know_the_server_s_folder(far: Far) -> None:
    for file in (far.people / "ann").iterdir():
        assert str(far.server) not in file.read_text()


@pytest.mark.long
def test_a_researcher_elsewhere_completes_a_run_and_fetches_the_model(far: Far) -> None:
    said = far.do("ann", "run", str(far.app), "--run", "r1")
    assert "run r1; its app is sha256:" in said
    assert "round 3: 2 of 2 sites" in said
    assert said.splitlines()[-1] == "model and metrics: hansa fetch r1"
    assert str(far.server) not in said
    far.do("ann", "fetch", "r1")
    for name in ("model.safetensors", "metrics.parquet"):
        mine, theirs = far.people / "ann" / "r1" / name, far.server / "runs" / "r1" / name
        assert mine.read_bytes() == theirs.read_bytes()
    manifest = json.loads((far.people / "ann" / "r1" / "manifest.json").read_text())
    assert (manifest["state"], manifest["app"]) == ("finished", app_digest(app_files(far.app)))
    assert "run r1 is not yours" in far.do("amy", "fetch", "r1", code=2)
    assert "researchers may not audit" in far.do("ann", "audit", code=2)
    record = far.do("bob", "audit")
    for line in ("ann sha256:", "run r1: allowed", "fetch r1: allowed", "fetch r1: refused not_own"):
        assert line in record


@pytest.mark.long
def test_she_follows_it_leaves_stops_it_and_goes_on_with_it(far: Far) -> None:
    federation = (far.app / "federation.toml").read_text()
    (far.app / "federation.toml").write_text(federation.replace("rounds = 3", "rounds = 40"))
    far.do("ann", "run", str(far.app), "--run", "r2", "--detach")
    follower, lines = far.start("bob", "logs", "r2"), list[str]()
    assert follower.stdout is not None
    while not any("sessions at" in line or "round" in line for line in lines):
        lines.append(follower.stdout.readline())
        assert lines[-1], lines
    follower.send_signal(signal.SIGINT)
    follower.communicate(timeout=WAIT)
    assert follower.returncode == 130
    until(lambda: "run r2: running, 2" in far.do("ann", "status"), "two rounds are done")
    assert "run r2 is not yours" in far.do("amy", "stop", "r2", code=2)
    assert "run r2 is interrupted" in far.do("ann", "stop", "r2")
    assert "there is a model to fetch when it is complete" in far.do("ann", "fetch", "r2", code=2)
    resumed = far.start("ann", "run", "--resume")
    assert resumed.stdout is not None
    while "resumed after round" not in (line := resumed.stdout.readline()):
        assert line
    assert "run r2 is interrupted" in far.do("eve", "stop", "r2")
    said, _ = resumed.communicate(timeout=WAIT)
    assert resumed.returncode == 1
    assert "run r2 was interrupted" in said
    (far.app / "federation.toml").write_text(federation)


@pytest.mark.long
def test_a_control_end_that_is_killed_is_there_again(far: Far) -> None:
    supervisor = told(far.server, "server")
    assert supervisor is not None
    os.kill(supervisor["programs"]["Control"], signal.SIGKILL)
    until(far.status, "the control end answers again")
