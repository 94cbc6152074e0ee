"""What releases cost, held against published values and two other accountants."""

import math
import warnings
from itertools import permutations
from typing import Any

import dp_accounting
import pytest
from dp_accounting.gaussian_mechanism import get_sigma_gaussian
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant, rdp_privacy_accountant
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from opacus.accountants import PRVAccountant
from opacus.accountants import RDPAccountant as OpacusRDP

from hansa.errors import UserError
from privacy.dp import accounting
from privacy.dp.accounting import epsilon, noise_multiplier_for, rounds_for
from privacy.dp.cost import Cost, rounded_up
from privacy.dp.mechanism import Event

ROUNDING = 1 + 1e-7  # of Fourier transforms in float64, on an epsilon
ABADI = list(range(2, 34))  # the moments of Abadi et al. 2016: lambda up to 32

# Noise multiplier, sample rate, steps, delta; what each accountant says, to the digits that are known.
REFERENCE: dict[str, tuple[float, float, int, float, dict[str, str]]] = {
    "Abadi 2016": (4.0, 0.01, 10_000, 1e-5, {"classic": "1.2586", "rdp": "1.0355", "pld": "0.9470", "prv": "0.9569"}),
    "TF privacy, tutorial": (1.3, 250 / 60_000, 15 * 240, 1e-5, {"classic": "1.1799", "pld": "0.8530"}),
    "TF privacy, test": (1.3, 150 / 60_000, 15 * 400, 1e-5, {"rdp": "0.724223", "pld": "0.6401"}),
    "TF privacy, test 2": (1.0, 100 / 100_000, 30 * 1000, 1e-7, {"rdp": "1.4155", "pld": "1.0982"}),
    "dp-accounting": (0.7, 0.01, 120, 1e-5, {"rdp": "3.2392676", "pld": "2.4612381"}),
    "Opacus": (1.5, 0.04, 2250, 1e-5, {"opacus rdp": "7.32911", "pld": "6.769"}),
    "Opacus, PRV": (1.5, 0.04, 2249, 1e-5, {"prv": "6.77740"}),
    "PRV": (0.8, 0.001, 1000, 1e-6, {"prv": "0.477771", "pld": "0.4677", "rdp": "1.46"}),
}
CASES = [(name, who, value) for name, (*_, values) in REFERENCE.items() for who, value in values.items()]


def poisson(sigma: float, rate: float, steps: int) -> dp_accounting.DpEvent:
    one = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma))
    return dp_accounting.SelfComposedDpEvent(one, steps)


def by_rdp(sigma: float, rate: float, steps: int, delta: float) -> float:
    accountant = RdpAccountant()
    accountant.compose(poisson(sigma, rate, steps))
    return float(accountant.get_epsilon(delta))


def by_moments(sigma: float, rate: float, steps: int, delta: float) -> float:
    """Whole orders and the first conversion (Abadi et al. 2016, theorem 2): the least r(a) - ln(delta) / (a - 1)."""
    accountant = RdpAccountant(ABADI)
    accountant.compose(poisson(sigma, rate, steps))
    return min(float(r) - math.log(delta) / (a - 1) for a, r in zip(ABADI, accountant._rdp, strict=True))


