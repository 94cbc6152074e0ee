"""What the files of the two ends, site.toml and server.toml, have in common."""

import re
from typing import Annotated

from pydantic import AfterValidator

from hansa.tables import Table
from hansa.words import shown

A_DIGEST = "the digest of an app, as `hansa digest APP` prints it"


def _digest(value: str) -> str:
    if not re.fullmatch("sha256:[0-9a-f]{64}", value):
        raise ValueError(f"must be {A_DIGEST}; got {shown(value)}")
    return value


Digest = Annotated[str, AfterValidator(_digest)]


class FlowerTable(Table):
    """[flower]: the processes that Flower runs at this end."""

    telemetry: bool = False  # let Flower report its use to its makers
