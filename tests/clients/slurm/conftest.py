"""Stand-ins for Slurm's commands: they give recorded answers and note how they were called. No cluster is here."""

import json
import os
import stat
import sys
from pathlib import Path

import pytest

PROGRAM = """#!{python} -IS
import json, os, pathlib, sys
here, name = pathlib.Path(__file__).parent, pathlib.Path(__file__).name
text = sys.stdin.read() if name == "sbatch" else ""
with (here / "calls").open("a") as file:
    file.write(json.dumps([name, sys.argv[1:], text]) + "\\n")
answers = json.loads((here / (name + ".json")).read_text())
code, out, err = answers[0]
if len(answers) > 1:
    (here / (name + ".json")).write_text(json.dumps(answers[1:]))
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(code)
"""


class Cluster:
    """A folder on the PATH with sbatch, squeue, sacct and scancel."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("sbatch", "squeue", "sacct", "scancel"):
            (path := folder / name).write_text(PROGRAM.format(python=sys.executable))
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
            self.answers(name, "")

    def answers(self, name: str, *outputs: str) -> None:
        """What a command prints from now on, one a call; the last one for good."""
        self._set(name, [(0, out, "") for out in outputs])

    def fails(self, name: str, error: str, code: int = 1) -> None:
        """What a command says on its standard error from now on."""
        self._set(name, [(code, "", error)])

    def _set(self, name: str, answers: list[tuple[int, str, str]]) -> None:
        (self.folder / f"{name}.json").write_text(json.dumps(answers))

    def calls(self, name: str) -> list[tuple[list[str], str]]:
        """How a command was called so far: arguments, and what it was given to read."""
        if not (log := self.folder / "calls").exists():
            return []
        found = [json.loads(line) for line in log.read_text().splitlines()]
        return [(arguments, text) for one, arguments, text in found if one == name]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = Cluster(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{found.folder}{os.pathsep}{os.environ['PATH']}")
    return found
