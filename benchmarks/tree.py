"""The memory of a process and all its descendants."""

import threading
import time
from pathlib import Path


class Tree(threading.Thread):
    """Looks now and then at the tree of a process; `peak` is its greatest proportional set size, in bytes.

    A page that several processes share is counted once in all. Looking takes at most a thirtieth of a core.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak, self.over = pid, 0, threading.Event()
        self.start()

    def run(self) -> None:
        pause = 0.05
        while not self.over.wait(pause):
            began = time.perf_counter()
            self.peak = max(self.peak, sum(map(proportional, family(self.pid))))
            pause = max(0.05, 30 * (time.perf_counter() - began))

    def stop(self) -> int:
        """The peak, once the process has ended."""
        self.over.set()
        self.join()
        return self.peak


def family(pid: int) -> set[int]:
    """A process and its descendants."""
    parents = {int(path.name): parent(path) for path in Path("/proc").iterdir() if path.name.isdigit()}
    found, before = {pid}, set[int]()
    while found != before:
        before, found = found, found | {one for one, above in parents.items() if above in found}
    return found


def parent(process: Path) -> int:
    """0 where it has ended."""
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def proportional(pid: int) -> int:
    """Bytes; 0 where it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
