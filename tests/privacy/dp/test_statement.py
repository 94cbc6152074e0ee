"""What a report says of privacy."""

import json
import math

import pytest

from privacy.dp.cost import Cost
from privacy.dp.mechanism import DpSgd, Event, Unit
from privacy.dp.statement import ACCOUNTANTS, Statement

COST = Cost(1.23401, 1e-5, "PLD")
EVENT = Event(2.0, 0.25, 60)


def statement(unit: Unit, column: str | None = None, cost: Cost = COST, drawn: bool = False) -> Statement:
    return Statement(unit, cost, (EVENT,), column, drawn=drawn)


def test_a_statement_for_rows() -> None:
    mechanism = DpSgd("record", 200, 0.25, 2.0, 1.5, 3)
    lines = Statement("record", COST, (EVENT,), mechanism=mechanism, repeats=True).lines
    assert lines[:6] == [
        "protected: one training row of a site (unit: record)",
        "epsilon = 1.235, delta = 1e-05",
        "relation: with the row, or without it",
        f"accountant: {ACCOUNTANTS['PLD']}",
        "accounted: 60 sums over a draw of 0.25 of the units, noise multiplier 2",
        "clip: L2 norm 1.5 of each unit's gradient",
    ]
    assert lines[6].startswith("sampling: a secret coin of the site draws each unit for each step (Poisson sampling)")
    assert any("how many records a site trains on" in line for line in lines)
    assert any("acknowledge_repeats" in line for line in lines)


def test_a_statement_for_groups_names_the_column() -> None:
    lines = statement("group", "patient_id").lines
    assert lines[0] == "protected: all training rows of a site that share one patient_id (unit: group)"
    assert not any("acknowledge_repeats" in line for line in lines)


def test_sites_that_the_server_draws_earn_no_amplification() -> None:
    all_asked, some_asked = statement("site").sampling, statement("site", drawn=True).sampling
    assert all_asked == "none: every site counts as asked in every round"
    assert some_asked == f"{all_asked}, since the server draws who is asked, and knows it"


def test_it_says_what_the_accountant_remarked() -> None:
    cost = Cost(9.0, 1e-12, "RDP", "delta is below 1e-10, where PLD's arithmetic ends: RDP's bound")
    assert f"accountant: Renyi divergences (RDP); {cost.remark}" in statement("record", cost=cost).lines


def test_without_noise_it_says_that_nobody_is_protected() -> None:
    bare = statement("record", cost=Cost(math.inf, 1e-5, "PLD"))
    assert "no noise: nobody is protected, delta = 1e-05" in bare.lines
    assert json.loads(json.dumps(bare.to_dict(), allow_nan=False))["epsilon"] is None


@pytest.mark.parametrize("unit", ["record", "group", "site"])
def test_the_same_stands_in_json(unit: Unit) -> None:
    one = statement(unit, "patient_id" if unit == "group" else None)
    said = json.loads(json.dumps(one.to_dict(), allow_nan=False))
    assert said["unit"] == unit
    assert (said["epsilon"], said["delta"], said["accountant"]) == (1.23401, 1e-5, "PLD")
    assert said["events"] == [{"noise_multiplier": 2.0, "sample_rate": 0.25, "count": 60}]
    assert [f"not covered: {line}" for line in said["not_covered"]] == [
        line for line in one.lines if line.startswith("not covered")
    ]
