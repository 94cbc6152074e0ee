"""The example of adapters, run as its README says, in a copy of its folder."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

import hansa
from hansa.layout import Layout
from hansa.taskfile import load_class

EXAMPLE = Path(__file__).parents[2] / "examples" / "lora_text"


def run(*command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, check=False)


def test_the_adapters_are_under_a_hundredth_of_the_model() -> None:
    """LoRA of rank 2 on two 96 x 96 layers of 4 blocks: 4 * 2 * 2 * (96 + 96) numbers."""
    task = load_class("task.py:Notes", EXAMPLE, hansa.Task, "task")()
    model = task.model()
    assert Layout.of(model, trainable=True).size == 3072
    assert 0.01 * (Layout.of(model).size - 3072) >= 3072


@pytest.mark.long
def test_under_a_hundredth_goes_up_and_the_base_stays(tmp_path: Path) -> None:
    """As the README says, with a base that is trained for a moment and one round."""
    for name in ("task.py", "model.py", "text.py", "make_base.py", "traffic.py", "federation.toml"):
        shutil.copy(EXAMPLE / name, tmp_path)
    simulate = (str(Path(sys.executable).with_name("hansa")), "simulate", "federation.toml", "--set", "rounds.rounds=1")
    early = run(*simulate, folder=tmp_path)
    assert early.returncode == 2
    assert "base.safetensors: No such file or directory; put the file there" in early.stderr
    made = run("make_base.py", "--steps", "5", folder=tmp_path)
    assert made.returncode == 0, made.stderr
    base = (tmp_path / "base.safetensors").read_bytes()
    assert hashlib.sha256(base).hexdigest() in (tmp_path / "federation.toml").read_text()
    done = run(*simulate, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (saved,) = (tmp_path / "runs").glob("*/model.safetensors")
    assert sum(tensor.numel() for tensor in load_file(saved).values()) == 3072
    text = (tmp_path / "federation.toml").read_text()
    (tmp_path / "federation.toml").write_text(text.replace("rounds = 8", "rounds = 1"))
    counted = run("traffic.py", folder=tmp_path)
    assert counted.returncode == 0, counted.stderr
    found = json.loads(counted.stdout.splitlines()[-1].removeprefix("RESULT "))
    assert found["up"] == 4 * 3072
    assert found["whole"] == sum(4 * tensor.numel() for tensor in load_file(tmp_path / "base.safetensors").values())
    assert found["up"] <= 0.01 * found["whole"]
    assert (tmp_path / "base.safetensors").read_bytes() == base
