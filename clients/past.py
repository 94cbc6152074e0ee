"""What a site remembers of its runs under secure aggregation, on disk before a word of it leaves."""

import json
from dataclasses import asdict
from pathlib import Path

from hansa.errors import UserError
from hansa.files import write_atomically
from privacy.secagg.agreement import Past


class Remembered:
    """A run's pasts, by purpose, in a file.

    Args:
        folder: of all runs' files; made with the first.
        run: the run's id.

    Raises:
        UserError: the file cannot be read. Without it nobody knows what this site has helped to open.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self.path, self.run = folder / f"{run}.json", run
        try:
            said = json.loads(self.path.read_bytes()) if self.path.exists() else {}
            self._pasts = {purpose: _past(run, purpose, **one) for purpose, one in said.items()}
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{self.path}: not what this site had noted of the run; it sits the run out") from error

    def of(self, purpose: str) -> Past:
        """The past of a purpose."""
        return self._pasts.get(purpose) or Past(self.run, purpose)

    def put(self, past: Past) -> None:
        """Replaces the past of its purpose, on disk too."""
        self._pasts[past.purpose] = past
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        kept = {purpose: asdict(one) for purpose, one in self._pasts.items()}
        said = {purpose: {k: v for k, v in one.items() if k not in ("run", "purpose")} for purpose, one in kept.items()}
        write_atomically(self.path, json.dumps(said).encode())


def _past(run: str, purpose: str, opened: list[int], asked: list[str], threshold: int, answered: int) -> Past:
    epoch, round, attempt = opened
    return Past(run, purpose, (epoch, round, attempt), tuple(asked), threshold, answered)
