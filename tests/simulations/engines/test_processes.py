"""Worker processes give the plain loop's bits, and bear the death of one."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from clients.config import TrainingTable
from hansa.errors import RunFailed, UserError
from hansa.processes import started
from hansa.task import Task
from hansa.taskfile import load_class, made
from privacy.config import PrivacyTable
from privacy.dp.config import DpTable
from server.config import RoundsTable
from simulations.api import simulate
from simulations.datasets.breast_cancer import BreastCancer
from simulations.engines.arena import Arena
from simulations.engines.processes import ProcessesEngine
from simulations.engines.shares import shares
from simulations.federation import Federation
from simulations.history import History
from simulations.partition import Iid
from simulations.stragglers import Stragglers
from strategies.base import Strategy
from strategies.ditto import Ditto
from strategies.fedavg import FedAvg
from strategies.fedprox import FedProx
from strategies.scaffold import Scaffold


class Net(Task):
    """BatchNorm, which has counters, and dropout, which draws from the global generator."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(30, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))


class Plain(Task):
    """Rows that stand alone, for DP-SGD."""

    def model(self) -> nn.Module:
        return nn.Linear(30, 1)


class Fragile(Net):
    """A process that is not the test's own dies once, or always, at one site."""

    def __init__(self, marker: Path | None = None) -> None:
        self.marker, self.first = marker, os.getpid()

    def batch_transform(self, batch: Any) -> Any:
        if os.getpid() != self.first and (self.marker is None or not self.marker.exists()):
            if self.marker is not None:
                self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return batch


class Wrong(Net):
    """Its loss fails."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        raise UserError("task: there is no such loss")


class Streaming(Net):
    """Batches of its own."""

    def batches(self, site: Any, dataset: Any, seed: int) -> Any:
        return iter(())


class Dealt(Task):
    """Pooled rows, which a partition deals."""

    def model(self) -> nn.Module:
        return nn.Linear(4, 1)

    def train_data(self, site: Any) -> TensorDataset:
        return TensorDataset(torch.arange(240.0).reshape(60, 4) / 240, torch.arange(60.0) / 60)

    def test_data(self, site: Any) -> TensorDataset:
        return self.train_data(site)


def federation(strategy: Strategy | None = None, task: Task | None = None, **facts: Any) -> Federation:
    sources = {site: BreastCancer().source(site) for site in BreastCancer().sites()}
    work = TrainingTable(epochs=2, batch_size=16, lr=0.05, drop_last=True)
    rounds = facts.pop("rounds", RoundsTable(rounds=2, sites_per_round=3, quorum=1))
    return Federation(task or Net(), strategy or FedAvg(), sources, work, rounds, **facts)


def assert_same(one: History, two: History) -> None:
    assert torch.equal(one.state.params, two.state.params)
    assert torch.equal(one.state.counters, two.state.counters)
    order = ["round", "split", "scope", "name"]
    left, right = (h.frame().sort_values(order).reset_index(drop=True) for h in (one, two))
    assert left.equals(right)
    assert one.test.keys() == two.test.keys()
    assert all(torch.equal(one.test[s][n], two.test[s][n]) for s in one.test for n in one.test[s])


TASK = """
from torch import nn

from hansa.task import Task


class Mine(Task):
    def model(self):
        return nn.Sequential(nn.Linear(30, 8), nn.Dropout(0.5), nn.Linear(8, 1))
"""

ENDLESS = """
import os
import signal
import sys
from pathlib import Path

from torch import nn

from clients.config import TrainingTable
from hansa.task import Task
from server.config import RoundsTable
from simulations.datasets.breast_cancer import BreastCancer
from simulations.federation import Federation
from strategies.fedavg import FedAvg

FIRST, HERE = os.getpid(), Path(sys.argv[1])
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell turns off for what runs in its background


class Endless(Task):
    def model(self):
        return nn.Linear(30, 1)

    def batch_transform(self, batch):
        if os.getpid() != FIRST:
            (HERE / str(os.getpid())).touch()
        return batch


