"""The quickstart is true: its commands run as they stand, one after the other, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "quickstart.md"
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.long
def test_every_command_runs_in_order(tmp_path: Path) -> None:
    assert len(BLOCKS) == 6
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    script = "\n".join(f"echo 'block {number}'\n{block}" for number, block in enumerate(BLOCKS, 1))
    done = subprocess.run(
        ["bash", "-eu", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.split("block ")
    assert "own.csv: 569 rows\ntarget: target, 2 classes (as you say)\nfeatures: 30 numbers" in said[2]
    assert "ok: 20 rounds, 4 sites" in said[3]
    assert [part.count("test auc") for part in said[3:5]] == [1, 2]
    assert re.search(r"^sha256:[0-9a-f]{64}$", said[6], re.MULTILINE)
    assert "in a ring of 32 bits" in said[5]
    assert len(list((tmp_path / "tumours" / "runs").glob("*/model.safetensors"))) == 3
