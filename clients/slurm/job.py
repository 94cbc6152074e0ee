"""The one job of a run: submitted once, found again after a restart, submitted anew when it is lost, cancelled."""

from collections.abc import Callable
from pathlib import Path

from clients.slurm import commands
from clients.slurm.commands import JobId
from clients.slurm.states import Meaning, Seen
from hansa.files import write_atomically

FORGOTTEN = 3  # looks in a row at which nobody knows a job before it counts as lost


class GivenUp(Exception):
    """There is to be no other job; one line for the site's own log."""


class Job:
    """A run's job. Its id is in a file, and its name is the run's own: so no second one is submitted beside it.

    Args:
        script: the batch script.
        name: of the job, which no other run or site of this user's has.
        file: that keeps the id.
        max_restarts: jobs that may follow the first.
        say: writes a line to the site's log.
    """

    def __init__(self, script: str, name: str, file: Path, max_restarts: int, say: Callable[[str], None]) -> None:
        self.script, self.name, self.file, self.left, self.say = script, name, file, max_restarts, say
        self.id: JobId | None = None
        self._strange = 0  # looks in a row at which nobody knew it

    def begin(self) -> None:
        """Takes up the job that an earlier process has submitted, or submits one.

        Raises:
            SlurmSays: it was refused, or nobody can be asked.
        """
        kept = commands.read_id(self.file.read_text()) if self.file.exists() else None
        if kept is not None and commands.look(kept).meaning in (Meaning.QUEUED, Meaning.RUNS):
            self.id = kept
        else:  # a process may have died between sbatch and the file
            self.id = commands.named(self.name)
        if self.id is None:
            return self._submit()
        self._keep(self.id)
        self.say(f"job {self.id}: it is there already")

    def look(self) -> Seen:
        """What becomes of it; where it was lost by no fault of its own, another one has been submitted.

        Raises:
            GivenUp: there is to be no other.
            SlurmSays: nobody can be asked just now; look again later.
        """
        assert self.id is not None  # it has begun
        seen = commands.look(self.id)
        self._strange = self._strange + 1 if seen.meaning == Meaning.UNKNOWN else 0
        if seen.meaning in (Meaning.QUEUED, Meaning.RUNS) or 0 < self._strange < FORGOTTEN:
            return seen
        word = seen.state or "nobody knows it any more"
        if seen.meaning in (Meaning.CANCELLED, Meaning.BROKEN):
            raise GivenUp(f"job {self.id}: {word}; see its output, and sacct --jobs={self.id.number}")
        if not self.left:
            raise GivenUp(f"job {self.id}: {word}; it was submitted anew too often")
        self.left, self._strange = self.left - 1, 0
        self.say(f"job {self.id}: {word}; submitted anew")
        self._submit()
        return Seen("PENDING")

    def cancel(self) -> None:
        """Ends it, if it has begun; a job that cannot be cancelled just now stays in the file, for the next process.

        Raises:
            SlurmSays: nobody can be asked just now.
        """
        if self.id is not None:
            commands.cancel(self.id)
            self.id = None
            self.file.unlink(missing_ok=True)

    def _submit(self) -> None:
        self.id = commands.submit(self.script, self.name)
        self._keep(self.id)
        self.say(f"job {self.id}: submitted")

    def _keep(self, job: JobId) -> None:
        write_atomically(self.file, str(job).encode())
