"""[base]: the weights that a federation's adapters stand on. They are a file at each site, and never travel."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator

from hansa.errors import UserError
from hansa.tables import Table
from hansa.words import shown

SUFFIX = ".safetensors"
MEND = "put the file there that federation.toml [base] sha256 is of"


def _file(value: str) -> str:
    if not value.endswith(SUFFIX) or value == SUFFIX:
        raise ValueError(f"must name a {SUFFIX} file, the only kind that holds no code; got {shown(value)}")
    return value


def _sha256(value: str) -> str:
    if not re.fullmatch("[0-9a-f]{64}", value):
        raise ValueError(f"must be 64 hexadecimal digits, as `sha256sum FILE` prints them; got {shown(value)}")
    return value


class BaseTable(Table):
    """[base] of federation.toml: which weights the tensors that are not trained have."""

    file: Annotated[str, AfterValidator(_file)]  # relative to federation.toml; a site looks for its name only
    sha256: Annotated[str, AfterValidator(_sha256)]

    def beside(self, folder: Path) -> "Base":
        """The file as a simulation has it, its path relative to a folder."""
        return Base(folder / self.file, self.sha256)

    def within(self, folder: Path) -> "Base":
        """The file as a site has it, under its own name in a folder of the site's choice."""
        return Base(folder / Path(self.file).name, self.sha256)


@dataclass(frozen=True)
class Base:
    """A file of weights.

    Args:
        path: of the file.
        sha256: that it must have.
    """

    path: Path
    sha256: str

    def check(self) -> None:
        """Reads the file once, in pieces.

        Raises:
            UserError: it is not there, or another.
        """
        try:
            with open(self.path, "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UserError(f"[base]: {self.path}: {error.strerror}; {MEND}") from error
        if found != self.sha256:
            raise UserError(f"[base]: {self.path} has sha256 {found}, not {self.sha256}; {MEND}")
