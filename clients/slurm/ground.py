"""A cluster's machines, behind its queue: the ground of a site's run in mode "slurm"."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from clients.agents.head import Head
from clients.agents.keys import AGENTS, make_key, until
from clients.agents.remote import RemoteRank
from clients.child import ChildFailed
from clients.failures import Failure
from clients.sitefile import SiteFile
from clients.slurm import commands
from clients.slurm.commands import SlurmSays
from clients.slurm.config import SlurmTable
from clients.slurm.job import GivenUp, Job
from clients.slurm.script import KEY, batch_script
from clients.slurm.states import Meaning, Seen
from clients.workers.rank import Hear
from hansa.startup import SOON
from hansa.wire.link_pb2 import Waiting

JOBS = "slurm"  # the folder in the site's with a file for each run's job

Say = Callable[[str], None]


class Queue:
    """See `clients.workers.ground.Ground`. Ranks are started through the head, once the job has brought its agents.

    Args:
        head: that the agents come to.
        job: of the run.
        table: how long to wait.
        say: writes a line to the site's log.
    """

    def __init__(self, head: Head, job: Job, table: SlurmTable, say: Say) -> None:
        self.head, self.job, self.table, self._say = head, job, table, say
        self.waits: Waiting | None = None
        self._left, self._over, self._trouble = threading.Event(), False, ""

    def gather(self, cancelled: Callable[[], bool]) -> int:
        """See Ground: gets the job its machines, in the queue if need be, and the agents on them."""
        if self._over:
            raise ChildFailed(Failure.NODES)
        try:
            self._wait(lambda: cancelled() or self._left.is_set())
        except (GivenUp, SlurmSays) as error:
            self._say(str(error))
            self._over = isinstance(error, GivenUp)
            raise ChildFailed(Failure.NODES) from None
        finally:
            self.waits = None
        if cancelled():
            return 0
        if self._left.is_set():
            raise ChildFailed(Failure.NODES)
        return self.head.take()

    def more(self, world: int) -> bool:
        """See Ground."""
        return self.head.more(world)

    def start(self, number: int, hear: Hear) -> RemoteRank:
        """See Ground."""
        return self.head.start(number, hear)

    def leave(self) -> None:
        """See Ground."""
        self._left.set()
        self.head.leave()

    def _wait(self, stop: Callable[[], bool]) -> None:
        """Waits until the agents are here, or the job has run for so long that no other one will come."""
        nodes, start = self.head.training.nodes, self.head.training.node_wait
        if self.job.id is None:
            self.job.begin()
        since, runs = time.monotonic(), False
        while not stop():
            seen = self._look()
            if seen is not None and seen.meaning in (Meaning.QUEUED, Meaning.RUNS):
                if runs != (now := seen.meaning == Meaning.RUNS):
                    since, runs = time.monotonic(), now
                self.waits = Waiting(state="starting") if runs else _queued(seen)
            left = since + (start if runs else self.table.max_wait) - time.monotonic()
            if self.head.wait(nodes, max(0.0, min(self.table.poll, left)), stop) >= nodes:
                return
            if left <= self.table.poll and runs:
                return
            if left <= 0:
                said = f"job {self.job.id}: no machines within max_wait = {self.table.max_wait:g} s; cancelled"
                self.job.cancel()
                raise GivenUp(said)

    def _look(self) -> Seen | None:
        """What becomes of the job; None: nobody can be asked just now, and that was said once."""
        try:
            seen = self.job.look()
        except SlurmSays as error:
            if str(error) != self._trouble:
                self._trouble = str(error)
                self._say(f"job {self.job.id}: {error}; trying on")
            return None
        self._trouble = ""
        return seen


@contextmanager
def queued(head: Head, file: SiteFile, folder: Path, run: str, say: Say) -> Iterator[Queue]:
    """The ground of a run, to be held while it lasts; its job is cancelled afterwards.

    Args:
        head: that listens, so no other run of the site does.
        file: site.toml.
        folder: the site's, absolute.
        run: the run's id.
        say: writes a line to the site's log.

    Raises:
        UserError: no script can be made.
    """
    table, script = file.slurm, batch_script(file, folder, run)
    (jobs := folder / JOBS).mkdir(mode=0o700, exist_ok=True)
    (folder / "logs").mkdir(exist_ok=True)  # the job's output goes there
    own = jobs / f"{run}.job"
    for path in jobs.glob("*.job"):
        if path != own:
            _clear(path, say)
    job = Job(script, f"hansa-{file.site.name}-{run}", own, table.max_restarts, say)
    try:
        yield Queue(head, job, table, say)
    finally:
        try:
            job.cancel()
        except SlurmSays as error:
            say(f"job {job.id}: not cancelled: {error}; it ends {table.patience:g} s after its start at the latest")


def ensure_key(folder: Path, site: str, now: datetime) -> None:
    """Makes the key that the agents of all jobs show, if there is none that is good for a while."""
    if not (path := folder / AGENTS / f"{KEY}.pem").exists() or until(path) - now < SOON:
        make_key(folder, site, KEY, now)


def _clear(path: Path, say: Say) -> None:
    """Cancels the job of a run that is over, which could not be cancelled then."""
    try:
        if (job := commands.read_id(path.read_text())) is not None:
            commands.cancel(job)
        path.unlink(missing_ok=True)
    except SlurmSays as error:
        say(f"{path.name}: {error}")


def _queued(seen: Seen) -> Waiting:
    return Waiting(state="queued", starts_in=max(0.0, seen.starts - time.time()) if seen.starts is not None else 0.0)
