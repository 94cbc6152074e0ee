"""The training process, as the light process that holds the session sees it.

Vectors and uploads that are not in the frames are files in the spool.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.failures import LINES, Failure
from clients.pipe import Pipe
from hansa.processes import die_with_parent
from hansa.records import Part
from hansa.wire.link_pb2 import Plan, Result


class ChildDied(RuntimeError):
    """The training process is gone."""


class ChildFailed(RuntimeError):
    """The training process could not do what it was asked; code and text may leave the site."""

    def __init__(self, code: Failure) -> None:
        super().__init__(LINES[code])
        self.code = code


@dataclass(frozen=True)
class Ready:
    """What a started training process has found."""

    layout: str  # digest
    strategy: str  # digest
    parts: Mapping[str, Part]  # of an update, in their order in an upload
    counters: int  # integers that follow them
    sums: tuple[
        tuple[str, tuple[int, ...]], ...
    ]  # names and shapes of the site's metric sums, if it was asked for them
    rows: int  # of training, if the app wants differential privacy
    groups: int | None  # whose they are; None: no id says it


class Child:
    """One training process.

    Args:
        app: the folder of the admitted app.
        site: the site's folder.
        run: the run's id.
        log: the file that gets what the process writes.
        sums: whether it is to find out which metric sums the site can give.
    """

    def __init__(self, app: Path, site: Path, run: str, log: Path, sums: bool = False) -> None:
        ours, theirs = socket.socketpair()
        with theirs, log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "clients.worker", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=_set_apart,
            )
        self._socket, self._pipe = ours, Pipe(ours)
        try:
            answer, _ = self._ask({"app": str(app), "site": str(site), "run": run, "sums": sums})
        except BaseException:
            self.stop()
            raise
        parts = {name: Part(size, weight) for name, size, weight in answer["parts"]}
        found = tuple((name, tuple(shape)) for name, shape in answer["sums"])
        self.ready = Ready(**{**answer, "parts": parts, "sums": found})

    def work(self, plan: Plan, files: Mapping[str, Path], upload: Path) -> Result:
        """Does a plan; its upload, if it has one, is in the result, or if it is large in the file afterwards.

        Raises:
            ChildDied: it was killed, or ran out of memory.
            ChildFailed: it takes no part.
        """
        order = {"files": {name: str(path) for name, path in files.items()}, "upload": str(upload)}
        return Result.FromString(self._ask(order, plan.SerializeToString())[1])

    @property
    def dead(self) -> bool:
        """Whether it has ended, by itself or not."""
        return self.process.poll() is not None

    def kill(self) -> None:
        """Ends what it does at once; may be called from any thread, and `work` raises ChildDied."""
        self.process.kill()

    def stop(self) -> None:
        """Ends it at once: between plans it has nothing to lose, and what it was doing is no longer wanted."""
        self.process.kill()
        self.process.wait()
        with self._pipe:
            self._socket.close()

    def _ask(self, order: Mapping[str, Any], frame: bytes = b"") -> tuple[dict[str, Any], bytes]:
        try:
            self._pipe.send(order, frame)
            answer = self._pipe.receive()
        except OSError:
            answer = None
        if answer is None:
            self.process.kill()
            self.process.wait()  # its socket closes a moment before it is `dead`
            raise ChildDied
        if "failed" in answer[0]:
            raise ChildFailed(Failure(answer[0]["failed"]))
        return answer


def _set_apart() -> None:
    """Runs in the new process, before the program: Ctrl-C is not for it."""
    die_with_parent(signal.SIGKILL)
    os.setpgid(0, 0)
