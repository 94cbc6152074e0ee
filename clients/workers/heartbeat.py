"""Signs of life of a rank: a thread in it sends them, and the supervisor judges their absence."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from hansa.processes import cpu_seconds

BEATS = 6  # within the silence after which a rank counts as hung
BUSY = 0.2  # of the time of a silence: whose process computed for longer is not hung
PATIENCE = 10  # silences that a process which computes gets: its code does not let go of the interpreter


class Heart:
    """A rank's heart: beats until its process ends, or nobody listens.

    Args:
        send: sends an object to the supervisor.
        limit: seconds of silence after which the rank counts as hung.
    """

    def __init__(self, send: Callable[[Mapping[str, Any]], None], limit: float) -> None:
        self._send, self._every = send, limit / BEATS
        threading.Thread(target=self._beat, name="heart", daemon=True).start()

    def _beat(self) -> None:
        while True:
            try:
                self._send({"beat": True})
            except OSError:
                return  # the supervisor is gone, and this process is about to be
            time.sleep(self._every)


class Pulse:
    """A rank's signs of life as they came. None is missed before the first: the start has a time limit of its own.

    Args:
        pid: of the rank's process.
        limit: seconds of silence after which it counts as hung.
    """

    def __init__(self, pid: int, limit: float) -> None:
        self.pid, self.limit = pid, limit
        self._last: float | None = None  # when the last sign came
        self._mark: tuple[float, float] | None = None  # in a silence: a time, and what the process had computed by then

    def felt(self) -> None:
        """A sign came."""
        self._last, self._mark = time.monotonic(), None

    def excused(self, seconds: float) -> None:
        """We were not listening for so long."""
        if self._last is not None:
            self._last, self._mark = self._last + seconds, None

    @property
    def stopped(self) -> bool:
        """Whether the rank hangs: it is silent, and does not compute either. To be asked often."""
        now = time.monotonic()
        if self._last is None or (silent := now - self._last) <= self.limit / 2:
            return False
        computed = cpu_seconds(self.pid) or 0.0
        since, before = self._mark = self._mark or (now, computed)
        if silent <= self.limit:
            return False
        return silent > PATIENCE * self.limit or computed - before < BUSY * (now - since)
