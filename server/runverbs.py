"""What people ask of runs, by verb: what `server.command` does on the server's machine, its lines sent to them."""

import io
from collections.abc import Mapping
from typing import Any

from rich.console import Console

from server import command
from server.asking import Ask, Handler


class Lines(io.TextIOBase):
    """A console's file whose whole lines are sent to a caller."""

    def __init__(self, ask: Ask) -> None:
        self._ask, self._part = ask, ""

    def write(self, text: str) -> int:
        """Sends what has become whole."""
        *lines, self._part = (self._part + text).split("\n")
        for line in lines:
            self._ask.say(line)
        return len(text)


def console(ask: Ask) -> Console:
    """What a command prints on, for a caller."""
    return Console(file=Lines(ask), color_system=None, width=200)  # type: ignore[arg-type]


def status(ask: Ask) -> Mapping[str, Any]:
    """The server, its sites and its runs."""
    ask.permit()
    command.status(ask.folder, console(ask))
    return {}


VERBS: Mapping[str, Handler] = {"status": status}
