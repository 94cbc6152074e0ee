"""The TLS server names by which everything at the server shares one port: its gate reads them, and opens nothing."""

import hashlib
import re

FLEET = "fleet.hansa"  # Flower's interface for the sites' nodes
CONTROL = "control.hansa"  # the server's own control end
_SESSIONS = "session.hansa"
NAMES = (FLEET, CONTROL, f"*.{_SESSIONS}")  # what the server's certificate is good for, besides its hosts


def label(run: str) -> str:
    """What stands for a run in a server name, whatever its id: 32 hex digits of its SHA-256."""
    return hashlib.sha256(run.encode()).hexdigest()[:32]


def session_name(run: str) -> str:
    """The server name of a run's sessions."""
    return f"{label(run)}.{_SESSIONS}"


def session_label(name: str) -> str | None:
    """The label of the run whose sessions a server name asks for; None if it asks for something else."""
    found = re.fullmatch(rf"([0-9a-f]{{32}})\.{re.escape(_SESSIONS)}", name)
    return found[1] if found else None