def by_opacus(kind: Any, sigma: float, rate: float, steps: int, delta: float) -> float:
    accountant = kind()
    accountant.history = [(sigma, rate, steps)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(accountant.get_epsilon(delta))


def by_us(sigma: float, rate: float, steps: int, delta: float) -> float:
    cost = epsilon([Event(sigma, rate, steps)], delta)
    assert (cost.accountant, cost.remark) == ("PLD", "")
    return cost.epsilon


ACCOUNTANTS = {
    "pld": by_us,
    "rdp": by_rdp,
    "classic": by_moments,
    "prv": lambda *args: by_opacus(PRVAccountant, *args),
    "opacus rdp": lambda *args: by_opacus(OpacusRDP, *args),
}


@pytest.mark.parametrize(("name", "who", "value"), CASES)
def test_reference_values(name: str, who: str, value: str) -> None:
    """Of Abadi et al. 2016, of the tutorial and tests of TF privacy, of the tests of dp-accounting and Opacus."""
    case = REFERENCE[name][:4]
    digits = len(value.partition(".")[2])
    assert abs(ACCOUNTANTS[who](*case) - float(value)) <= 0.5000001 * 10**-digits + (1e-6 if digits >= 6 else 0)


@pytest.mark.parametrize("name", REFERENCE)
def test_three_accountants_agree(name: str) -> None:
    """PRV (Gopi et al. 2021) is an upper bound too, 0.01 above the truth or less; RDP is above both."""
    case = REFERENCE[name][:4]
    ours, prv, rdp = by_us(*case), by_opacus(PRVAccountant, *case), by_opacus(OpacusRDP, *case)
    assert prv - 0.0105 <= ours <= min(prv, rdp)


def test_a_tree_of_dp_accounting() -> None:
    """Kairouz et al. 2021 publish z = 1.13, n = 1600 as below 19.74 at delta = 1e-6."""
    accountant = RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL)
    accountant.compose(dp_accounting.SingleEpochTreeAggregationDpEvent(1.13, 1600))
    assert accountant.get_epsilon(1e-6) == pytest.approx(18.710, abs=5e-4)


def test_the_gaussian_mechanism_is_the_analytic_one() -> None:
    """Balle and Wang 2018; the classic formula sqrt(2 ln(1.25 / delta)) asks for 30 % more noise."""
    assert get_sigma_gaussian(1.0, 1e-5) == pytest.approx(3.73063, abs=5e-6)
    assert by_us(3.73063, 1.0, 1, 1e-5) == pytest.approx(1.0, abs=2e-6)
    sigma = noise_multiplier_for(1.0, 1e-5, 1.0, 1)
    assert 3.73063 <= sigma <= 3.73063 * (1 + accounting.TOLERANCE)
    classic = math.sqrt(2 * math.log(1.25 / 1e-5))
    assert classic == pytest.approx(4.845, abs=5e-4)
    assert by_us(classic, 1.0, 1, 1e-5) < 0.8


def test_a_shuffled_epoch_earns_no_amplification() -> None:
    """Batches by shuffling: each row is in one sum an epoch, and the others' batches hide nothing of it."""
    assert by_us(1.0, 1.0, 1, 1e-5) == pytest.approx(4.38, abs=0.005)
    assert by_us(1.0, 1.0, 10, 1e-5) == pytest.approx(17.86, abs=0.005)
    assert by_opacus(PRVAccountant, 1.0, 0.01, 100, 1e-5) == pytest.approx(0.73, abs=0.005)  # reported of shuffling
    assert by_us(1.0, 0.01, 1000, 1e-5) == pytest.approx(1.83, abs=0.005)


def test_truncated_batches_would_cost_more_than_is_said_of_whole_ones() -> None:
    """N = 10^4, q = 0.01: drawn batches that are cut at 128 rows cost 4.01 where whole ones cost 1.83.

    A truncated sum tells one row from none by whom it pushes out. So no batch of Hansa's is ever truncated.
    """
    step = privacy_loss_distribution.from_truncated_subsampled_gaussian_mechanism(
        dataset_size=10_000,
        sampling_probability=0.01,
        truncated_batch_size=128,
        noise_multiplier=1.0,
        value_discretization_interval=1e-3,
    )
    truncated = step.self_compose(1000).get_epsilon_for_delta(1e-5)
    assert truncated == pytest.approx(4.01, abs=0.01)
    assert by_us(1.0, 0.01, 1000, 1e-5) < truncated / 2


def test_gaussian_differential_privacy_says_too_little() -> None:
    """Why its central limit is no accountant of ours: at sigma = 1, q = 0.01, one step it says 0.037.

    mu = q sqrt(T (exp(1 / sigma^2) - 1)) (Bu et al. 2020), then the epsilon of a Gaussian of sigma = 1 / mu.
    """
    mu = 0.01 * math.sqrt(math.e - 1)
    assert by_us(1 / mu, 1.0, 1, 1e-5) == pytest.approx(0.037, abs=0.001)
    assert by_us(1.0, 0.01, 1, 1e-5) == pytest.approx(0.199, abs=0.001)


