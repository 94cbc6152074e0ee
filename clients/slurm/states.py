"""What the states of a Slurm job mean to a run. Sources: squeue(1) and sacct(1), "JOB STATE CODES". Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Meaning(StrEnum):
    """What to do about a job."""

    QUEUED = "queued"  # wait: it has no machines yet, or has lost them and is in the queue once more
    RUNS = "runs"  # it has its machines; also one that ends, until its last state is known
    AGAIN = "again"  # it ended by no fault of its own: submit another, which goes on from the last step kept
    CANCELLED = "cancelled"  # somebody did not want it: submit no other
    BROKEN = "broken"  # another one would end in the same way: submit none
    UNKNOWN = "unknown"  # the cluster has forgotten it, or says what is not known here


TABLE: Mapping[Meaning, frozenset[str]] = {
    Meaning.QUEUED: frozenset(
        {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
    ),
    Meaning.RUNS: frozenset(
        {"RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED", "UPDATE_DB"}
    ),
    Meaning.AGAIN: frozenset({"TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "COMPLETED"}),
    Meaning.CANCELLED: frozenset({"CANCELLED", "REVOKED"}),
    Meaning.BROKEN: frozenset({"FAILED", "OUT_OF_MEMORY", "DEADLINE", "LAUNCH_FAILED", "RECONFIG_FAIL"}),
}


@dataclass(frozen=True)
class Seen:
    """What a look at a job has shown."""

    state: str  # Slurm's word
    starts: float | None = None  # seconds since 1970; None: nobody knows

    @property
    def meaning(self) -> Meaning:
        """What to do about it."""
        return next((meaning for meaning, states in TABLE.items() if self.state in states), Meaning.UNKNOWN)


def from_squeue(output: str) -> Seen | None:
    """Reads what `squeue --noheader --format=%T|%S` prints of one job; None: nothing, for it has left the queue.

    The time is the start, actual or expected: ISO 8601 in the machine's own zone, or N/A.
    """
    state, _, start = _last(output).partition("|")
    if not state:
        return None
    try:
        return Seen(state, datetime.fromisoformat(start).timestamp())
    except (ValueError, OverflowError):
        return Seen(state)


def from_sacct(output: str) -> Seen:
    """Reads what `sacct --noheader --parsable2 --allocations --format=State` prints of one job.

    sacct adds who has cancelled one: `CANCELLED by 1000`.
    """
    return Seen(_last(output).partition(" ")[0])


def _last(output: str) -> str:
    """The last line; above it stands the cluster's name, where it was asked for by name."""
    return next((line.strip() for line in reversed(output.split("\n")) if line.strip()), "")
