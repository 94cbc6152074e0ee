"""The demo's consortium: provisioned in a folder, its server and sites started on this machine, stopped at the end."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from hansa.errors import RunFailed, UserError
from hansa.startup import SITE_FILE
from server.command import control
from server.flower import Refused, Unreachable
from server.provision import Founding, provision

PATIENCE = 120.0  # seconds until every site is connected
GOODBYE = 10.0  # seconds that a supervisor gets to end its processes


class Consortium:
    """A server and its sites, each with its own supervisor as in a real deployment, while the `with` block lasts.

    Args:
        folder: a new one.
        sites: their names.
        nodes: of each.
    """

    def __init__(self, folder: Path, sites: Sequence[str], nodes: int = 1) -> None:
        self.folder, self.sites = folder, sites
        self.server = folder / "server"
        self.supervisors: dict[Path, subprocess.Popen[bytes]] = {}  # by their folder
        provision(folder, sites, Founding("demo", (), _free_ports(), direct=True), datetime.now(UTC), nodes=nodes)

    def site(self, name: str) -> Path:
        """A site's folder."""
        return self.folder / "sites" / name

    def write_site(self, name: str, tables: Mapping[str, str]) -> None:
        """Settles tables of a site.toml: their keys, as text."""
        path = self.site(name) / SITE_FILE
        kept, skipping = [], False
        for line in path.read_text().splitlines():
            if line.startswith("["):
                skipping = line.strip("[]") in tables
            if not skipping:
                kept.append(line)
        path.write_text("\n".join([*kept, *(f"[{table}]\n{keys}" for table, keys in tables.items())]) + "\n")

    def __enter__(self) -> Self:
        try:
            for folder in (self.server, *map(self.site, self.sites)):
                self.start(folder)
            self._wait(lambda: self.connected() >= set(self.sites))
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop()

    def connected(self) -> set[str]:
        """The sites that Flower can reach."""
        with suppress(UserError, Unreachable, Refused), control(self.server) as calls:
            return {node.name for node in calls.nodes() if node.online}
        return set()

    def start(self, folder: Path) -> None:
        """Starts the supervisor of a folder, the server's or a site's; again, if an earlier one has ended."""
        what = "server" if folder == self.server else "site"
        command = [str(Path(sys.executable).with_name("hansa")), what, "up", str(folder)]
        (folder / "logs").mkdir(exist_ok=True)
        with (folder / "logs" / "up.log").open("ab") as log:
            # A session of its own: Ctrl-C is for the demo, which ends them in order.
            process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self.supervisors[folder] = process

    def _wait(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            if any(process.poll() is not None for process in self.supervisors.values()) or time.monotonic() > deadline:
                raise RunFailed(
                    f"the consortium did not come up; see {self.folder}/*/logs and {self.folder}/sites/*/logs"
                )
            time.sleep(0.2)

    def _stop(self) -> None:
        """Ends every supervisor, which ends its own processes; a second Ctrl-C does not cut that short."""
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            for process in self.supervisors.values():
                process.terminate()
            for process in self.supervisors.values():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(GOODBYE)
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        finally:
            signal.signal(signal.SIGINT, before)


def _free_ports() -> int:
    """A port that is free just now, and so is the next one."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = int(first.getsockname()[1])
            with suppress(OSError):
                second.bind(("127.0.0.1", port + 1))
                return port
