"""A site of several machines, which are addresses of this one, without a server: app/task.py says what trains there."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from clients.agents.head import Head
from clients.agents.keys import make_key
from clients.config import TrainingTable
from clients.sitefile import SiteTrainingTable
from clients.workers.ground import Ground, Here
from clients.workers.group import Group
from hansa.appfiles import app_digest, app_files
from hansa.codec import plan_vectors, to_plan
from hansa.records import Broadcast, Plan
from hansa.startup import SITE_FILE

APP = Path(__file__).parent / "app"
SIZE = 6 * 16 + 16 + 16 + 1  # floats of the model
STEPS = 40  # of a plan
PATIENCE = 120.0  # seconds: the machine may be busy
HANSA = str(Path(sys.executable).with_name("hansa"))


class Site:
    """A site's folder, its agents, and the one plan that its groups get."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.trouble, self.spool = folder / "site", folder / "trouble", folder / "site" / "spool" / "run"
        self.stack, self.said, self.agents = stack, list[str](), dict[str, subprocess.Popen[bytes]]()
        self.folder.mkdir()
        self.trouble.mkdir()
        self.pause(0.0)

    def write(self, **training: Any) -> SiteTrainingTable:
        """site.toml, which allows the app."""
        given = {"device": "cpu", "threads": 1, "heartbeat": 60.0, "precision": "float64", **training}
        lines = [f"{key} = {_toml(value)}" for key, value in given.items()]
        apps = f'[apps]\nallowed = ["{app_digest(app_files(APP))}"]'
        text = '[site]\nname = "one"\nserver = "127.0.0.1:1"\n[training]\n' + "\n".join(lines)
        (self.folder / SITE_FILE).write_text(f"{text}\n{apps}\n")
        return SiteTrainingTable(**given)

    def head(self, listen_at: str = "127.0.0.1", **training: Any) -> Head:
        """A head that listens, for two nodes."""
        keys = {"procs": 2, "nodes": 2, "node_wait": PATIENCE, **training}
        table = self.write(mode="agents", listen="127.0.0.1:1", **keys)
        make_key(self.folder, "one", "any", datetime.now(UTC))
        where = (listen_at, 0)
        return self.stack.enter_context(Head(self.folder, APP, "run", self.spool, table, where, self.said.append))

    def agent(self, head: str, node: str, address: str = "127.0.0.1", *more: str, enter: tuple[str, ...] = ()) -> None:
        """Starts an agent."""
        options = ["--site", str(self.folder), "--head", head, "--node", node, "--key", "any", "--address", address]
        log = self.stack.enter_context((self.folder.parent / f"{node}.log").open("ab"))
        command = [*enter, HANSA, "site", "agent", *options, *more]
        env = {**os.environ, "TROUBLE": str(self.trouble)}
        self.agents[node] = agent = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        self.stack.callback(agent.wait)
        self.stack.callback(agent.kill)

    def group(self, ground: Ground, table: SiteTrainingTable) -> Group:
        """A group on that ground."""
        self.spool.mkdir(parents=True, exist_ok=True)
        group = Group(APP, self.folder, "run", self.spool, table, self.said.append, ground)
        self.stack.callback(group.stop)
        return group

    def update(self, group: Group) -> torch.Tensor:
        """What a group makes of the plan, [P]."""
        params = 0.1 * torch.randn(SIZE, generator=torch.Generator().manual_seed(1))
        sent = Broadcast(params, torch.zeros(0, dtype=torch.int64))
        hyper = TrainingTable(steps=STEPS, batch_size=12, lr=0.1).hyper(1)
        plan = Plan("run", 3, 1, kind="train", split="valid", broadcast=sent, hyper=hyper)
        frame = to_plan(plan, "plan-1", "one")
        for name, data in plan_vectors(sent).items():
            frame.vectors.add(name=name, data=bytes(data))
        return torch.frombuffer(
            bytearray(group.work(frame, {}, self.spool / "upload").upload.data), dtype=torch.float32
        )

    def alone(self) -> torch.Tensor:
        """What one process makes of it."""
        table = self.write()
        group = self.group(Here(self.folder / "alone.log", table), table)
        found = self.update(group)
        group.stop()
        (self.trouble / "rank0").unlink()
        return found

    def log(self, node: str) -> str:
        """What an agent has said."""
        return (self.folder.parent / f"{node}.log").read_text()

    def pause(self, seconds: float) -> None:
        """Makes each step take so long."""
        (self.trouble / "pause").write_text(str(seconds))

    def steps(self, rank: int = 0) -> list[int]:
        """The process of each step that a rank has taken."""
        path = self.trouble / f"rank{rank}"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def until(self, holds: Callable[[], bool]) -> None:
        """Waits for something that must come."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)

    @contextmanager
    def meanwhile(self, act: Callable[[], None]) -> Iterator[None]:
        """Does something beside the block as soon as both ranks are in the midst of it."""

        def wait() -> None:
            self.until(lambda: len(self.steps(1)) > 5)
            act()

        self.pause(0.05)
        thread = threading.Thread(target=wait)
        thread.start()
        try:
            yield
        finally:
            thread.join()
            self.pause(0.0)


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {one}" for key, one in value.items()) + " }"
    return f'"{value}"' if isinstance(value, str) else str(value)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("TROUBLE", str(tmp_path / "trouble"))
    with ExitStack() as stack:
        yield Site(tmp_path, stack)
