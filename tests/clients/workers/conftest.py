"""A site with a worker group of its own, without a server: see app/task.py for what trains there."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from clients.config import TrainingTable
from clients.sitefile import SiteTrainingTable
from clients.workers.ground import Here
from clients.workers.group import STEPS, Group
from hansa.codec import plan_vectors, to_plan
from hansa.records import Broadcast, Plan
from hansa.wire import link_pb2 as wire

APP = Path(__file__).parent / "app"
SIZE = 6 * 16 + 16 + 16 + 1  # floats of the model
PATIENCE = 120.0  # seconds: the machine may be busy


class Site:
    """The folders of a site, and the plans that its groups get."""

    def __init__(self, folder: Path, trouble: Path, made: bool = False) -> None:
        self.folder, self.trouble, self.spool = folder, trouble, folder / "spool"
        self.said: list[str] = []
        if not made:
            for one in (trouble, self.spool):
                one.mkdir(parents=True)
            self.pause(0.0)

    def group(self, **training: Any) -> Group:
        """A group; `procs` and the like as in site.toml."""
        table = SiteTrainingTable(**{"device": "cpu", "threads": 1, "heartbeat": 60.0, **training})
        keys = table.model_dump(mode="json", exclude_unset=True)
        lines = [f"{key} = {_toml(value)}" for key, value in keys.items()]
        text = '[site]\nname = "one"\nserver = "127.0.0.1:1"\n[training]\n' + "\n".join(lines)
        (self.folder / "site.toml").write_text(text)
        ground = Here(self.folder / "training.log", table)
        return Group(APP, self.folder, "run", self.spool, table, self.said.append, ground)

    def plan(self, round: int = 1, **changed: Any) -> wire.Plan:
        params = 0.1 * torch.randn(SIZE, generator=torch.Generator().manual_seed(round))
        sent = Broadcast(params, torch.zeros(0, dtype=torch.int64))
        hyper = TrainingTable(steps=40, batch_size=12, optimizer="adamw").hyper(round)
        plan = Plan("run", 3, round, **{"kind": "train", "split": "valid", **changed}, broadcast=sent, hyper=hyper)
        frame = to_plan(plan, f"plan-{round}", "one")
        for name, data in plan_vectors(sent).items():
            frame.vectors.add(name=name, data=bytes(data))
        return frame

    def update(self, group: Group, round: int = 1, **changed: Any) -> bytes:
        """What a group answers."""
        return group.work(self.plan(round, **changed), {}, self.spool / "upload").upload.data

    def pause(self, seconds: float) -> None:
        """Makes each step take so long."""
        (self.trouble / "pause").write_text(str(seconds))

    def steps(self, rank: int = 0) -> list[int]:
        """The process of each step that a rank has taken."""
        path = self.trouble / f"rank{rank}"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def kept(self, world: int) -> bool:
        """Whether all ranks have kept a step."""
        return all(any((self.spool / STEPS).glob(f"*/[0-9]*-own.{rank}")) for rank in range(world))

    def until(self, holds: Callable[[], bool]) -> None:
        """Waits for something that must come."""
        deadline = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)

    @contextmanager
    def meanwhile(self, when: Callable[[], bool], act: Callable[[], None]) -> Iterator[None]:
        """Does something beside the block as soon as something holds."""
        over = threading.Event()

        def wait() -> None:
            while not over.is_set():
                if when():
                    return act()
                time.sleep(0.005)

        thread = threading.Thread(target=wait)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {one}" for key, one in value.items()) + " }"
    return f'"{value}"' if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("TROUBLE", str(tmp_path / "trouble"))
    return Site(tmp_path / "site", tmp_path / "trouble")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site that the tests of a file have in common: ranks take seconds to start."""
    folder = tmp_path_factory.mktemp("shared")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TROUBLE", str(folder / "trouble"))
        yield Site(folder / "site", folder / "trouble")
