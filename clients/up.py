"""What `hansa site up` does: keeps Flower's processes of a site's machine running, two a node."""

import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGTERM

from clients.dial import SESSIONS, way
from clients.entry import write_entry
from clients.forwarder import HOST, write_local
from clients.node import LOOK, Endpoint, SiteNode
from clients.sitefolder import open_site_folder
from hansa.flower import environment, free_port
from hansa.startup import CA, ending
from hansa.supervise import Program, Supervisor

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
    env = {**environment(folder / "flower", site.file.flower.telemetry), "HANSA_SITE": str(folder)}
    proxy = way(site.file).proxy if site.file.network.gate else None
    with Supervisor(folder, "site", say, env) as supervisor:  # first: what another one runs with is not written anew
        supervisor.env["PATH"] = os.pathsep.join([write_entry(folder / "run" / "bin"), env["PATH"]])
        endpoint = Endpoint(site.file.site.server, folder / CA)
        ports = (free_port(), free_port())
        if site.file.network.gate:
            endpoint = Endpoint(f"{HOST}:{ports[0]}", write_local(folder))
            supervisor.env[SESSIONS] = f"{HOST}:{ports[1]}"
        say(f"site {site.name}, server {site.file.site.server}, logs in {folder / 'logs'}; Ctrl-C stops it")
        if line := ending(folder, site.startup.tls.certificate, datetime.now(UTC), f"hansa site renew {folder}"):
            say(line)
        if site.file.network.gate:
            supervisor.start(_forwarder(folder, *ports))
            say(f"through the server's gate{f' and the proxy {proxy}' if proxy else ''}")
        nodes = [SiteNode(supervisor, site, endpoint, number) for number in range(1, len(site.node_keys) + 1)]
        while True:
            supervisor.wait(LOOK)
            for node in nodes:
                node.look()


def _forwarder(folder: Path, node: int, session: int) -> Program:
    command = [sys.executable, "-P", "-m", "clients.forwarder", str(folder), str(node), str(session)]
    return Program("Forwarder", command, orphaned=SIGTERM)
