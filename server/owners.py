"""Whose run it is: owner.json in its folder, written before it begins. One started on the server's machine has none.

{"researcher": "ann"}
"""

import json
from pathlib import Path

from pydantic import ValidationError

from hansa.errors import UserError
from hansa.files import write_atomically
from hansa.tables import Name, Table

FILE = "owner.json"


class _Owner(Table):
    researcher: Name


def write_owner(run: Path, researcher: str) -> None:
    """Notes whose run it is, in the run's folder."""
    write_atomically(run / FILE, json.dumps({"researcher": researcher}).encode())


def owner(run: Path) -> str | None:
    """The researcher whose run it is; None: nobody's.

    Raises:
        UserError: the file that says it is damaged.
    """
    try:
        return _Owner.model_validate_json((run / FILE).read_bytes()).researcher
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        raise UserError(f"run {run.name}: owner unknown: its {FILE} is damaged; put it back from a copy") from None
