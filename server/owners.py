"""Whose run it is: owner.json in its folder, written before it begins. One started on the server's machine has none.

{"researcher": "ann"}
"""

import json
from pathlib import Path

from hansa.files import write_atomically

FILE = "owner.json"


def write_owner(run: Path, researcher: str) -> None:
    """Notes whose run it is, in the run's folder."""
    write_atomically(run / FILE, json.dumps({"researcher": researcher}).encode())


def owner(run: Path) -> str | None:
    """The researcher whose run it is; None: nobody's."""
    try:
        found = json.loads((run / FILE).read_text())
    except FileNotFoundError:
        return None
    return str(found["researcher"])
