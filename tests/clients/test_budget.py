"""`hansa budget`: what a site's ledgers say, and what a plan would cost."""

from pathlib import Path

import pytest

from clients.budget import NONE_YET, show, verify
from clients.budgetplan import Wish, plan
from clients.spending import LEDGERS, UNLIMITED
from hansa.errors import UserError
from privacy.dp.ledger import Ledger, Limit, Subject
from privacy.dp.mechanism import Event

QUICK = 1e-11  # a delta at which RDP alone answers
ONE = Event(4.0, 0.1, 10)
APP = """[federation]
name = "f"
task = "task.py:T"
[training]
batch_size = 20
epochs = 1
[rounds]
rounds = 5
"""


def said(folder: Path) -> list[str]:
    lines: list[str] = []
    show(folder, lines.append)
    return lines


@pytest.fixture
def site(tmp_path: Path) -> Path:
    ledger = Ledger(tmp_path / LEDGERS, Subject("heart", "record"), Limit(9.0, QUICK))
    for round in (1, 2):
        ledger.settle(ledger.reserve("first", round, "1", ONE), ONE)
    ledger.settle(ledger.reserve("second", 1, "1", ONE), None)
    ledger.reserve("second", 1, "2", ONE)
    return tmp_path


def test_show_says_what_is_spent_and_left_by_run(site: Path) -> None:
    lines = said(site)
    assert lines[0] == "heart, record"
    assert lines[1].startswith("  epsilon ")
    assert lines[1].endswith(" left, at delta = 1e-11")
    assert "  by RDP: delta is below 1e-10, where PLD's arithmetic ends: RDP's bound" in lines
    table = [line.split() for line in lines[-3:]]
    assert [row[:3] for row in table] == [["run", "releases", "open"], ["first", "2", "0"], ["second", "1", "1"]]
    spent, second = float(lines[1].split()[1]), float(table[2][3])
    assert 0 < second < float(table[1][3]) < spent


def test_where_nothing_is_limited_show_says_so(tmp_path: Path) -> None:
    Ledger(tmp_path / LEDGERS, Subject("heart", "record"), Limit(UNLIMITED, QUICK)).reserve("a", 1, "1", ONE)
    assert said(tmp_path)[1].endswith(" spent, without a limit, at delta = 1e-11")


def test_show_changes_nothing(site: Path) -> None:
    before = [path.read_bytes() for path in sorted((site / LEDGERS).iterdir())]
    said(site)
    assert [path.read_bytes() for path in sorted((site / LEDGERS).iterdir())] == before


def test_verify_names_file_and_line(site: Path) -> None:
    lines: list[str] = []
    assert verify(site, lines.append)
    (path,) = (site / LEDGERS).glob("*.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"round":2', b'"round":3'))
    assert not verify(site, lines.append)
    assert lines[0].startswith(f"{path}: whole; newest entry 8: ")
    assert lines[1].startswith(f"{path}, line 4: its hash is not that of what stands there; nothing more is released")
    with pytest.raises(UserError, match="line 4"):
        said(site)


def test_a_ledger_of_which_only_the_head_is_left_is_damaged(site: Path) -> None:
    (path,) = (site / LEDGERS).glob("*.jsonl")
    path.unlink()
    assert not verify(site, lambda line: None)


def test_a_site_without_ledgers_has_released_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no site's folder"):
        said(tmp_path)
    (tmp_path / "site.toml").write_text("")
    assert said(tmp_path) == [NONE_YET]
    assert verify(tmp_path, lambda line: None)


def planned(wish: Wish, app: Path | None = None) -> list[str]:
    lines: list[str] = []
    plan(app, wish, lines.append)
    return lines


def test_the_noise_that_an_epsilon_needs() -> None:
    lines = planned(Wish(rows=199, epsilon=5.0, delta=1e-4, batch_size=64, epochs=1, rounds=20))
    assert lines == [
        "199 records, each drawn for a step with the chance 0.3216; 3 steps a round",
        "noise multiplier 2.169",
        "20 rounds cost epsilon = 4.998 at delta = 0.0001 by PLD",
    ]


def test_what_a_noise_costs_and_the_rounds_that_a_budget_buys() -> None:
    wish = {"rows": 200, "noise_multiplier": 2.0, "delta": 1e-4, "batch_size": 200, "steps": 1}
    (cost,) = [line for line in planned(Wish(**wish, rounds=4)) if "cost" in line]  # type: ignore[arg-type]
    assert cost.startswith("4 rounds cost epsilon = ")
    spent = float(cost.split()[5])
    bought = planned(Wish(**wish, epsilon=spent))  # type: ignore[arg-type]
    assert bought[-2:] == [f"epsilon = {spent:g} at delta = 0.0001 buys 4 rounds", cost]


def test_an_app_says_what_is_not_given(tmp_path: Path) -> None:
    table = '[dp]\nunit = "group"\ngroup_column = "id"\nnoise_multiplier = 1.0\ndelta = 1e-4\nclip = 1.0\n'
    (tmp_path / "federation.toml").write_text(APP + table)
    lines = planned(Wish(rows=100), tmp_path)
    assert lines[:2] == [
        "100 groups, each drawn for a step with the chance 0.2; 5 steps a round",
        "noise multiplier 1",
    ]
    assert lines[2].startswith("5 rounds cost epsilon = ")
    assert planned(Wish(rows=100, noise_multiplier=2.0, steps=1), tmp_path)[0].endswith("; 1 step a round")


def test_whole_sites_need_no_rows(tmp_path: Path) -> None:
    (tmp_path / "federation.toml").write_text(
        f'{APP}[dp]\nunit = "site"\nnoise_multiplier = 4.0\ndelta = 1e-5\nclip = 1.0\n'
    )
    assert planned(Wish(), tmp_path)[0] == "whole sites, a sum over all in each round"


@pytest.mark.parametrize(
    ("wish", "problem"),
    [
        (Wish(rows=9, epsilon=1.0, batch_size=1, epochs=1, rounds=1), "--delta is missing"),
        (Wish(rows=9, delta=0.01, batch_size=1, epochs=1, rounds=1), "--epsilon or --noise-multiplier is missing"),
        (Wish(rows=9, epsilon=1.0, delta=0.01, epochs=1, rounds=1), "--batch-size is missing"),
        (Wish(rows=9, epsilon=1.0, delta=0.01, batch_size=1, rounds=1), "--epochs or --steps is missing"),
        (Wish(rows=9, epsilon=1.0, delta=0.01, batch_size=1, steps=1), "--rounds is missing; give it, or both"),
        (Wish(rows=9, epsilon=1.0, delta=0.01, batch_size=1, steps=1, epochs=1, rounds=1), "give one of them"),
        (Wish(9, 1.0, 1.0, 0.01, 1, None, 1, 1), "each follows from the other two; leave one out"),
        (Wish(rows=0, epsilon=1.0, delta=0.01, batch_size=1, steps=1, rounds=1), "are above 0"),
        (Wish(rows=200, epsilon=1.0, delta=0.01, batch_size=1, steps=1, rounds=1), "not below 1 / 200"),
    ],
)
def test_what_is_missing_or_said_twice_is_told(wish: Wish, problem: str) -> None:
    with pytest.raises(UserError) as told:
        planned(wish)
    (line,) = told.value.problems
    assert problem in line
