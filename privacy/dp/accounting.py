"""Accountants: what epsilon the releases on one set of units come to together.

Privacy loss distributions (PLD; Koskela et al. 2020) are tight up to a rounding that only ever raises epsilon; Renyi
divergences (RDP; Mironov et al. 2019) are an upper bound that is found in another way. Both are dp-accounting's. The
lower of two upper bounds is one too. The relation is that one unit is added or removed.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache

import dp_accounting
import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import rdp_privacy_accountant as rdp
from numpy.typing import NDArray

from hansa.errors import UserError
from privacy.dp.cost import Cost
from privacy.dp.mechanism import Event

STEP = 1e-4  # of PLD's grid, where losses spread over NARROW to WIDE; finer below, coarser above
NARROW, WIDE, LEAST_WIDTH = 2.0, 25.0, 2.0**-6
COARSEST = 0.05  # grid step beyond which epsilon is in the thousands
FAR = 1e-15  # probability beyond which losses do not widen the grid
LEAST_DELTA = 1e-10  # that stands clear of the rounding of a Fourier transform in float64
MOST_STEPS = 1 << 20  # of a kind, since each adds to that rounding; beyond it, it takes minutes as well
HARDLY_ANY = 1e-6  # noise multiplier below which there is no noise: epsilon is above 10^11
LEAST_NOISE, MOST_NOISE = 1e-2, 1e6  # noise multipliers that are looked for
ROUGH = 1e-3  # of an epsilon that noise is looked for: the step of the grid on which it is
TOLERANCE = 1e-3  # relative, of a noise multiplier that is looked for
MOST_ROUNDS = 1 << 20
MOST_KINDS = 64  # of releases that PLD composes; beyond it, it takes seconds
DISTRIBUTIONS = 16  # that are kept of each kind, a few MB each

Release = tuple[float, float, int]  # noise multiplier, sample rate, count
Divergences = NDArray[np.float64]  # by order

# An order that does not converge is left out by dp-accounting, which says so, a line an order.
logging.getLogger("absl").addFilter(lambda record: "failed to converge" not in str(record.msg))


def epsilon(events: Iterable[Event], delta: float) -> Cost:
    """The least proven epsilon of releases on the same units.

    Args:
        events: in any order.
        delta: in (0, 1).

    Raises:
        ValueError: an event or a delta that there cannot be.
    """
    if not 0 < delta < 1:
        raise ValueError(f"a delta of {delta}")
    releases = _gathered(events)
    if not releases:
        return Cost(0.0, delta, "PLD")
    if any(sigma < HARDLY_ANY for sigma, _, _ in releases):
        return Cost(math.inf, delta, "PLD")
    if len(releases) == 1 and releases[0][1] == 1:  # the sum's distribution of losses is known in closed form
        return Cost(max(0.0, float(dp_accounting.get_epsilon_gaussian(releases[0][0], delta))), delta, "PLD")
    divergences = _renyi(releases)
    bound = _at(divergences, delta)
    if delta < LEAST_DELTA:
        return Cost(bound, delta, "RDP", f"delta is below {LEAST_DELTA:g}, where PLD's arithmetic ends: RDP's bound")
    if max(count for _, _, count in releases) > MOST_STEPS:
        return Cost(bound, delta, "RDP", f"more than {MOST_STEPS:,} steps are beyond PLD's arithmetic: RDP's bound")
    if len(releases) > MOST_KINDS:
        return Cost(bound, delta, "RDP", f"more than {MOST_KINDS} kinds of releases: RDP's bound, which is higher")
    step = _grid(releases, divergences)
    if step > COARSEST:
        return Cost(bound, delta, "RDP", "epsilon is beyond what PLD can be computed for: RDP's bound, which is higher")
    try:
        found = float(_composed(releases, step).get_epsilon_for_delta(delta))
    except (ArithmeticError, MemoryError, ValueError) as error:
        return Cost(bound, delta, "RDP", f"PLD failed ({type(error).__name__}): RDP's bound, which is higher")
    if not 0 <= found < math.inf:
        return Cost(bound, delta, "RDP", f"PLD gave {found}: RDP's bound, which is higher")
    if found > bound:
        return Cost(bound, delta, "RDP", f"PLD's rounding comes to {found:.6g}: RDP's bound, which is lower")
    return Cost(found, delta, "PLD")


@lru_cache(maxsize=1024)
def noise_multiplier_for(target: float, delta: float, sample_rate: float, count: int) -> float:
    """The least noise multiplier by which so many releases cost no more than epsilon = target.

    It is a few thousandths too high at most, never too low, and the same for the same arguments.

    Raises:
        UserError: no noise that is worth the name reaches it.
        ValueError: arguments that there cannot be.
    """
    if not target > 0:
        raise ValueError(f"an epsilon of {target}")

    step = STEP * 2.0 ** max(0, math.floor(math.log2(min(target * ROUGH, COARSEST) / STEP)))

    rough = delta >= LEAST_DELTA and count <= MOST_STEPS

    def cost(noise_multiplier: float) -> float:
        if not rough:
            return epsilon([Event(noise_multiplier, sample_rate, count)], delta).epsilon
        return _roughly(noise_multiplier, sample_rate, count, delta, step)

    high, at_high = 1.0, cost(1.0)
    low, at_low = high, at_high
    while at_high > target:
        if high > MOST_NOISE:
            raise UserError(
                f"epsilon = {target:g} at delta = {delta:g} is out of reach for {count:,} steps, whatever the noise: "
                "raise epsilon, or train less"
            )
        low, at_low = high, at_high
        high, at_high = 2 * high, cost(2 * high)
    while at_low <= target and low > LEAST_NOISE:
        high, at_high = low, at_low
        low, at_low = low / 2, cost(low / 2)
    turn = 0
    while at_low > target and high > low * (1 + TOLERANCE):
        guess = _between(low, at_low, high, at_high, target, turn)
        if (at := cost(guess)) > target:
            low, at_low = guess, at
        else:
            high, at_high = guess, at
        turn += 1
    while epsilon([Event(high, sample_rate, count)], delta).epsilon > target:  # where PLD's own bound is not the lower
        high *= 1 + TOLERANCE
    return high


def _roughly(sigma: float, rate: float, count: int, delta: float, step: float) -> float:
    """An epsilon that is hardly too high, and never too low: PLD on a coarse grid."""
    if rate == 1:
        return float(dp_accounting.get_epsilon_gaussian(sigma / math.sqrt(count), delta))
    one = pld.from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=step)
    return float((one.self_compose(count) if count > 1 else one).get_epsilon_for_delta(delta))


def rounds_for(target: float, delta: float, noise_multiplier: float, sample_rate: float, steps: int) -> int:
    """The most rounds of so many steps that cost no more than epsilon = target; at most MOST_ROUNDS."""

    def fits(rounds: int) -> bool:
        return epsilon([Event(noise_multiplier, sample_rate, steps * rounds)], delta).epsilon <= target

    good, bad = 0, 1
    while bad <= MOST_ROUNDS and fits(bad):
        good, bad = bad, 2 * bad
    while good < MOST_ROUNDS and bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def _gathered(events: Iterable[Event]) -> tuple[Release, ...]:
    """The releases of a kind as one, in one order. Those on all units are one Gaussian, whose precisions add up."""
    counts: dict[tuple[float, float], int] = defaultdict(int)
    for event in events:
        sigma, rate, count = event.noise_multiplier, event.sample_rate, event.count
        if not (0 <= sigma < math.inf and 0 <= rate <= 1 and count >= 0):
            raise ValueError(f"no such release: {event}")
        if count and rate:
            counts[sigma, rate] += count
    some = [(sigma, rate, count) for (sigma, rate), count in counts.items() if rate < 1]
    all_units = sorted((sigma, count) for (sigma, rate), count in counts.items() if rate == 1)
    if all_units:
        precision = math.fsum(count / sigma / sigma if sigma else math.inf for sigma, count in all_units)
        some.append((1 / math.sqrt(precision), 1.0, 1))
    return tuple(sorted(some))


class _Curve(rdp.RdpAccountant):  # type: ignore[misc]
    """Renyi divergences by order, of one release."""

    def __init__(self, sigma: float, rate: float) -> None:
        super().__init__()
        self.compose(dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(sigma)))
        self.values: Divergences = np.maximum(self._rdp, 0.0)


@lru_cache(maxsize=4096)
def _curve(sigma: float, rate: float) -> Divergences:
    return _Curve(sigma, rate).values


def _renyi(releases: tuple[Release, ...]) -> Divergences:
    """Of all together."""
    total = np.zeros(len(rdp.DEFAULT_RDP_ORDERS))
    for sigma, rate, count in releases:
        total += count * _curve(sigma, rate)
    return total


def _at(divergences: Divergences, delta: float) -> float:
    found, _ = rdp.compute_epsilon(rdp.DEFAULT_RDP_ORDERS, divergences, delta)
    return max(0.0, float(found))


def _grid(releases: tuple[Release, ...], divergences: Divergences) -> float:
    """The step of PLD's grid: STEP by a power of two, so that each grid holds all coarser ones.

    Rounding to a coarser grid raises epsilon, and the step only grows with what is released. So more never costs less.
    """
    one = max((0.5 / sigma + 10) / sigma + min(0.0, math.log(rate)) for sigma, rate, _ in releases)
    wide = max(one, 2 * _at(divergences, FAR), LEAST_WIDTH)
    if wide == math.inf:
        return math.inf
    return STEP * 2.0 ** min(math.ceil(math.log2(wide / NARROW)), 0) * 2.0 ** max(math.ceil(math.log2(wide / WIDE)), 0)


@lru_cache(maxsize=DISTRIBUTIONS)
def _single(sigma: float, rate: float, step: float) -> pld.PrivacyLossDistribution:
    return pld.from_gaussian_mechanism(sigma, sampling_prob=rate, value_discretization_interval=step)


@lru_cache(maxsize=DISTRIBUTIONS)
def _repeated(release: Release, step: float) -> pld.PrivacyLossDistribution:
    sigma, rate, count = release
    one = _single(sigma, rate, step)
    return one.self_compose(count) if count > 1 else one


@lru_cache(maxsize=DISTRIBUTIONS)
def _composed(releases: tuple[Release, ...], step: float) -> pld.PrivacyLossDistribution:
    *others, last = releases
    added = _repeated(last, step)
    return _composed(tuple(others), step).compose(added, FAR) if others else added


def _between(low: float, at_low: float, high: float, at_high: float, target: float, turn: int) -> float:
    """Where the next noise multiplier is tried: beside the line through both ends, on logarithmic scales.

    It is tried now a little above the line and now below, so that both ends close in; every third time in the middle.
    """
    middle = math.sqrt(low * high)
    if turn % 3 == 2 or at_high <= 0:
        return middle
    slope, aside = math.log(at_low / at_high) / math.log(high / low), TOLERANCE * 0.4
    guess = low * math.exp(math.log(at_low / target) / slope) * (1 + aside if turn % 3 == 0 else 1 - aside)
    return min(max(guess, low * (1 + aside / 2)), high / (1 + aside / 2))
