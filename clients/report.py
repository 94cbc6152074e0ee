"""A site's own report of a run: its metrics round by round, which only its policy may release."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hansa.metrics import values
from hansa.records import Plan, Reply

FILE = "metrics.jsonl"


class SiteReport:
    """One run's report, a line of JSON a plan, in the site's folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def add(self, plan: Plan, reply: Reply) -> None:
        """Enters what the site measured under a plan."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = {"round": plan.round, "kind": plan.kind, "split": plan.split, "values": values(reply.sums)}
        sums = {name: one.tolist() for name, one in reply.sums.items() if plan.split == "test"}
        with self.path.open("a") as file:
            file.write(json.dumps({**line, "examples": reply.examples, "sums": sums}) + "\n")

    def lines(self) -> Iterator[dict[str, Any]]:
        """What was entered; the last line of a killed process may be cut off and is left out."""
        if self.path.is_file():
            for line in self.path.read_text().splitlines(keepends=True):
                if line.endswith("\n"):
                    yield json.loads(line)
