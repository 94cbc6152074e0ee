"""One node of a site: Flower's two processes, kept together, and what the node's log tells of them."""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import SIGTERM

from clients.dial import NODE
from clients.sitefolder import SiteFolder
from hansa.files import write_private
from hansa.flower import free_port, port_taken, program, shown
from hansa.processes import command_of
from hansa.startup import SUPEREXEC_SECRET, numbered
from hansa.supervise import Program, Supervisor

LOOK = 0.5  # seconds between two looks at the run's process
GRACE = 2.0  # seconds from the end of a run's process until its answer must have left
UNSEEN = 10.0  # seconds in which a run's process must have been seen, else it died between two looks
HELD = 60  # seconds for which a server holds the connection of a node that was killed


@dataclass(frozen=True)
class Endpoint:
    """Where Flower's nodes find the server."""

    address: str  # host:port
    ca: Path  # of the authority that signed what it finds there


class SiteNode:
    """One of the site's nodes: Flower's two processes, which take part in one run at a time.

    Args:
        supervisor: runs them.
        site: whose node it is.
        endpoint: where it finds the server.
        number: of the node, from 1.
    """

    def __init__(self, supervisor: Supervisor, site: SiteFolder, endpoint: Endpoint, number: int) -> None:
        self.supervisor, self.site, self.endpoint, self.number = supervisor, site, endpoint, number
        (site.path / numbered("flower", number)).mkdir(mode=0o700, exist_ok=True)
        self._start()

    def look(self) -> None:
        """Starts both anew, if they must be: their port is taken, or a run's process has died."""
        died = self._run_died()
        if died:
            # Flower would wait for its answer: a minute if it was killed, for ever if it ended by itself.
            line = "the run's process died without an answer; connecting anew, so that it can be asked again"
            self.supervisor.say(f"{self.supernode.program.name}: {line}")
        if died or port_taken(self.supernode.last_words):
            for child in (self.starter, self.supernode):
                self.supervisor.drop(child)
            self._start()

    def _start(self) -> None:
        self.node_log, port = NodeLog(self.site.name, self.site.file.site.server), free_port()
        secret = _new_secret(self.supervisor.folder / "run" / numbered(SUPEREXEC_SECRET, self.number))
        self.supernode = self.supervisor.start(self._supernode(port, secret))
        self.starter = self.supervisor.start(self._starter(port, secret))
        self._seen, self._gone = False, 0.0  # whether the run's process was seen, when it was first missed

    def _run_died(self) -> bool:
        members = self.supervisor.members(self.starter)
        here = any("flwr-clientapp" in part for pid in members for part in command_of(pid)[:6])
        self._seen = self.node_log.busy and (self._seen or here)
        self._gone = 0.0 if here or not self.node_log.busy else self._gone or time.monotonic()
        return bool(self._gone) and time.monotonic() > self._gone + (GRACE if self._seen else UNSEEN)

    def _supernode(self, port: int, secret: Path) -> Program:
        command = [program("flower-supernode"), "--superlink", self.endpoint.address]
        key = self.site.path / self.site.node_keys[self.number - 1]
        command += ["--root-certificates", str(self.endpoint.ca), "--auth-supernode-private-key", str(key)]
        command += ["--host", "127.0.0.1", "--port", str(port), "--node-config", f'site="{self.site.name}"']
        command += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
        name = numbered("Node", self.number)
        return Program(name, command, self.node_log.shown, self.node_log.excuse, orphaned=SIGTERM, env=self._env)

    def _starter(self, port: int, secret: Path) -> Program:
        command = [program("flower-superexec"), "--insecure", "--runtime-api-address", f"127.0.0.1:{port}"]
        command += ["--superexec-auth-secret-file", str(secret)]
        return Program(numbered("Starter", self.number), command, shown, orphaned=SIGTERM, env=self._env)

    @property
    def _env(self) -> dict[str, str]:
        """Each has a home of its own: two that unpack one app at the same time would be in each other's way."""
        return {"FLWR_HOME": str(self.site.path / numbered("flower", self.number)), NODE: str(self.number)}


class NodeLog:
    """Reads what Flower's node says: whether it is connected, and whether a run waits for an answer."""

    def __init__(self, site: str, server: str) -> None:
        self.site, self.server = site, server
        self.busy = False
        self._cut = False
        self._refused: float | None = None  # since when

    def shown(self, line: str) -> str | None:
        """A line as the terminal shows it."""
        if "Received successfully" in line:
            self.busy = True
        elif "Sending: " in line:
            self.busy = False
        elif "SuperNode ID:" in line:
            self._cut, self._refused = False, None
            return f"{self.site} is connected to {self.server}"
        elif "Connection attempt failed" in line and not self._cut:
            self._cut = True
            return f"{self.server} does not answer; trying on"
        elif "Connection successful after" in line and self._cut:
            self._cut = False
            return f"{self.server} answers again"
        return shown(line)

    def excuse(self, lines: Sequence[str]) -> str | None:
        """Why a node that ended is started again without counting it; "" if it was said before."""
        if not any("code: 2004" in line for line in lines):
            return None
        if self._refused is None:
            self._refused = time.monotonic()
            return f"the server still holds an old connection of {self.site}; trying again for {HELD} s"
        if self._refused and time.monotonic() > self._refused + HELD + 10:
            self._refused = 0.0
            return f"the server still refuses {self.site}: is it in the server's roster, with this key? Trying on"
        return ""


def _new_secret(path: Path) -> Path:
    """By which the two processes know each other: without it, any user of this machine may take the run's place."""
    path.unlink(missing_ok=True)
    write_private(path, secrets.token_bytes(32))
    return path
