"""Slurm's commands: sbatch, squeue, sacct, scancel. No shell is between, and nothing asked comes from a server."""

import os
import re
import subprocess
from dataclasses import dataclass

from clients.slurm.states import Meaning, Seen, from_sacct, from_squeue
from hansa.errors import UserError

LONGEST = 60.0  # seconds that one command may take
SHOWN = 300  # characters of what a command says
GONE = "Invalid job id"  # in what squeue says of a job that it has forgotten: five minutes after its end (MinJobAge)
HIDDEN = ("HANSA_", "FLWR_", "SBATCH_")  # variables that commands do not get; sbatch(1) takes options from the last
ENDED = "already completing or completed"  # in what scancel says of a job that has ended
ID = re.compile(r"([0-9]{1,18})(?:;([A-Za-z0-9_.-]{1,64}))?")  # as sbatch --parsable prints it


class SlurmSays(UserError):
    """A command could not be given, or was refused; one line for the site's own log, with Slurm's words."""


@dataclass(frozen=True)
class JobId:
    """A job on a cluster."""

    number: str
    cluster: str = ""  # of several; empty: the only one

    def __str__(self) -> str:
        return f"{self.number};{self.cluster}" if self.cluster else self.number

    @property
    def which(self) -> list[str]:
        """The option by which commands find its cluster."""
        return [f"--clusters={self.cluster}"] if self.cluster else []


def read_id(text: str) -> JobId | None:
    """Reads a job's id as sbatch(1) prints it with --parsable; None: it is none."""
    found = ID.fullmatch(text.strip())
    return JobId(found[1], found[2] or "") if found else None


def submit(script: str, name: str) -> JobId:
    """Submits a batch script, which sbatch reads from its standard input.

    Raises:
        SlurmSays: it was refused, or there is no sbatch.
    """
    said = _ask(["sbatch", "--parsable", f"--job-name={name}"], script)
    if (job := read_id(said)) is None:
        raise SlurmSays(f"sbatch --parsable: {_line(said)!r} is no job's id; see to it on the cluster")
    return job


def test(script: str) -> None:
    """Asks whether a batch script would be taken, and submits nothing.

    Raises:
        SlurmSays: it would not, or there is no sbatch.
    """
    _ask(["sbatch", "--test-only"], script)


def look(job: JobId) -> Seen:
    """What becomes of a job: from the queue, or from the accounts where the queue has forgotten it.

    Raises:
        SlurmSays: nobody can be asked just now.
    """
    which = [*job.which, "--noheader", f"--jobs={job.number}"]
    try:
        seen = from_squeue(_ask(["squeue", *which, "--states=all", "--format=%T|%S"]))
    except SlurmSays as error:
        if GONE not in str(error):
            raise
        seen = None
    if seen is not None:
        return seen
    try:
        return from_sacct(_ask(["sacct", *which, "--parsable2", "--allocations", "--format=State"]))
    except SlurmSays:  # a cluster may keep no accounts
        return Seen("")


def named(name: str) -> JobId | None:
    """The user's own job of that name which waits or runs, the newest; None: there is none.

    Raises:
        SlurmSays: nobody can be asked just now.
    """
    found = _ask(["squeue", "--me", "--noheader", f"--name={name}", "--format=%i|%T"]).split()
    jobs = []
    for line in found:
        number, _, state = line.partition("|")
        if number.isdecimal() and Seen(state).meaning in (Meaning.QUEUED, Meaning.RUNS):
            jobs.append(int(number))
    return JobId(str(max(jobs))) if jobs else None


def cancel(job: JobId) -> None:
    """Ends a job, whether it waits or runs; nothing, if it has ended.

    Raises:
        SlurmSays: nobody can be asked just now.
    """
    try:
        _ask(["scancel", *job.which, job.number])
    except SlurmSays as error:
        if GONE not in str(error) and ENDED not in str(error):
            raise


def _ask(command: list[str], text: str = "") -> str:
    # A job gets the variables of who submits it: what this process was told, a proxy's password too, is not for it.
    env = {name: value for name, value in os.environ.items() if not name.startswith(HIDDEN)}
    env["SLURM_TIME_FORMAT"] = "standard"  # squeue(1): else a user's own form of times
    try:
        done = subprocess.run(
            command, input=text, env=env, capture_output=True, text=True, errors="replace", timeout=LONGEST, check=False
        )
    except FileNotFoundError:
        raise SlurmSays(f"{command[0]} is not on the PATH; run the site where Slurm's commands are") from None
    except OSError as error:
        raise SlurmSays(f"{command[0]}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise SlurmSays(f"{command[0]} gave no answer within {LONGEST:g} s; is the cluster's controller up?") from None
    if done.returncode:
        said = _line(done.stderr).removeprefix(f"{command[0]}: ") or f"exit code {done.returncode}"
        raise SlurmSays(f"{command[0]}: {said}")
    return done.stdout


def _line(text: str) -> str:
    """What a command says, fit for a log: one line, no control characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= SHOWN else line[: SHOWN - 3] + "..."
