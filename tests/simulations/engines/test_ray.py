"""Actors of Ray's give the plain loop's bits, and bear the death of one."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from clients.config import TrainingTable
from hansa.errors import RunFailed, UserError
from hansa.task import Task
from hansa.taskfile import load_class, made
from hansa.taskpack import Packed, unpack
from server.config import RoundsTable
from simulations.datasets.breast_cancer import BreastCancer
from simulations.engines.rayconfig import RayTable
from simulations.engines.raycrew import connect, imported
from simulations.federation import Federation
from simulations.history import History
from strategies.base import Strategy
from strategies.fedavg import FedAvg
from strategies.scaffold import Scaffold

pytestmark = [  # Ray leaves its log files and its processes to Python's collector
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

TASK = """
import os
import signal
from pathlib import Path

from torch import nn

from hansa.task import Task
from width import WIDTH


class Mine(Task):
    def model(self):
        return nn.Sequential(nn.Linear(30, WIDTH), nn.BatchNorm1d(WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, 1))


class Fragile(Mine):
    marker, first = None, os.getpid()

    def __init__(self):
        self.mine = self.first

    def batch_transform(self, batch):
        if os.getpid() != self.mine and not (self.marker and self.marker.exists()):
            if self.marker:
                self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return batch
"""


@pytest.fixture(scope="module")
def actors() -> Iterator[None]:
    """A Ray of this machine's with two cores, for all tests of this file."""
    pytest.importorskip("ray", reason='ray is not installed: pip install "hansa[ray]"')
    ray = imported()
    connect(ray, RayTable(), 2)
    yield
    ray.shutdown()


def task(folder: Path, name: str) -> Any:
    (folder / "width.py").write_text("WIDTH = 8\n")
    (folder / "task.py").write_text(TASK)
    return made(load_class(f"task.py:{name}", folder, Task, "task"), "task")


def federation(task: Task, strategy: Strategy) -> Federation:
    sources = {site: BreastCancer().source(site) for site in BreastCancer().sites()}
    work = TrainingTable(epochs=2, batch_size=16, lr=0.05, drop_last=True)
    return Federation(task, strategy, sources, work, RoundsTable(rounds=2, sites_per_round=3, quorum=1))


def assert_same(one: History, two: History) -> None:
    assert torch.equal(one.state.params, two.state.params)
    assert torch.equal(one.state.counters, two.state.counters)
    order = ["round", "split", "scope", "name"]
    left, right = (h.frame().sort_values(order).reset_index(drop=True) for h in (one, two))
    assert left.equals(right)


@pytest.mark.long
@pytest.mark.usefixtures("actors")
def test_two_actors_give_the_loop_s_bits(tmp_path: Path) -> None:
    """SCAFFOLD, whose sites remember; the task is a file of the user's, with another beside it."""
    what = federation(task(tmp_path, "Mine"), Scaffold())
    assert_same(replace(what, engine="ray", workers=2).try_out(), what.try_out())


@pytest.mark.long
@pytest.mark.usefixtures("actors")
def test_the_share_of_an_actor_that_was_killed_is_computed_again(tmp_path: Path) -> None:
    fragile = task(tmp_path, "Fragile")
    fragile.marker = tmp_path / "killed"
    what = federation(fragile, FedAvg())
    assert_same(replace(what, engine="ray", workers=2).try_out(), what.try_out())
    assert fragile.marker.exists()


@pytest.mark.long
@pytest.mark.usefixtures("actors")
def test_an_actor_that_always_dies_ends_the_run_in_one_line(tmp_path: Path) -> None:
    what = federation(task(tmp_path, "Fragile"), FedAvg())
    with pytest.raises(RunFailed, match=r"actor \d of 2 died again on sites .*; is there memory enough\?"):
        replace(what, engine="ray", workers=2).try_out()


@pytest.mark.long
@pytest.mark.usefixtures("actors")
def test_actors_for_which_there_is_no_room_are_refused(tmp_path: Path) -> None:
    what = federation(task(tmp_path, "Mine"), FedAvg())
    with pytest.raises(UserError, match="3 actors of 1 cores each; Ray has room for 2"):
        replace(what, engine="ray", workers=3).try_out()


def test_a_part_of_several_gpus_is_refused() -> None:
    """Ray gives fractions of one GPU only."""
    assert RayTable(gpus=0.25).gpus == 0.25
    with pytest.raises(ValueError, match="a part of one GPU or a whole number"):
        RayTable(gpus=1.5)


def test_files_go_to_a_machine_that_has_none_of_them(tmp_path: Path) -> None:
    """Their module gets the name that it has where the pickles come from."""
    away = tmp_path / "not here" / "task.py"
    files = {"task.py": b"from inner.width import WIDTH\n", "inner/__init__.py": b"", "inner/width.py": b"WIDTH = 3\n"}
    unpack([Packed("task_of_another_machine", away, files)], tmp_path)
    module = __import__("task_of_another_machine")
    assert module.WIDTH == 3
    assert Path(str(module.__file__)).is_relative_to(tmp_path)
