"""The part of `hansa site doctor` that looks at a site of several machines, from the one with the head."""

import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from clients.agents.keys import AGENTS, agent_files, until
from clients.finding import Finding, mend, ok
from clients.sitefile import SiteTrainingTable
from hansa.address import split
from hansa.errors import reason
from hansa.startup import SOON


def look_at_agents(training: SiteTrainingTable, folder: Path, now: datetime) -> Iterator[Finding]:
    """Whether the head can listen, and agents have keys that are good."""
    if training.listen is None:
        return
    where, (host, port) = f"[training] listen: {training.listen}", split(training.listen)
    try:
        socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
        yield ok(f"{where} is free, for the agents of {training.nodes} nodes")
    except OSError as error:
        yield mend(
            f"{where}: {reason(error)}; give an address of this machine and a free port, or wait for a run's end"
        )
    if training.mode == "slurm":  # their key is made with the job
        return
    keys = list(agent_files(folder))
    if not keys:
        yield mend(
            f"{folder / AGENTS}: no agent has a key; make one for each node with hansa site agent-key NODE {folder}"
        )
    for path in keys:
        try:
            end = until(path)
        except ValueError:
            yield mend(f"{path}: no certificate; hansa site agent-key {path.stem} {folder}")
            continue
        line = f"{path.relative_to(folder)}: good until {end:%Y-%m-%d}"
        yield ok(line) if end - now > SOON else mend(f"{line}; hansa site agent-key {path.stem} {folder}")
