"""The audit of DP-SGD, as `benchmarks/audit_dp.py` has it: what its theorem says, and that it finds what is broken."""

import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom


@pytest.fixture(scope="module")
def audit() -> Any:
    path = Path(__file__).parents[3] / "benchmarks" / "audit_dp.py"
    spec = importlib.util.spec_from_file_location("audit_dp", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_the_paper_s_own_example(audit: Any) -> None:
    """Appendix D: of 1000 canaries 100 guessed, 75 rightly, delta 1e-4, 95 %: epsilon is at least 0.673."""
    assert audit.lower_bound(1000, 100, 75, 1e-4, 0.05) == pytest.approx(0.673, abs=5e-4)


@pytest.mark.parametrize("right", [0, 1, 50, 100])
def test_without_delta_guessing_is_randomised_response(audit: Any, right: int) -> None:
    """P[B >= v], B binomial of chance p = 1 / (1 + exp(-epsilon)); all of 100 right: p^100 = 0.05."""
    exact = 1 - binom.cdf(right - 1, 100, 1 / (1 + math.exp(-0.7)))
    assert audit.p_value(1000, 100, right, 0.7, 0.0) == pytest.approx(exact)
    chance = 0.05 ** (1 / 100)
    assert audit.lower_bound(1000, 100, 100, 0.0, 0.05) == pytest.approx(math.log(chance / (1 - chance)))


def test_delta_costs_what_a_sum_by_hand_says(audit: Any) -> None:
    """Of 3 guesses 2 right, chance p: i = 1 gives P[B = 1] = 3p(1-p)^2, i = 2 half of P[B < 2]."""
    p = 1 / (1 + math.exp(-0.5))
    one, none = 3 * p * (1 - p) ** 2, (1 - p) ** 3
    by_hand = 1 - one - none + 2 * 10 * 1e-3 * max(one, (one + none) / 2)
    assert audit.p_value(10, 3, 2, 0.5, 1e-3) == pytest.approx(by_hand)


@pytest.mark.parametrize("true", [0.5, 2.0])
def test_the_bound_is_above_the_truth_in_one_of_twenty_audits_at_most(audit: Any, true: float) -> None:
    """Randomised response of known epsilon, the worst case of the theorem: 1000 audits, three standard errors."""
    random, above = np.random.default_rng(0), 0
    for _ in range(1000):
        coins = random.random(200) < 0.5
        kept = random.random(200) < 1 / (1 + math.exp(-true))
        scores = np.where(kept, coins, ~coins) + 0.1 * random.random(200)
        above += audit.audited(scores, coins, 0.0, audit.SHARES) > true
    assert above / 1000 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1000)


def test_guesses_at_random_show_nothing(audit: Any) -> None:
    random = np.random.default_rng(1)
    assert audit.audited(random.random(400), random.random(400) < 0.5, 1e-5, audit.SHARES) < 0.2


@pytest.mark.parametrize("case", ["honest", "honest-group"])
def test_dp_sgd_keeps_what_it_claims(audit: Any, case: str) -> None:
    claimed, found = audit.bound_of(case, 400, 2.0, 1e-5, 0)
    assert 1.9 < claimed <= 2.0
    assert found <= claimed


@pytest.mark.parametrize("case", ["noise", "clip", "group"])
def test_dp_sgd_that_does_less_than_it_claims_is_found_out(audit: Any, case: str) -> None:
    claimed, found = audit.bound_of(case, 400, 2.0, 1e-5, 0)
    assert found > claimed
