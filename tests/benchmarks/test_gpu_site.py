"""The benchmark of GPUs runs where there are none: it says so, and its dry run goes all its way."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu_site.py"


def said(*arguments: str) -> list[str]:
    """The lines of a run that sees no GPU."""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.splitlines()


def test_without_cuda_nothing_is_measured() -> None:
    assert said() == ["no CUDA device here: nothing measured"]


@pytest.mark.long
def test_the_dry_run_says_what_it_is_and_ends_in_a_result() -> None:
    *_, last = said("--device", "cpu", "--steps", "3", "--rounds", "1")
    found = json.loads(last.removeprefix("RESULT "))
    assert found["device"].startswith("CPU, a dry run")
    assert found["world"] == 2
    for way in ("ddp", "fsdp2"):
        assert found[way]["mfu"] == "unknown"
        assert found[way]["parameters"] == 132_352
        assert found[way]["tokens_s"] > 0
