"""What `hansa site agent` and `hansa site agent-key` do."""

import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from clients.agents.agent import Wanted, serve
from clients.agents.keys import make_key, until
from clients.sitefile import load_site_file
from hansa.address import as_ip, split
from hansa.errors import UserError
from hansa.startup import SITE_FILE
from hansa.tables import A_NAME, is_name

Say = Callable[[str], None]


def make(folder: Path, name: str, say: Say) -> None:
    """Makes a key for agents.

    Raises:
        UserError: it is no site's folder, or no name.
    """
    if not is_name(name):
        raise UserError(f"a node's name must be {A_NAME}; got {name}")
    path = make_key(folder, load_site_file(folder / SITE_FILE).site.name, name, datetime.now(UTC))
    say(f"{path}: good until {until(path):%Y-%m-%d}; start the agent there with hansa site agent --node {name}")


def agent(
    folder: Path,
    head: str,
    node: str | None,
    key: str | None,
    address: str | None,
    run: str | None,
    patience: float | None,
    say: Say,
) -> None:
    """Runs an agent until it is stopped; see `clients.cli`.

    Raises:
        UserError: an option, its key or site.toml is not in order.
        RunFailed: no head came for too long.
    """
    try:
        where = split(head)
    except ValueError as error:
        raise UserError(f"--head {error}") from None
    node = node or os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]
    if not is_name(node):
        raise UserError(f"--node must be {A_NAME}; got {node}")
    if address is not None and as_ip(address) is None:
        raise UserError(f"--address must be an IP address of this machine; got {address}")
    serve(Wanted(folder.absolute(), where, node, key or node, address, run, patience), say)
