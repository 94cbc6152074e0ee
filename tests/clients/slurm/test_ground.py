"""A run whose job does not get its machines: said in a line, given up in time. With recorded answers of Slurm."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from clients.agents.ground import open_ground
from clients.child import ChildFailed
from clients.failures import Failure
from clients.slurm.ground import Queue
from tests.clients.agents.conftest import APP
from tests.clients.slurm.test_script import file_of

QUEUED = "PENDING|2099-01-01T00:00:00\n"


class Run:
    """A run whose agents never come."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.stack, self.said = folder, stack, list[str]()

    def ground(self, slurm: str, name: str = "run") -> Queue:
        with socket.create_server(("127.0.0.1", 0)) as free:
            listen = f"127.0.0.1:{free.getsockname()[1]}"
        file = file_of(self.folder, slurm, f'mode = "slurm"\nlisten = "{listen}"\nnode_wait = 0.2\n')
        log, spool = self.folder / "training.log", self.folder / "spool"
        found = self.stack.enter_context(open_ground(self.folder, APP, name, spool, log, file, self.said.append))
        assert isinstance(found, Queue)
        return found


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with ExitStack() as stack:
        yield Run(tmp_path / "bern", stack)


def fails(ground: Queue, cancelled: Callable[[], bool] = lambda: False) -> None:
    with pytest.raises(ChildFailed) as failed:
        ground.gather(cancelled)
    assert failed.value.code == Failure.NODES


def test_a_job_that_stays_in_the_queue_is_cancelled_after_max_wait(cluster: Any, run: Run) -> None:
    cluster.answers("sbatch", "41\n")
    cluster.answers("squeue", "", QUEUED)
    ground = run.ground("max_wait = 0.5")
    fails(ground)
    assert run.said[-1] == "job 41: no machines within max_wait = 0.5 s; cancelled"
    assert cluster.calls("scancel") == [(["41"], "")]
    fails(ground)  # in this run no other is submitted
    assert len(cluster.calls("sbatch")) == 1


def test_a_refused_job_is_said_in_slurm_s_words(cluster: Any, run: Run) -> None:
    cluster.fails("sbatch", "sbatch: error: Batch job submission failed: Invalid account\n")
    fails(run.ground("poll = 1"))
    assert run.said == ["sbatch: error: Batch job submission failed: Invalid account"]


def test_a_run_that_is_over_waits_no_longer_and_leaves_no_job(cluster: Any, run: Run) -> None:
    cluster.answers("sbatch", "41\n")
    cluster.answers("squeue", "", QUEUED)
    ground = run.ground("poll = 30")
    threading.Timer(1.0, ground.leave).start()
    fails(ground)
    run.stack.close()
    assert cluster.calls("scancel") == [(["41"], "")]


def test_a_job_that_runs_without_agents_is_told_by_their_number(cluster: Any, run: Run) -> None:
    cluster.answers("sbatch", "41\n")
    cluster.answers("squeue", "", "RUNNING|2026-12-01T08:30:00\n")
    fails(run.ground("poll = 1"))
    assert run.said[-1] == "nodes: 0 of 1 within 0.2 s: none"


def test_a_job_of_an_earlier_run_that_could_not_be_cancelled_then_is_cancelled_now(cluster: Any, run: Run) -> None:
    (run.folder / "slurm").mkdir(parents=True)
    (run.folder / "slurm" / "before.job").write_text("40")
    run.ground("poll = 1")
    assert cluster.calls("scancel") == [(["40"], "")]
    assert not (run.folder / "slurm" / "before.job").exists()
