"""What `hansa site up` does: keeps Flower's two processes of a site's machine running."""

import os
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGTERM

from clients.dial import SESSIONS, way
from clients.entry import write_entry
from clients.forwarder import HOST, write_local
from clients.sitefolder import SiteFolder, open_site_folder
from hansa.files import write_private
from hansa.flower import environment, free_port, port_taken, program, shown
from hansa.processes import command_of
from hansa.startup import CA, NODE_KEY, SUPEREXEC_SECRET, ending
from hansa.supervise import Program, Supervisor

LOOK = 0.5  # seconds between two looks at the run's process
GRACE = 2.0  # seconds from the end of a run's process until its answer must have left
UNSEEN = 10.0  # seconds in which a run's process must have been seen, else it died between two looks
HELD = 60  # seconds for which a server holds the connection of a node that was killed

Say = Callable[[str], None]


def up(folder: Path, say: Say) -> None:
    """Runs the site until a signal stops it.

    Args:
        folder: the site's.
        say: shows a line.

    Raises:
        UserError: the folder is not in order, or a site runs on it already.
        RunFailed: a process cannot be kept running.
    """
    folder = folder.resolve()
    site = open_site_folder(folder, datetime.now(UTC))
    (folder / "flower").mkdir(mode=0o700, exist_ok=True)
    env = {**environment(folder / "flower", site.file.flower.telemetry), "HANSA_SITE": str(folder)}
    env["PATH"] = os.pathsep.join([write_entry(folder / "run" / "bin"), env["PATH"]])
    door = Door(site.file.site.server, folder / CA)
    ports = (free_port(), free_port())
    if site.file.network.gate:
        proxy = way(site.file).proxy
        door = Door(f"{HOST}:{ports[0]}", write_local(folder))
        env[SESSIONS] = f"{HOST}:{ports[1]}"
    with Supervisor(folder, "site", say, env) as supervisor:
        say(f"site {site.name}, server {site.file.site.server}, logs in {folder / 'logs'}; Ctrl-C stops it")
        if line := ending(folder, site.startup.tls.certificate, datetime.now(UTC), f"hansa site renew {folder}"):
            say(line)
        if site.file.network.gate:
            supervisor.start(_forwarder(folder, *ports))
            say(f"through the server's gate{f' and the proxy {proxy}' if proxy else ''}")
        while True:
            _serve(supervisor, site, door)


@dataclass(frozen=True)
class Door:
    """Where Flower's node finds the server."""

    address: str  # host:port
    ca: Path  # of the authority that signed what it finds there


def _serve(supervisor: Supervisor, site: SiteFolder, door: Door) -> None:
    """Runs both processes until they must both be started anew: their port is taken, or a run's process has died."""
    ears, port = NodeLog(site.name, site.file.site.server), free_port()
    secret = _new_secret(supervisor.folder / "run")
    node = supervisor.start(_node(site, door, port, secret, ears))
    starter = supervisor.start(_starter(port, secret))
    seen, gone = False, 0.0  # whether the run's process was seen, when it was first missed
    while not port_taken(node.last_words):
        supervisor.wait(LOOK)
        here = any("flwr-clientapp" in part for pid in supervisor.members(starter) for part in command_of(pid)[:6])
        seen = ears.busy and (seen or here)
        gone = 0.0 if here or not ears.busy else gone or time.monotonic()
        if gone and time.monotonic() > gone + (GRACE if seen else UNSEEN):
            # Flower would wait for its answer: a minute if it was killed, for ever if it ended by itself.
            supervisor.say("the run's process died without an answer; connecting anew, so that it can be asked again")
            break
    for child in (starter, node):
        supervisor.drop(child)


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


def _forwarder(folder: Path, node: int, session: int) -> Program:
    command = [sys.executable, "-P", "-m", "clients.forwarder", str(folder), str(node), str(session)]
    return Program("Forwarder", command, orphaned=SIGTERM)


def _node(site: SiteFolder, door: Door, port: int, secret: Path, ears: NodeLog) -> Program:
    command = [program("flower-supernode"), "--superlink", door.address]
    command += ["--root-certificates", str(door.ca), "--auth-supernode-private-key", str(site.path / NODE_KEY)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--node-config", f'site="{site.name}"']
    command += ["--isolation", "process", "--superexec-auth-secret-file", str(secret)]
    return Program("Node", command, ears.shown, ears.excuse, orphaned=SIGTERM)


def _starter(port: int, secret: Path) -> Program:
    command = [program("flower-superexec"), "--insecure", "--runtime-api-address", f"127.0.0.1:{port}"]
    return Program("Starter", [*command, "--superexec-auth-secret-file", str(secret)], shown, orphaned=SIGTERM)


def _new_secret(folder: Path) -> Path:
    """By which the two processes know each other: without it, any user of this machine may take the run's place."""
    path = folder / SUPEREXEC_SECRET
    path.unlink(missing_ok=True)
    write_private(path, secrets.token_bytes(32))
    return path
