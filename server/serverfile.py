"""server.toml: where the server listens, and how long it waits."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from hansa.address import Dialled, Host, Listens, as_ip, is_loopback, join, split
from hansa.config import checked
from hansa.document import Document
from hansa.endfile import Digest, FlowerTable
from hansa.tables import Table
from hansa.wire.rules import HEARTBEAT, MISSED, ORPHAN_AFTER


class ServerTable(Table):
    """[server]: its addresses; with port 0 the operating system chooses one."""

    public: Listens | None = None  # the one port by which the sites come in; None: by flower and session
    name: Host | None = None  # the host of public as sites reach it; None: the same
    flower: Listens = "127.0.0.1:9092"  # where the sites' Flower nodes come in
    session: Listens = "127.0.0.1:9093"  # where the sites' sessions come in, which carry the updates
    announce: Dialled | None = None  # the session's address as sites reach it; None: the same

    @property
    def sessions(self) -> str:
        """Where a run listens for sessions: with a public port each run has its own, which only the gate reaches."""
        return "127.0.0.1:0" if self.public else self.session

    @property
    def reached(self) -> str | None:
        """The public port as sites reach it; None if there is none."""
        return join(self.name or split(self.public)[0], split(self.public)[1]) if self.public else None

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        if self.public is None:
            self._check_session()
        elif given := [key for key in ("session", "announce") if key in self.model_fields_set]:
            raise ValueError(f"with public, the sessions come in there too; leave {' and '.join(given)} out")
        elif not is_loopback(split(self.flower)[0]):
            raise ValueError('with public, nobody else may reach flower; set flower = "127.0.0.1:9092"')
        elif self.name is None and _everywhere(self.public):
            raise ValueError(f'public listens on {split(self.public)[0]}, which no site can dial; set name = "NAME"')
        if self.name is not None and self.public is None:
            raise ValueError("name is the host of public; set public, or leave name out")
        return self

    def _check_session(self) -> None:
        host, port = split(self.session)
        if port != 0 and self.session == self.flower:
            raise ValueError(f"flower and session are both {self.session}; give one of them another port")
        if self.announce is None and _everywhere(self.session):
            raise ValueError(f'session listens on {host}, which no site can dial; set announce = "NAME:PORT"')
        if self.announce is not None and port == 0:
            raise ValueError("announce names a port, but that of session is chosen at each start; give session a port")


def _everywhere(address: str) -> bool:
    """Whether it is each of the machine's addresses, and so none that can be dialled."""
    ip = as_ip(split(address)[0])
    return ip is not None and ip.is_unspecified


class RunsTable(Table):
    """[runs]: how long the ends of a run wait for each other, in seconds, and what then happens."""

    heartbeat: Annotated[float, Field(gt=0)] = HEARTBEAT  # between two signs of life
    orphan_after: Annotated[float, Field(gt=0)] = ORPHAN_AFTER  # that a site waits for a server that is gone
    max_duration: Annotated[float, Field(gt=0)] = 7 * 86_400.0  # of one start of a run, after which it fails
    machines: Annotated[float, Field(ge=0)] = 86_400.0  # that a run waits for a site whose machines are not there yet
    auto_resume: bool = True  # whether a run whose process died goes on by itself

    @model_validator(mode="after")
    def _patient(self) -> Self:
        if self.orphan_after < MISSED * self.heartbeat:
            raise ValueError(f"orphan_after must be at least {MISSED} times heartbeat; got {self.orphan_after:g}")
        return self


class AppsTable(Table):
    """[apps]: whose code may run at the server when it is sent from elsewhere."""

    allowed: tuple[Digest, ...] | None = None  # None: that of any researcher


@dataclass(frozen=True)
class ServerFile:
    """The checked tables of a server.toml."""

    folder: Path  # what it stands in
    server: ServerTable
    runs: RunsTable
    apps: AppsTable
    flower: FlowerTable


def load_server_file(path: Path) -> ServerFile:
    """Reads and checks a server.toml.

    Raises:
        UserError: a line a problem, in the order of the file.
    """
    owners = {"server": ServerTable, "runs": RunsTable, "apps": AppsTable, "flower": FlowerTable}
    return ServerFile(folder=path.parent, **checked(Document(path), owners))
