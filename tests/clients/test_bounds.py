"""[bounds]: what is no number within them is outside, wherever it stands."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clients.bounds import Bound, BoundsTable


def bounds(**given: dict[str, float]) -> BoundsTable:
    return BoundsTable.model_validate({key.replace("__", "."): bound for key, bound in given.items()})


NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.integers()


@given(NUMBERS, NUMBERS, NUMBERS)
def test_a_number_is_within_when_it_lies_between(a: float, b: float, value: float) -> None:
    low, high = sorted([float(a) if abs(a) < 1e300 else 0.0, float(b) if abs(b) < 1e300 else 0.0])
    assert Bound(min=low, max=high).holds(value) == (low <= value <= high)
    assert Bound(min=low).holds(value) == (value >= low)
    assert Bound(max=high).holds(value) == (value <= high)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, "1", True, None, [1], {"a": 1}])
def test_what_is_no_finite_number_is_outside(value: Any) -> None:
    assert not Bound(min=-1e9).holds(value)
    assert not Bound(max=1e9).holds(value)


def test_a_whole_number_beyond_all_floats_is_compared_all_the_same() -> None:
    assert not Bound(max=1e308).holds(10**400)
    assert Bound(min=0).holds(10**400)


def test_a_key_that_is_left_out_keeps_its_default() -> None:
    some = bounds(training__lr={"max": 0.1}, strategy__mu={"max": 1})
    assert some.broken_by({}) is None
    assert some.broken_by({"training": {"epochs": 3}, "strategy": {"name": "fedprox"}}) is None
    assert some.broken_by({"strategy": {"name": "fedprox", "mu": 2}}) == "strategy.mu"


def test_keys_of_tables_in_tables_are_found() -> None:
    some = bounds(strategy__inner__mu={"max": 1})
    assert some.broken_by({"strategy": {"inner": {"mu": 1.5}}}) == "strategy.inner.mu"
    assert some.broken_by({"strategy": {"inner": {"mu": 0.5}, "mu": 2}}) is None


def test_no_clipping_is_outside_where_clipping_is_bounded() -> None:
    """A plan always has clip_norm; None is no clipping at all, hence the opposite of a small bound."""
    some = bounds(training__clip_norm={"max": 1})
    assert some.broken_by_plan({"clip_norm": None}, 1) == "training.clip_norm"
    assert some.broken_by_plan({"clip_norm": 0.5}, 1) is None


def test_steps_can_be_ruled_out() -> None:
    some = bounds(training__epochs={"max": 5}, training__steps={"max": 0})
    assert some.broken_by_plan({"epochs": 5}, 1) is None
    assert some.broken_by_plan({"steps": 1}, 1) == "training.steps"


def test_a_plan_s_round_is_held_to_the_greatest_number_of_rounds_only() -> None:
    some = bounds(rounds__rounds={"min": 3, "max": 5})
    assert [some.broken_by_plan({}, round) for round in (1, 5, 6)] == [None, None, "rounds.rounds"]
    assert some.broken_by({"rounds": {"rounds": 2}}) == "rounds.rounds"
