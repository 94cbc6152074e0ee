"""`hansa server up` and the control commands, with real Flower processes on loopback."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hansa.appfiles import app_digest
from hansa.processes import command_of, in_session, marked
from hansa.supervise import lives, told
from server.command import control
from server.flower import begin, bundle
from server.launch import APP, launching, served
from server.provision import Founding, provision
from server.store import FILE, Store

START = "import sys; from hansa.cli import main; sys.exit(main())"
WAIT = 150.0  # seconds for what takes a few on an idle machine

PYPROJECT = b"""
[project]
name = "standin"
version = "1.0.0"
[tool.flwr.app]
publisher = "test"
[tool.flwr.app.components]
serverapp = "standin:server"
clientapp = "standin:client"
[tool.flwr.app.config]
hansa-run = ""
hansa-epoch = 1
"""

# A run that enters a round every 50 ms, until there is a file "finish" in its folder.
STANDIN = b"""
import os, time
from pathlib import Path
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server, client = ServerApp(), ClientApp()

@server.main()
def main(grid, context):
    from server.launch import announce
    from server.store import FILE, Round, State, Store
    run, epoch = context.run_config["hansa-run"], context.run_config["hansa-epoch"]
    folder = Path(os.environ["HANSA_SERVER"]) / "runs" / run
    announce(folder, epoch)
    store = Store(folder.parent / FILE)
    if epoch == 1:
        store.create(run, name="standin", config="", seed=0, engine="deployed", threads=1, hardware="cpu")
    else:
        store.reopen(run, int(store.rounds(run)["round"].max()))
    done = len(store.rounds(run))
    while not (folder / "finish").exists():
        done += 1
        store.round(run, Round(done, "train", "valid", 0.0, asked=0, took_part=0, dropped=0, examples=0))
        time.sleep(0.05)
    store.end(run, State.FINISHED)
"""

# A run that invites every site that is online, to a server that does not answer.
INVITING = b"""
import time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server, client = ServerApp(), ClientApp()

@server.main()
def main(grid, context):
    invited = []
    while True:
        lost = [r.metadata.reply_to_message_id for r in grid.pull_messages(invited)] if invited else []
        invited = [message for message in invited if message not in lost]
        if not invited:
            facts = {"address": "127.0.0.1:9", "run": context.run_config["hansa-run"], "epoch": 1, "token": "00"}
            record = RecordDict({"invitation": ConfigRecord(facts)})
            nodes = grid.get_node_ids()
            invited = list(grid.push_messages([Message(record, dst_node_id=n, message_type="train") for n in nodes]))
        time.sleep(0.5)
