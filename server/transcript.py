"""What a run's server has asked sites to open, on disk before they are asked: no round is opened twice."""

import base64
import json
from datetime import UTC, datetime
from pathlib import Path

from hansa.files import append_line
from server.secureround import Attempt

FOLDER, FILE = "secure", "transcript.jsonl"


class Transcript:
    """A run's, a line a sum: the terms, the keys, who is in the sum, and the sites' signatures over that.

    Args:
        run: the run's folder.
    """

    def __init__(self, run: Path) -> None:
        self.path = run / FOLDER / FILE
        self._opened: dict[str, int] = {}  # purpose -> newest round
        for line in self.path.read_bytes().splitlines() if self.path.exists() else []:
            try:
                said = json.loads(line)
            except ValueError:
                continue  # the machine died before the line was whole, and so before anybody was asked
            self._opened[said["purpose"]] = max(said["round"], self.opened(said["purpose"]))

    def opened(self, purpose: str) -> int:
        """The newest round of a purpose of which sites were asked to open the sum; 0: none."""
        return self._opened.get(purpose, 0)

    def note(self, attempt: Attempt) -> None:
        """Adds an attempt of which the sum is about to be opened."""
        terms = attempt.terms
        said = {
            "time": datetime.now(UTC).isoformat(),
            "purpose": terms.purpose,
            "round": terms.round,
            "attempt": attempt.name,
            "shared": attempt.spoke["share"],
            "summed": attempt.spoke["mask"],
            "terms": _text(terms.to_bytes()),
            "adverts": [_text(one) for one in attempt.public["share"]],
            "consents": [_text(one) for one in attempt.public["unmask"]],
        }
        self.path.parent.mkdir(exist_ok=True)
        append_line(self.path, json.dumps(said, separators=(",", ":")).encode())
        self._opened[terms.purpose] = terms.round


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