def test_without_noise_nothing_is_protected() -> None:
    assert epsilon([Event(0.0, 0.5, 1)], 1e-5).epsilon == math.inf
    assert epsilon([Event(0.0, 1.0, 1), Event(2.0, 1.0, 1)], 1e-5).epsilon == math.inf
    assert epsilon([Event(1e-300, 1.0, 1)], 1e-5).epsilon == math.inf


def test_what_was_not_released_costs_nothing() -> None:
    nothing = Cost(0.0, 1e-5, "PLD")
    assert epsilon([], 1e-5) == nothing
    assert epsilon([Event(1.0, 0.5, 0), Event(0.0, 0.0, 7)], 1e-5) == nothing


@pytest.mark.parametrize("event", [Event(-1.0, 0.5, 1), Event(math.nan, 0.5, 1), Event(1.0, 1.5, 1), Event(1, 0.5, -1)])
def test_no_such_event(event: Event) -> None:
    with pytest.raises(ValueError, match="no such release"):
        epsilon([event], 1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_no_such_delta(delta: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        epsilon([Event(1.0, 0.5, 1)], delta)


def test_beyond_pld_it_is_rdp_and_says_so() -> None:
    cost = epsilon([Event(0.05, 0.1, 100)], 1e-5)
    assert (cost.epsilon, cost.accountant) == (by_rdp(0.05, 0.1, 100, 1e-5), "RDP")
    assert "beyond what PLD can be computed for" in cost.remark
    cost = epsilon([Event(1.0, 0.01, 100)], 1e-12)
    assert (cost.epsilon, cost.accountant) == (by_rdp(1.0, 0.01, 100, 1e-12), "RDP")
    assert "PLD's arithmetic" in cost.remark
    cost = epsilon([Event(1000.0, 0.01, 1 << 40)], 1e-5)
    assert (cost.epsilon, cost.accountant) == (by_rdp(1000.0, 0.01, 1 << 40, 1e-5), "RDP")
    assert "more than 1,048,576 steps" in cost.remark


@pytest.mark.parametrize("steps", [10_000, 1 << 20])
def test_many_steps_come_to_one_gaussian(steps: int) -> None:
    """The central limit (Bu et al. 2020), from above: mu = 1 where mu^2 = q^2 T (exp(1 / sigma^2) - 1)."""
    sigma = 1 / math.sqrt(math.log1p(1 / (0.01**2 * steps)))
    assert 0.999 < by_us(sigma, 0.01, steps, 1e-8) / by_us(1.0, 1.0, 1, 1e-8) < 1.05


@pytest.mark.parametrize("given", [-0.69, math.nan, math.inf, OverflowError(), ValueError(), 1e9])
def test_a_pld_that_fails_is_never_believed(given: float | Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opacus has given -0.69, and PRV fails for a large epsilon."""

    def failing(*_: Any) -> float:
        if isinstance(given, Exception):
            raise given
        return given

    monkeypatch.setattr(privacy_loss_distribution.PrivacyLossDistribution, "get_epsilon_for_delta", failing)
    cost = epsilon([Event(1.0, 0.01, 100)], 1e-5)
    assert (cost.epsilon, cost.accountant) == (by_rdp(1.0, 0.01, 100, 1e-5), "RDP")
    assert "RDP's bound" in cost.remark


def test_a_negative_divergence_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdp_privacy_accountant, "compute_epsilon", lambda *_: (-0.69, 2.0))
    assert epsilon([Event(1.0, 0.01, 100)], 1e-12).epsilon == 0.0


def test_epsilon_is_shown_rounded_up() -> None:
    assert [rounded_up(e) for e in (1.23401, 0.00012341, 12341.0, 0.0, math.inf)] == [
        "1.235",
        "0.0001235",
        "1.235e+04",
        "0",
        "inf",
    ]


def unshrunk(examples: int) -> settings:
    """An example takes a second, and shrinking one minutes."""
    return settings(max_examples=examples, phases=[Phase.explicit, Phase.reuse, Phase.generate])


noises = st.floats(0.6, 20.0)
rates = st.one_of(st.floats(1e-3, 0.999), st.just(1.0))
counts = st.integers(1, 200)
deltas = st.sampled_from([1e-3, 1e-5, 1e-8])
events = st.builds(Event, noises, rates, counts)


@given(events, st.floats(1.0, 2.0), st.floats(0.0, 1.0), st.integers(0, 50), deltas)
@unshrunk(8)
def test_more_never_costs_less(event: Event, noise: float, rate: float, count: int, delta: float) -> None:
    """Epsilon grows with the steps, with the sample rate, and with less noise."""
    cost = epsilon([event], delta).epsilon
    more_steps = Event(event.noise_multiplier, event.sample_rate, event.count + count)
    more_drawn = Event(event.noise_multiplier, event.sample_rate + rate * (1 - event.sample_rate), event.count)
    less_noise = Event(event.noise_multiplier / noise, event.sample_rate, event.count)
    for other in (more_steps, more_drawn, less_noise):
        assert 0 <= cost <= epsilon([other], delta).epsilon * ROUNDING + 1e-12


@given(st.lists(events, min_size=2, max_size=3), deltas)
@unshrunk(8)
def test_composition(these: list[Event], delta: float) -> None:
    """No order matters; together they cost at least the dearest of them, and no more than by RDP, or one by one."""
    costs = {epsilon(order, delta).epsilon for order in permutations(these)}
    assert len(costs) == 1
    (cost,), alone = costs, [epsilon([event], delta).epsilon for event in these]
    assert max(alone) <= cost * ROUNDING + 1e-12
    accountant = RdpAccountant()
    for event in these:
        accountant.compose(poisson(event.noise_multiplier, event.sample_rate, event.count))
    assert cost <= accountant.get_epsilon(delta) * ROUNDING
    assert cost <= sum(epsilon([event], delta / len(these)).epsilon for event in these) * (1 + 1e-3) + 1e-6


@given(events, st.integers(1, 199), deltas)
@unshrunk(6)
def test_steps_may_come_in_parts(event: Event, first: int, delta: float) -> None:
    first = min(first, event.count)
    parts = [Event(event.noise_multiplier, event.sample_rate, n) for n in (first, event.count - first)]
    assert epsilon(parts, delta) == epsilon([event], delta)


def test_unlike_events_compose_as_dp_accounting_composes_them() -> None:
    these = [Event(1.0, 0.01, 500), Event(2.0, 1.0, 3), Event(1.5, 1.0, 1), Event(0.9, 0.05, 40)]
    accountant = PLDAccountant()
    for event in these:
        accountant.compose(poisson(event.noise_multiplier, event.sample_rate, event.count))
    assert epsilon(these, 1e-5).epsilon == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


@pytest.mark.parametrize(
    ("target", "delta", "rate", "count"),
    [(5.0, 1e-4, 0.3, 200), (0.1, 1e-6, 1.0, 100), (1.0, 1e-5, 0.01, 1000), (1e5, 1e-5, 0.1, 10)],
)
def test_noise_is_found_on_the_safe_side(target: float, delta: float, rate: float, count: int) -> None:
    sigma = noise_multiplier_for(target, delta, rate, count)
    assert epsilon([Event(sigma, rate, count)], delta).epsilon <= target
    if sigma > 2 * accounting.LEAST_NOISE:
        assert epsilon([Event(sigma / (1 + 1.01 * accounting.TOLERANCE), rate, count)], delta).epsilon > target


def test_an_epsilon_out_of_reach_is_refused_in_words() -> None:
    with pytest.raises(UserError, match=r"epsilon = 1e-07 at delta = 1e-11 is out of reach for 1,000,000 steps"):
        noise_multiplier_for(1e-7, 1e-11, 1.0, 1_000_000)


@pytest.mark.parametrize(("sigma", "rate", "steps"), [(2.0, 0.3, 3), (1.0, 0.01, 10), (0.3, 0.5, 1), (3.0, 1.0, 1)])
def test_so_many_rounds_and_not_one_more(sigma: float, rate: float, steps: int) -> None:
    rounds = rounds_for(3.0, 1e-5, sigma, rate, steps)
    assert epsilon([Event(sigma, rate, steps * rounds)], 1e-5).epsilon <= 3.0
    assert epsilon([Event(sigma, rate, steps * (rounds + 1))], 1e-5).epsilon > 3.0


def test_rounds_end_somewhere() -> None:
    assert rounds_for(3.0, 1e-11, 1e9, 0.001, 1) == accounting.MOST_ROUNDS