"""


def until(condition: Callable[[], object], seconds: float = WAIT) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


class Up:
    """`hansa server up` or `hansa site up` in a process of its own."""

    def __init__(self, end: str, folder: Path) -> None:
        self.end, self.folder, self.log = end, folder, folder.with_suffix(".log")
        with self.log.open("wb") as log:
            command = [sys.executable, "-c", START, end, "up", str(folder)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self.mark = ""

    def said(self) -> str:
        return self.log.read_text()

    def ready(self, sign: str = "ready;", times: int = 1) -> "Up":
        until(lambda: self.said().count(sign) >= times or self.process.poll() is not None)
        assert self.process.poll() is None, self.said()
        self.mark = str(self.told["mark"])
        return self

    @property
    def told(self) -> dict[str, Any]:
        found = told(self.folder, self.end)
        return found if found is not None and lives(found) else {}

    def pid(self, program: str) -> int:
        return int(self.told["programs"][program])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    provision(tmp_path / "fed", ["east", "west"], Founding(), datetime.now(UTC))
    file = tmp_path / "fed" / "server" / "server.toml"
    file.write_text(re.sub("(?m)^(public|flower|session) = .*", r'\1 = "127.0.0.1:0"', file.read_text()))
    return file.parent


@pytest.fixture
def up(folder: Path) -> Iterator[Callable[..., Up]]:
    ups: list[Up] = []

    def one(end: str = "server", at: Path = folder) -> Up:
        ups.append(Up(end, at))
        return ups[-1]

    yield one
    for left in reversed(ups):
        if left.process.poll() is None:
            left.process.terminate()
            left.process.wait(WAIT)


def hansa(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", START, *arguments], capture_output=True, text=True, timeout=WAIT)


def process(run: Path) -> int:
    """The process that serves a run."""
    return int(json.loads((run / "process.json").read_text())[1])


def environment(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def test_it_serves_alone_without_telemetry_and_nothing_outlives_it_or_its_successor(
    folder: Path, up: Callable[..., Up]
) -> None:
    server = up().ready()
    assert f"SuperLink on {server.told['address']}, pid {server.pid('SuperLink')}" in server.said()
    for program in ("SuperLink", "Starter"):
        variables = environment(server.pid(program))
        assert variables["FLWR_TELEMETRY_ENABLED"] == "0"
        assert variables["FLWR_DISABLE_UPDATE_CHECK"] == "1"
        assert variables["FLWR_HOME"] == str(folder / "flower")
        assert variables["HANSA_SERVER"] == str(folder)
    with control(folder) as calls:
        assert {node.name for node in calls.nodes()} == {"east", "west"}

    second = hansa("server", "up", str(folder))
    assert second.returncode == 2
    assert second.stderr.count("\n") == 1
    assert "runs there already" in second.stderr

    server.process.kill()
    server.process.wait()
    assert marked(server.mark)
    after = up().ready()
    assert marked(server.mark) == {}
    assert "that an earlier hansa server up had left" in after.said()

    after.process.send_signal(signal.SIGTERM)
    assert after.process.wait(WAIT) == 0
    assert marked(after.mark) == {}
    assert told(folder, "server") is None


@pytest.mark.parametrize("moment", ["lock", "programs", "answers"])
def test_ctrl_c_while_it_starts_leaves_nothing(folder: Path, up: Callable[..., Up], moment: str) -> None:
    server = up()
    moments: dict[str, Callable[[], object]] = {
        "lock": lambda: (folder / "run" / "server.json").exists(),
        "programs": lambda: server.told.get("programs"),
        "answers": lambda: "ready;" in server.said(),
    }
    until(moments[moment])
    mark = str(server.told["mark"])
    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(WAIT) == 0
    assert marked(mark) == {}
    assert "Traceback" not in server.said()


def test_a_run_survives_the_death_of_the_superlink_and_of_its_own_process(folder: Path, up: Callable[..., Up]) -> None:
    server, run = up().ready(), folder / "runs" / "r1"
    run.mkdir(parents=True)
    (run / APP).write_bytes(bundle({"pyproject.toml": PYPROJECT, "standin.py": STANDIN}))
    with control(folder) as calls, launching(run):  # else the supervisor takes the start for one that was cut off
        begin(calls, run)

    store = Store(folder / "runs" / FILE)

    def progress(epoch: int) -> bool:
        """Whether that start of the run is at work, and goes on."""
        if not served(run, epoch) or "r1" not in store.runs()["run"].tolist():
            return False
        before = len(store.rounds("r1"))
        time.sleep(0.5)
        return len(store.rounds("r1")) > before

    until(lambda: progress(1))
    link = server.pid("SuperLink")
    os.kill(link, signal.SIGKILL)
    until(lambda: server.told["programs"]["SuperLink"] not in (None, link))
    assert progress(1)

    rounds = len(store.rounds("r1"))
    os.kill(process(run), signal.SIGKILL)
    until(lambda: served(run, 2))
    until(lambda: progress(2))
    assert "resumed after round" in " ".join(store.events("r1")["text"])
    assert len(store.rounds("r1")) > rounds

    stopped = hansa("stop", "r1", "--server", str(folder))
    assert (stopped.returncode, stopped.stdout) == (0, "run r1 is interrupted\n")
    assert not served(run, 2)
    assert "run r1: interrupted, " in hansa("status", "--server", str(folder)).stdout

    resumed = subprocess.Popen(
        [sys.executable, "-c", START, "run", "--resume", "--server", str(folder)], stdout=subprocess.PIPE
    )
    until(lambda: progress(3))
    (run / "finish").touch()
    assert b"resumed after round" in resumed.communicate(timeout=WAIT)[0]
    assert resumed.returncode == 0
    assert "run r1: finished, " in hansa("status", "--server", str(folder)).stdout


@pytest.mark.long
def test_a_site_whose_run_was_killed_is_online_again_in_seconds(folder: Path, up: Callable[..., Up]) -> None:
    """Flower alone needs a minute: it waits for the heartbeat of the killed process to lapse."""
    server, files = up().ready(), {"pyproject.toml": PYPROJECT, "standin.py": INVITING}
    files["federation.toml"] = b'[federation]\nname = "standin"\ntask = "standin.py:Standin"\n'
    place, run = folder.parent / "sites" / "east", folder / "runs" / "r1"
    file = (place / "site.toml").read_text().replace("allowed = []", f'allowed = ["{app_digest(files)}"]')
    file = re.sub("(?m)^server = .*", f'server = "{server.told["address"]}"', file)
    (place / "site.toml").write_text(file.replace("allow_unprotected = false", "allow_unprotected = true"))
    site = up("site", place).ready("is connected to")
    run.mkdir(parents=True)
    (run / APP).write_bytes(bundle(files))
    with control(folder) as calls, launching(run):  # else the supervisor takes the start for one that was cut off
        begin(calls, run)

    def asked() -> set[int]:
        """The processes that take part in a run."""
        return {pid for pid in in_session(site.pid("Starter")) if "flwr-clientapp" in command_of(pid)}

    until(lambda: "Start `flwr-clientapp`" in (place / "logs" / "starter.log").read_text())
    assert environment(min(asked()))["HANSA_SITE"] == str(place)
    first = asked()
    for pid in first:
        os.kill(pid, signal.SIGKILL)
    until(lambda: site.said().count("is connected to") == 2, 15.0)
    assert "died without an answer" in site.said()
    until(lambda: asked() - first)

    site.process.kill()
    site.process.wait()
    until(lambda: not marked(site.mark))
    again = up("site", place).ready("is connected to")
    again.process.send_signal(signal.SIGINT)
    assert again.process.wait(WAIT) == 0
    assert marked(again.mark) == {}


@pytest.mark.long
def test_a_site_waits_out_the_connection_that_a_killed_node_left(folder: Path, up: Callable[..., Up]) -> None:
    server, place = up().ready(), folder.parent / "sites" / "east"
    file = (place / "site.toml").read_text()
    (place / "site.toml").write_text(re.sub("(?m)^server = .*", f'server = "{server.told["address"]}"', file))
    site = up("site", place).ready("is connected to")
    os.kill(site.pid("Node"), signal.SIGKILL)
    site.ready("the server still holds an old connection of east")
    until(lambda: site.said().count("is connected to") == 2, 90.0)
