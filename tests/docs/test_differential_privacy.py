"""The page on differential privacy is true: its table loads, its commands run, and print what it says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clients.sitefile import BudgetTable, load_site_file
from clients.spending import LEDGERS
from hansa.config import load
from privacy.dp.ledger import Ledger, Limit, OverBudget, Subject
from privacy.dp.mechanism import Event

PAGE = (Path(__file__).parents[2] / "docs" / "differential-privacy.md").read_text()


def run(folder: Path, script: str) -> str:
    """What a block of commands prints."""
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-eu", "-c", script], cwd=folder, env={**os.environ, "PATH": paths}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def unwrapped(text: str) -> str:
    return " ".join(text.split())


def test_the_tables_load(tmp_path: Path) -> None:
    table, budget = re.findall(r"^```toml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    path = tmp_path / "federation.toml"
    path.write_text(f'[federation]\nname = "f"\ntask = "task.py:T"\n{table}')
    assert load(path, without={"simulation"})["dp"].unit == "record"
    (site := tmp_path / "site.toml").write_text(f'[site]\nname = "bern"\nserver = "fl:9092"\n{budget}')
    assert load_site_file(site).budget == BudgetTable(unit="group", epsilon=8.0, delta=1e-5, dataset="heart")


def test_the_commands_print_what_the_page_says(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "bern" / LEDGERS, Subject("heart", "group", "patient_id"), Limit(3.0, 1e-5))
    event = Event(2.0, 0.2, 30)
    ledger.reserve("a", 1, "1", event)
    with pytest.raises(OverBudget) as refused:
        ledger.reserve("a", 2, "1", event)
    assert unwrapped(str(refused.value)) in unwrapped(PAGE)
    plan, ledgers = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    said = run(tmp_path, plan)
    assert "".join(f"    {line}\n" for line in said.splitlines()) in PAGE
    shown = run(tmp_path, ledgers)
    assert "epsilon 2.7 spent of 3, 0.3 left, at delta = 1e-05" in shown
    assert ": whole; newest entry 2: " in shown
