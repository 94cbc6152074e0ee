"""Which certificates were followed by another one: a site that has not fetched its new one yet comes in by the old one.

{"former": {"sha256:...": "boston", ...}}    former.json in the server's folder; each counts until its own end
"""

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from hansa.errors import UserError
from hansa.files import write_atomically
from hansa.fresh import Fresh
from hansa.roster import Fingerprint
from hansa.tables import Name, Table

FILE = "former.json"


class _Sites(Table):
    former: Mapping[Fingerprint, Name]


class Former:
    """The former certificates of a server folder's sites, read anew when they change."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._fresh = Fresh([self._path], self._read)

    def sites(self) -> Mapping[str, str]:
        """The site of each fingerprint.

        Raises:
            UserError: the file cannot be read.
        """
        return self._fresh.get()

    def put(self, sites: Mapping[str, str]) -> None:
        """Replaces the list."""
        if sites != self.sites():
            write_atomically(self._path, _Sites(former=dict(sites)).model_dump_json(indent=1).encode())

    def _read(self) -> Mapping[str, str]:
        try:
            return _Sites.model_validate_json(self._path.read_bytes()).former
        except FileNotFoundError:
            return {}
        except (OSError, ValidationError) as error:
            raise UserError(
                f"{self._path}: not a list of former certificates; remove it: then each site needs its newest one"
            ) from error
