"""The examples run, and what the pages on tasks and strategies show runs too."""

import math
import re
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import pytest
import torch

import hansa
from hansa.config import load
from hansa.metrics import total, value
from hansa.taskfile import load_class
from simulations.baselines import majority
from simulations.configured import federation_of
from strategies.fedprox import FedProx

ROOT = Path(__file__).parents[2]
HEART = ROOT / "examples" / "heart_disease" / "federation.toml"


def test_the_heart_federation_is_right() -> None:
    config = load(HEART)
    assert config["strategy"] == FedProx(mu=0.01)
    task = load_class(config["federation"].task, HEART.parent, hansa.Task, "task")()
    assert task.metrics(task.model()(torch.zeros(2, 13)), torch.tensor([0, 1])).keys() == {"accuracy", "auc"}


@pytest.mark.data
def test_the_heart_model_beats_the_majority_class(tmp_path: Path) -> None:
    """By three standard errors of a share of the 254 test rows."""
    federation = federation_of(load(HEART))
    scores = (federation.run(tmp_path, "heart").test, majority(federation))
    model, guess = (value(total(one.values())["accuracy"]) for one in scores)
    assert model is not None
    assert guess is not None
    assert model > guess + 3 * math.sqrt(guess * (1 - guess) / 254)


def test_the_notebook_runs_from_top_to_bottom() -> None:
    read: Any = nbformat.reads  # untyped
    notebook = read((ROOT / "examples" / "notebook.ipynb").read_text(), as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "the notebook is committed without outputs"
    done = nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    kinds = {kind for cell in done.cells for output in cell.get("outputs", []) for kind in output.get("data", {})}
    assert {"text/html", "image/png"} <= kinds  # a table and a plot


@pytest.mark.parametrize("page", ["tasks", "strategies"])
def test_what_a_page_shows_runs(page: str) -> None:
    """Its Python blocks in their order, in one namespace."""
    text = (ROOT / "docs" / f"{page}.md").read_text()
    namespace: dict[str, Any] = {"__name__": f"docs_{page}"}
    for block in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], f"{page}.md", "exec"), namespace)
    assert "history" in namespace
