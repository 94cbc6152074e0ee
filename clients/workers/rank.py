"""One rank as the supervisor sees it: a process, the socket to it, and its signs of life."""

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from clients.pipe import Pipe
from clients.workers.heartbeat import Pulse
from hansa.processes import die_with_parent

Answer = tuple[dict[str, Any], bytes]
Event = tuple[int, Answer | None]  # of which rank; None: it is gone
Hear = Callable[[Event], None]  # from any thread


class LocalRank:
    """A training process. It dies with the thread that makes this object.

    Args:
        number: from 0.
        local: its number among those of this machine.
        host: this machine's address, for the others of the group.
        log: the file that gets what the process writes.
        env: variables of its own, beside ours.
        limit: seconds of silence after which it counts as hung.
        hear: gets what it says, signs of life left out.
    """

    def __init__(
        self, number: int, local: int, host: str, log: Path, env: Mapping[str, str], limit: float, hear: Hear
    ) -> None:
        self.number, self.local, self.host, self._hear = number, local, host, hear
        self._fate = threading.Lock()  # of the process's end
        ours, theirs = socket.socketpair()
        with theirs, log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "clients.workers.serve", str(theirs.fileno())],
                env={**os.environ, **env},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=_set_apart,
            )
        # One that hangs reads nothing: what we send it must not hang us.
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", max(1, int(limit)), 0))
        self._pulse = Pulse(self.process.pid, limit)
        self._socket, self._pipe = ours, Pipe(ours)
        self._ear = threading.Thread(target=self._listen, name=f"rank {number}", daemon=True)
        self._ear.start()

    @property
    def alive(self) -> bool:
        """Whether its process runs, if only stopped."""
        how = os.WEXITED | os.WNOHANG | os.WNOWAIT  # until it is buried, its process group has its id for a name
        with self._fate:
            return self.process.returncode is None and os.waitid(os.P_PID, self.process.pid, how) is None

    @property
    def pid(self) -> int:
        """Its process."""
        return self.process.pid

    @property
    def hangs(self) -> bool:
        """Whether it is silent, and does not compute either; to be asked often."""
        return self._pulse.stopped

    def excused(self, seconds: float) -> None:
        """This process was held up for so long, and heard nothing."""
        self._pulse.excused(seconds)

    def tell(self, order: Mapping[str, Any], frame: bytes = b"") -> None:
        """Gives an order; one that is gone, or takes nothing, is found by its silence."""
        with suppress(OSError):
            self._pipe.send(order, frame)

    def kill(self) -> None:
        """Ends it and what it has started, at once; from any thread."""
        with self._fate:
            if self.process.returncode is None:
                os.killpg(self.process.pid, signal.SIGKILL)

    def bury(self) -> None:
        """Waits for the end of one that was killed or has ended, and frees what it held."""
        with self._fate:
            self.process.wait()
        self._socket.shutdown(socket.SHUT_RDWR)  # a process that it left behind may hold the other end
        self._ear.join()
        with self._pipe:
            self._socket.close()

    def _listen(self) -> None:
        while True:
            try:
                answer = self._pipe.receive()
            except OSError:
                answer = None
            if answer is not None and "beat" in answer[0]:
                self._pulse.felt()
                continue
            self._hear((self.number, answer))
            if answer is None:
                return


def _set_apart() -> None:
    """Runs in the new process, before the program: Ctrl-C is not for it, and what it starts is of its group."""
    die_with_parent(signal.SIGKILL)
    os.setpgid(0, 0)