sources = {site: BreastCancer().source(site) for site in BreastCancer().sites()}
work = TrainingTable(steps=10**9)
Federation(Endless(), FedAvg(), sources, work, RoundsTable(), engine="processes", workers=2).try_out()
"""

CASES: Mapping[str, tuple[Strategy, dict[str, Any]]] = {
    "fedavg": (FedAvg(), {}),
    "fedprox": (FedProx(mu=0.1), {}),
    "scaffold": (Scaffold(), {}),
    "ditto": (Ditto(), {}),
    "local layers": (FedAvg(local=("4.*",)), {}),
    "sums in a ring": (
        Scaffold(),
        {"privacy": PrivacyTable(clip=1.0, max_weight=200), "rounds": RoundsTable(rounds=2)},
    ),
    "site-level privacy": (FedAvg(), {"dp": DpTable(unit="site", noise_multiplier=1.0, clip=0.5, delta=1e-3)}),
    "record-level privacy": (
        FedProx(mu=0.1),
        {"task": Plain(), "dp": DpTable(unit="record", noise_multiplier=1.0, clip=1.0, delta=1e-3)},
    ),
    "stragglers": (FedAvg(), {"stragglers": Stragglers(fraction=0.5, keep=True)}),
}


@pytest.mark.parametrize("name", CASES)
def test_one_two_and_three_workers_give_the_loop_s_bits(name: str) -> None:
    """Whole numbers add up alike in any order, and every draw is seeded by round and site."""
    strategy, facts = CASES[name]
    what = federation(strategy, **facts)
    expected = what.try_out()
    for workers in (1, 2, 3):
        assert_same(replace(what, engine="processes", workers=workers).try_out(), expected)


def test_processes_that_begin_with_nothing_give_the_same_bits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As Windows, macOS and CUDA have them; the task is a file of the user's, which they load for themselves."""
    (tmp_path / "task.py").write_text(TASK)
    task = made(load_class("task.py:Mine", tmp_path, Task, "task"), "task")
    what = federation(Scaffold(), task)
    expected = what.try_out()
    monkeypatch.setattr(ProcessesEngine, "start", "spawn")
    assert_same(replace(what, engine="processes", workers=2).try_out(), expected)


@pytest.mark.long
def test_a_dealt_task_goes_to_processes_that_begin_with_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ProcessesEngine, "start", "spawn")
    one, two = (
        simulate(Dealt(), partition=Iid(sites=3), engine=engine, workers=2, rounds=1, training={"batch_size": 8})
        for engine in ("loop", "processes")
    )
    assert_same(one, two)


def test_a_worker_that_is_killed_is_replaced_and_nothing_is_lost(tmp_path: Path) -> None:
    expected = federation(task=Fragile()).try_out()
    marker = tmp_path / "killed"
    assert_same(federation(task=Fragile(marker), engine="processes", workers=2).try_out(), expected)
    assert marker.exists()


def test_workers_that_die_again_and_again_end_the_run_in_one_line() -> None:
    with pytest.raises(RunFailed, match=r"worker [12] of 2 died \(signal 9\) again on sites .*memory") as found:
        federation(task=Fragile(), engine="processes", workers=2).try_out()
    assert "\n" not in str(found.value)


def test_a_user_s_mistake_in_a_worker_is_the_user_s_line() -> None:
    with pytest.raises(UserError, match=r"^task: there is no such loss$"):
        federation(task=Wrong(), engine="processes", workers=2).try_out()


def test_a_task_with_batches_of_its_own_is_refused_in_words() -> None:
    with pytest.raises(UserError, match='engine: "processes" cannot compute this run: task Streaming has batches'):
        federation(task=Streaming(), engine="processes").try_out()


def test_another_engine_does_not_go_on_with_a_run(tmp_path: Path) -> None:
    """Engines agree up to rounding only, and committed rounds are of one of them."""
    what = federation(rounds=RoundsTable(rounds=1))
    what.run(tmp_path, "one")
    with pytest.raises(UserError, match=r'run .one.: engine "processes", and it was started with "loop"; resume it'):
        replace(what, engine="processes").run(tmp_path, "one", resume=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_worker_outlives_a_run_that_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "run.py"
    script.write_text(ENDLESS)
    with subprocess.Popen([sys.executable, str(script), str(tmp_path)], stderr=subprocess.DEVNULL) as run:
        while len(workers := [int(path.name) for path in tmp_path.glob("[0-9]*")]) < 2:
            assert run.poll() is None
            time.sleep(0.05)
        os.kill(run.pid, number)
        try:
            run.wait(20)
        finally:
            run.kill()
    deadline = time.monotonic() + 10
    while any(started(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@given(
    st.dictionaries(st.text(max_size=3), st.floats(1, 100), min_size=1, max_size=30),
    st.integers(1, 5),
    st.dictionaries(st.text(max_size=3), st.integers(0, 4), max_size=30),
)
def test_every_site_is_dealt_once_and_no_worker_has_much_more_than_another(
    cost: dict[str, float], workers: int, former: dict[str, int]
) -> None:
    """Longest first: when a worker got its last site, it had no more in hand than half of that above the least."""
    dealt = shares(list(cost), cost, former, workers)
    assert sorted(site for mine in dealt for site in mine) == sorted(cost)
    loads = [sum(cost[site] for site in mine) for mine in dealt]
    for mine, load in zip(dealt, loads, strict=True):
        if mine:
            last = cost[mine[-1]]
            assert load - last <= min(loads) + last / 2 + 1e-9


def test_large_arrays_lie_in_the_arena_and_what_has_no_room_comes_all_the_same() -> None:
    arena = Arena(3 * 8192, named=False)
    sent = {"large": np.arange(1024.0), "small": np.arange(3), "huge": np.arange(4096.0)}
    message = arena.put(sent)
    got = arena.get(message)
    assert all(np.array_equal(got[name], sent[name]) for name in sent)
    assert message.spans == [(0, 8192)]
    arena.put({"next": np.zeros(1024)})
    assert got["large"].sum() == 0  # it was a view
