"""The gate's way to the runs' own ends: raw bytes, by the label of the run in the server name."""

import asyncio
import json
import time
from contextlib import suppress
from pathlib import Path

from hansa.routes import label
from hansa.splice import LIMIT, Stream, splice
from server.launch import served

SESSION = "session.json"  # in a run's folder: the port, and which start of the run listens there
IDLE = 75.0  # seconds; gRPC asks every 20 whether the other end is there
LOOK = 0.5  # seconds between two looks for new runs: names can be guessed at any speed


class Sessions:
    """Where the runs of a server folder take their sessions.

    Args:
        runs: the folder of runs.
        host: where their ends listen, on loopback.
    """

    def __init__(self, runs: Path, host: str) -> None:
        self.runs, self.host = runs, host
        self._names: dict[str, str] = {}  # label -> run
        self._looked = float("-inf")

    async def serve(self, raw: Stream, first: bytes, run: str) -> bool:
        """Serves one connection to a run, by its label; False if no such run takes sessions."""
        if (port := self._port(run)) is None:
            return False
        end = Stream(*await asyncio.open_connection(self.host, port, limit=LIMIT))
        end.writer.write(first)
        await splice(raw, end, IDLE)
        return True

    def _port(self, run: str) -> int | None:
        if run not in self._names and time.monotonic() > self._looked + LOOK:
            self._looked = time.monotonic()
            self._names = {label(path.name): path.name for path in self.runs.glob("*") if path.is_dir()}
        if run not in self._names:
            return None
        folder = self.runs / self._names[run]
        with suppress(OSError, ValueError, KeyError, TypeError):
            said = json.loads((folder / SESSION).read_text())
            # A run that is gone has left its port to anybody, perhaps to an end that asks for no certificate.
            if served(folder, said["epoch"]):
                return int(said["port"])
        return None
