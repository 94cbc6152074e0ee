"""Processes of this machine, found by what their environment says. Linux only: it reads /proc.

A supervisor gives its children a mark, which their children inherit and nobody else has. So what it left behind when it
was killed is found again, whatever became of its process ids.
"""

import ctypes
import fcntl
import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hansa.errors import UserError

MARK = "HANSA_SUPERVISOR"  # the variable that holds the mark
_PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1  # prctl(2)


def marked(mark: str) -> dict[int, int]:
    """The live processes with a mark: process id -> id of its session, which is that of its ancestor we started."""
    needle = f"{MARK}={mark}".encode()
    found = {}
    for pid in _all():
        with suppress(OSError):  # it has ended, or is somebody else's
            if needle in (_PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                found[pid] = os.getsid(pid)
    return found


def in_session(leader: int) -> list[int]:
    """The processes of a session whose leader has not been waited for."""
    found = []
    for pid in _all():
        with suppress(OSError):
            if os.getsid(pid) == leader:
                found.append(pid)
    return found


def command_of(pid: int) -> list[str]:
    """The command line of a process; empty when it has ended."""
    with suppress(OSError):
        return (_PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
    return []


def started(pid: int) -> str | None:
    """When a live process began, in a form that no other one of its id has; None when it has ended."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    return None if fields[0] in "ZX" else f"{boot} {fields[19]}"  # proc(5): state, and starttime in ticks


def cpu_seconds(pid: int) -> float | None:
    """How long all threads of a live process have computed, in seconds; None when it has ended."""
    try:
        fields = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")  # proc(5): utime and stime


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    """Sends a signal to those that are left."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def end(mark: str, grace: float) -> int:
    """Ends every process with a mark, by force after so many seconds; how many there were."""
    found = marked(mark)
    send(signal.SIGTERM, found)
    deadline = time.monotonic() + grace
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    while left := marked(mark):
        send(signal.SIGKILL, left)
        time.sleep(0.05)
    return len(found)


def die_with_parent(number: signal.Signals) -> None:
    """Called in a new process before its program: the signal comes when the thread that started it ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)


@contextmanager
def only_one(path: Path, refusal: str, patience: float = 0.0) -> Iterator[None]:
    """Holds a lock file, which no second process gets until this one has let it go or has ended, however it ends.

    Args:
        path: of the file.
        refusal: what the second is told.
        patience: seconds for which the second tries.

    Raises:
        UserError: another process holds it.
    """
    deadline = time.monotonic() + patience
    with path.open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise UserError(refusal) from None
                time.sleep(0.05)
        yield


def _all() -> list[int]:
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()]
