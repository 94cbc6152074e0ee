"""[privacy]: when a run goes under secure aggregation, what it needs for that, and how many dropouts a round bears."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from hansa.config import load
from hansa.errors import UserError
from hansa.layout import Layout
from hansa.records import Part
from privacy.config import PrivacyTable
from server.config import RoundsTable
from server.securerules import announced, check_privacy, secure_of
from strategies.base import Strategy
from strategies.ditto import Ditto
from strategies.fedavg import FedAvg
from strategies.fedprox import FedProx
from strategies.scaffold import Scaffold

LAYOUT = Layout.of(nn.Linear(2, 1))
TUNED: dict[str, Any] = {"clip": 0.5, "max_weight": 400}


class Each(FedAvg):
    """An algorithm that must see single updates."""

    needs = "each"


def problem(sites: int, strategy: Any = None, rounds: Mapping[str, Any] | None = None, **privacy: Any) -> str:
    with pytest.raises(UserError) as error:
        secure_of(PrivacyTable(**privacy), RoundsTable(**(rounds or {})), strategy or FedAvg(), LAYOUT, sites)
    return str(error.value)


@pytest.mark.parametrize(
    ("secure", "sites", "on"), [("auto", 2, False), ("auto", 3, True), (True, 2, True), (False, 9, False)]
)
def test_of_itself_it_is_on_from_three_sites(secure: Any, sites: int, on: bool) -> None:
    table = PrivacyTable(secure=secure, **TUNED)
    assert (secure_of(table, RoundsTable(), FedAvg(), LAYOUT, sites) is not None) == on
    assert announced(table, RoundsTable(), sites).startswith("no secure aggregation") != on


def test_what_nobody_can_guess_is_one_line_that_names_the_command() -> None:
    assert problem(3) == "[privacy] clip and max_weight are not set, and nobody can guess: run hansa tune clip APP"
    assert problem(3, Scaffold()) == "[privacy] clip is not set, and nobody can guess: run hansa tune clip APP"
    assert problem(3, clip=1.0).startswith("[privacy] max_weight is not set")
    assert "says nothing of 'control'" in problem(3, Scaffold(), clip={"delta": 1.0})
    assert "uploads no part 'c', but delta" in problem(3, clip={"delta": 1.0, "c": 1.0}, max_weight=4)


def test_weights_that_are_uniform_need_no_largest_one() -> None:
    table = PrivacyTable(clip={"delta": 1.0, "control": 0.1})
    secure = secure_of(table, RoundsTable(), Scaffold(), LAYOUT, 3)
    assert secure is not None
    assert secure.parts == {"delta": Part(3, "uniform"), "control": Part(3, "uniform")}


def test_what_cannot_be_is_refused_in_words() -> None:
    assert problem(3, Each(), **TUNED).startswith("[strategy] Each: it must see each site's update")
    assert "the sum over one site is that site's update" in problem(1, secure=True, **TUNED)
    assert "2 of 9; a sum over fewer than 3" in problem(9, rounds={"sites_per_round": 2}, **TUNED)
    assert "threshold = 2: a sum needs" in problem(4, threshold=2, **TUNED)
    assert problem(4, threshold=5, **TUNED).endswith("4 sites asked; give 3 to 4")
    assert "ring_bits = 20" in problem(200, ring_bits=16, **TUNED)


def test_a_strategy_with_memory_at_the_sites_asks_all_of_them() -> None:
    """Only sites that start alike give anything."""
    part = {"sites_per_round": 5}
    for strategy in (Scaffold(), FedAvg(local=("1.*",))):
        said = problem(9, strategy, rounds=part, **TUNED)
        assert said.startswith(f"[rounds] sites_per_round: 5 of 9; {type(strategy).__name__} keeps memory at the sites")
    some: list[tuple[Strategy, bool]] = [(FedAvg(), False), (FedProx(mu=0.1), False), (Ditto(lam=0.1), True)]
    for one, remembers in some:
        secure = secure_of(PrivacyTable(**TUNED), RoundsTable(), one, LAYOUT, 9)
        assert secure is not None
        assert secure.remembers is remembers


def test_a_quorum_below_the_threshold_is_refused() -> None:
    said = "[rounds] quorum: 2 of 4, and no sum over fewer than 3 is opened; raise it to that"
    assert problem(4, rounds={"quorum": 2}, **TUNED) == said
    assert problem(4, rounds={"quorum": 0.5}, **TUNED) == said


@pytest.mark.parametrize(
    ("sites", "rounds", "says"),
    [
        (4, {"quorum": 3}, "4 sites, threshold 3: a round bears 1 dropout"),
        (3, {}, "3 sites, threshold 3: a round bears no dropout; four or more sites are recommended"),
        (10, {"quorum": 0.7}, "10 sites, threshold 7: a round bears 3 dropouts"),
        (10, {"sites_per_round": 4, "quorum": 3}, "4 sites, threshold 3: a round bears 1 dropout"),
        (4, {}, "4 sites, threshold 3: a round bears no dropout; [rounds] quorum = 3 would let it bear 1"),
    ],
)
def test_it_says_how_many_dropouts_a_round_bears(sites: int, rounds: Mapping[str, Any], says: str) -> None:
    assert announced(PrivacyTable(**TUNED), RoundsTable(**rounds), sites) == f"secure aggregation: {says}"


def test_of_two_sites_it_says_what_they_learn() -> None:
    assert "each learns the other's update" in announced(PrivacyTable(secure=True, **TUNED), RoundsTable(), 2)


def test_an_app_is_looked_at_before_it_is_shipped_and_its_task_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text('[federation]\nname = "a"\ntask = "not_there.py:Task"\n')
    check_privacy(load(path), 2)
    with pytest.raises(UserError, match="run hansa tune clip APP"):
        check_privacy(load(path), 3)
    check_privacy(load(path, ["privacy.clip=1.0", "privacy.max_weight=9"]), 3)


@pytest.mark.parametrize("secure", [1, 0, 1.0, "true", None])
def test_whether_sums_are_secret_is_said_in_so_many_words(secure: Any) -> None:
    """A number that passes for true would pass for false as well."""
    with pytest.raises(ValueError, match='must be "auto", true or false'):
        PrivacyTable(secure=secure)
