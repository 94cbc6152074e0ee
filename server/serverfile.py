"""server.toml: where the server listens, and how long it waits."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from hansa.address import Dialled, Listens, as_ip, split
from hansa.config import checked
from hansa.document import Document
from hansa.endfile import FlowerTable
from hansa.tables import Table
from hansa.wire.rules import HEARTBEAT, MISSED, ORPHAN_AFTER


class ServerTable(Table):
    """[server]: its addresses; with port 0 the operating system chooses one."""

    flower: Listens = "127.0.0.1:9092"  # where the sites' Flower nodes come in
    session: Listens = "127.0.0.1:9093"  # where the sites' sessions come in, which carry the updates
    announce: Dialled | None = None  # the session's address as sites reach it; None: the same

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        (host, port), ip = split(self.session), as_ip(split(self.session)[0])
        if port != 0 and self.session == self.flower:
            raise ValueError(f"flower and session are both {self.session}; give one of them another port")
        if self.announce is None and ip is not None and ip.is_unspecified:
            raise ValueError(f'session listens on {host}, which no site can dial; set announce = "NAME:PORT"')
        if self.announce is not None and port == 0:
            raise ValueError("announce names a port, but that of session is chosen at each start; give session a port")
        return self


class RunsTable(Table):
    """[runs]: how long the ends of a run wait for each other, in seconds, and what then happens."""

    heartbeat: Annotated[float, Field(gt=0)] = HEARTBEAT  # between two signs of life
    orphan_after: Annotated[float, Field(gt=0)] = ORPHAN_AFTER  # that a site waits for a server that is gone
    max_duration: Annotated[float, Field(gt=0)] = 7 * 86_400.0  # of a run, after which it fails
    auto_resume: bool = True  # whether a run whose process died goes on by itself

    @model_validator(mode="after")
    def _patient(self) -> Self:
        if self.orphan_after < MISSED * self.heartbeat:
            raise ValueError(f"orphan_after must be at least {MISSED} times heartbeat; got {self.orphan_after:g}")
        return self


@dataclass(frozen=True)
class ServerFile:
    """The checked tables of a server.toml."""

    folder: Path  # what it stands in
    server: ServerTable
    runs: RunsTable
    flower: FlowerTable


def load_server_file(path: Path) -> ServerFile:
    """Reads and checks a server.toml.

    Raises:
        UserError: a line a problem, in the order of the file.
    """
    owners = {"server": ServerTable, "runs": RunsTable, "flower": FlowerTable}
    return ServerFile(folder=path.parent, **checked(Document(path), owners))
