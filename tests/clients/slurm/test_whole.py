"""A group over the machines of a job, which a stand-in of sbatch starts here; lost ones change no update."""

import os
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from clients.agents.ground import open_ground
from clients.sitefile import SiteFile, load_site_file
from clients.slurm.ground import Queue
from hansa.startup import SITE_FILE
from tests.clients.agents.conftest import APP, Site
from tests.clients.slurm.machines import Machines

NEAR = 1e-6  # of a float32 vector; in float64 only the order of additions differs


@pytest.fixture
def machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machines:
    found = Machines(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{found.folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TROUBLE", str(tmp_path / "trouble"))
    return found


@pytest.fixture
def site(tmp_path: Path, machines: Machines) -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(tmp_path, stack)


def written(site: Site) -> SiteFile:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    keys = {"procs": 2, "nodes": 2, "parallel": {"dp": 2}, "node_wait": 120.0, "checkpoint_interval": 0.1}
    site.write(mode="slurm", listen=f"127.0.0.1:{port}", **keys)
    path = site.folder / SITE_FILE
    path.write_text(path.read_text() + "[slurm]\npoll = 1\n")
    return load_site_file(path)


def opened(site: Site, stack: ExitStack) -> Queue:
    log, file = site.folder / "training.log", written(site)
    ground = stack.enter_context(open_ground(site.folder, APP, "run", site.spool, log, file, site.said.append))
    assert isinstance(ground, Queue)
    return ground


def gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_job_waits_in_the_queue_trains_and_is_cancelled_with_the_run(site: Site, machines: Machines) -> None:
    machines.hold.touch()
    with ExitStack() as stack:
        ground = opened(site, stack)
        waits: list[str] = []

        def look() -> bool:
            if ground.waits is not None:
                waits.append(ground.waits.state)
                assert ground.waits.starts_in > 365 * 86_400 or ground.waits.state != "queued"
                machines.hold.unlink(missing_ok=True)
            return False

        assert ground.gather(look) == 2
        assert waits[0] == "queued"
        assert ground.waits is None
        group = site.group(ground, ground.head.training)
        site.update(group)
        assert [len(site.steps(rank)) for rank in range(2)] == [40, 40]
        group.stop()
    assert machines.jobs() == ["1"]
    site.until(lambda: gone(machines.group("1")))
    assert not list((site.folder / "slurm").iterdir())


def at_its_limit(machines: Machines) -> None:
    """The batch shell alone gets the signal: sbatch(1), --signal=B:."""
    children = Path(f"/proc/{machines.group('1')}/task/{machines.group('1')}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGUSR1)


@pytest.mark.long
@pytest.mark.parametrize(
    "lose", [at_its_limit, lambda machines: machines.ends("1", "NODE_FAIL")], ids=["limit", "node"]
)
def test_a_job_that_is_lost_in_the_midst_changes_no_update(
    site: Site, machines: Machines, lose: Callable[[Machines], None]
) -> None:
    """Another is submitted, and goes on at the last step kept."""
    alone = site.alone()
    with ExitStack() as stack:
        ground = opened(site, stack)
        group = site.group(ground, ground.head.training)
        with site.meanwhile(lambda: lose(machines)):
            update = site.update(group)
        torch.testing.assert_close(update, alone, rtol=0.0, atol=NEAR)
        assert machines.jobs() == ["1", "2"]
        assert len(site.steps(0)) < 80  # two passes from the beginning
        group.stop()
    site.until(lambda: all(gone(machines.group(job)) for job in machines.jobs()))
