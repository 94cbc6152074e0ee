"""Flower's programs as either end runs them: where they are, their environment, which of their lines tell something."""

import os
import re
import socket
import sys
from collections.abc import Iterable
from pathlib import Path

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CHATTER = re.compile(r"(\S+Z )?(INFO|DEBUG)\b")  # its own, and that of its HTTP server: every request
# What it warns of and we know: the supervisor tells it in its own words, or it is as it should be.
_KNOWN = (
    "EXPERIMENTAL",
    "Connection attempt failed",
    "Connection successful after",
    "Successfully installed",  # the app, as delivered
    "[ApiError:1008]",  # a process of a run that was stopped
    "[ApiError:18]",  # a run that is over was to be stopped
    "[ApiError:2007]",  # a site's answer to such a run
    "[ApiError:2004]",  # a node whose old connection still stands
    "Exit Code: 305",  # the same at the node
)


def program(name: str) -> str:
    """The path of one of Flower's programs: beside the Python that runs this."""
    return str(Path(sys.executable).with_name(name))


def environment(home: Path, telemetry: bool) -> dict[str, str]:
    """What its processes, and those that they start, find in their environment.

    Args:
        home: a folder for what Flower keeps.
        telemetry: whether Flower may report its use to its makers.
    """
    direct = ",".join(
        filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "127.0.0.1,localhost,::1"])
    )
    bin_folder = str(Path(sys.executable).parent)  # where they look for each other
    return {
        **os.environ,
        "PATH": os.pathsep.join([bin_folder, os.environ.get("PATH", os.defpath)]),
        "no_proxy": direct,  # HTTPS_PROXY and the like are not meant for what these processes say to each other
        "NO_PROXY": direct,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "1" if telemetry else "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "PYTHONUNBUFFERED": "1",
    }


def free_port(host: str = "127.0.0.1", port: int = 0) -> int:
    """One that is free just now, or the one given if it is: Flower refuses port 0.

    Raises:
        OSError: it is taken, or the host is none of this machine's.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        return int(probe.getsockname()[1])


def port_taken(last_words: Iterable[str]) -> bool:
    """Whether a program ended because another one has its port."""
    return any("address already in use" in line.lower() for line in last_words)


def colourless(text: str) -> str:
    """A text without what colours a terminal."""
    return _COLOUR.sub("", text)


def shown(line: str) -> str | None:
    """A line of a log as a terminal shows it; None where it tells nothing."""
    text = colourless(line).rstrip()
    if not text or _CHATTER.match(text) or any(known in text for known in _KNOWN):
        return None
    return text
