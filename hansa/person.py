"""The folder with which somebody of the consortium asks the server from elsewhere: person.toml, and a certificate."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field

from hansa.address import Dialled
from hansa.config import checked
from hansa.controlclient import ControlClient, in_folder
from hansa.dial import way
from hansa.document import Document
from hansa.errors import UserError
from hansa.identity import uris
from hansa.proxy import ProxyUrl
from hansa.roles import PEOPLE, Role, uri
from hansa.startup import TLS_CERTIFICATE, read_tls
from hansa.tables import A_NAME, Name, Table

PERSON_FILE = "person.toml"

PERSON_TOML = """\
# Who you are to the consortium, and where its server is: hansa status --server FOLDER, FOLDER being this one, and
# so with hansa run, stop, logs, fetch and audit, as far as your role goes. Keep tls.key to yourself.

[person]
name = "%(name)s"
role = "%(role)s"
server = "%(server)s"

# A "#" without a space before a key: it is not in force.
[network]
#proxy = "http://user:password@proxy:3128"    # on the way to the server; or by the variable HANSA_PROXY
"""


class PersonTable(Table):
    """[person]: who this is, and where the server is."""

    name: Annotated[Name, Field(description=A_NAME)]
    role: Annotated[Role, Field(description=", ".join(f'"{role}"' for role in PEOPLE))]
    server: Dialled = Field(description="host:port of the server's public port, e.g. fl.example.org:9443")


class NetworkTable(Table):
    """[network]: the way to the server."""

    proxy: ProxyUrl | None = None  # None: as HANSA_PROXY says, or none


@dataclass(frozen=True)
class Person:
    """Somebody who may ask the server."""

    name: str
    role: Role
    control: ControlClient


def person_toml(role: Role, name: str, server: str) -> bytes:
    """A new person.toml."""
    return (PERSON_TOML % {"name": name, "role": role, "server": server}).encode()


def open_person(folder: Path, now: datetime) -> Person:
    """Reads and checks a person's folder.

    Raises:
        UserError: person.toml is wrong, a line a problem; or the certificate is missing, was changed, is out of date or
            another one's.
    """
    tables = checked(
        Document(folder / PERSON_FILE), {"person": PersonTable, "network": NetworkTable}, needed={"person"}
    )
    person = tables["person"]
    if uri(person.role, person.name) not in uris(read_tls(folder, now).certificate):
        wrong = f"is not that of {person.role} {person.name}; copy the folder anew from what hansa provision made"
        raise UserError(f"{folder / TLS_CERTIFICATE}: the certificate {wrong}")
    return Person(person.name, person.role, in_folder(way(person.server, tables["network"].proxy), folder))
