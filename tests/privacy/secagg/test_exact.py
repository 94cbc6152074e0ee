"""The sum that is opened is the plain sum, bit for bit, whoever is gone from whichever step on; or none is opened."""

import random
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise, product

import numpy as np
import pytest

from privacy.secagg.errors import Refused, Step
from privacy.secagg.packing import signed
from privacy.secagg.quantise import Update, quantise, weight_level
from privacy.secagg.rehearsal import STEPS, Rehearsal
from privacy.secagg.ring import RINGS, WEIGHTS, Segment, most_levels
from privacy.secagg.terms import Scalars, Terms, threshold
from tests.privacy.secagg.attempts import STREAM, raw_updates, rehearsal


def hold(one: Rehearsal, updates: Mapping[str, Update], gone: Mapping[str, Step]) -> Step | None:
    """Runs an attempt. Its sum is that of Python's whole numbers mod 2^bits and 2^64, over the uploads that came.

    Too few sites in a step must say so in that step, and name those that are missing.

    Returns:
        The step that was short of sites, if one was.
    """
    terms, names = one.terms, one.terms.sites
    left = {step: [s for s in names if s not in gone or STEPS.index(gone[s]) > i] for i, step in enumerate(STEPS)}
    short = next((step for step in STEPS if len(left[step]) < terms.threshold), None)
    if short:
        with pytest.raises(Refused) as error:
            one.run(updates, gone)
        missing = ", ".join(site for site in names if site not in left[short])
        numbers = f"{len(left[short])} of {len(names)} sites, and {terms.threshold} are needed"
        assert (error.value.step, error.value.reason) == (short, f"{numbers}; missing: {missing}")
        return short
    total = one.run(updates, gone)
    assert total.sites == tuple(left["mask"])
    for kind, modulus in (("words", 1 << terms.bits), ("scalars", 1 << 64)):
        columns = zip(*(getattr(updates[site], kind).tolist() for site in left["mask"]), strict=True)
        assert [value % modulus for value in getattr(total, kind).tolist()] == [sum(c) % modulus for c in columns]
    return None


def drawn_terms(rng: random.Random) -> Rehearsal:
    """3 to 40 sites, one to four parts of either weight (some empty), sums of metrics, each ring."""
    n, bits = rng.randint(3, 40), rng.choice(RINGS)
    t = rng.choice([threshold(n), threshold(n), rng.randint(threshold(n), n)])
    weights = [rng.choice(WEIGHTS) for _ in range(rng.randint(1, 4))]
    parts = tuple(
        Segment(f"part-{i}", rng.randint(0, 30), w, rng.choice([0.1, 3.0]), most_levels(n, w, bits))
        for i, w in enumerate(weights)
    )
    scalars = tuple(Scalars(f"metric-{i}", rng.randint(0, 4)) for i in range(rng.randint(0, 3)))
    return rehearsal(n, bits, parts, t, rng.randbytes, scalars=scalars)


def drawn_gone(rng: random.Random, terms: Terms) -> dict[str, Step]:
    """As many as may be gone, or fewer; in one case of five, one more, or many."""
    n, spare = len(terms.sites), len(terms.sites) - terms.threshold
    many = rng.choice([spare + 1, rng.randint(spare + 1, n)]) if rng.random() < 0.2 else rng.randint(0, spare)
    return {site: rng.choice(STEPS) for site in rng.sample(terms.sites, many)}


def rounded(rng: random.Random, terms: Terms) -> tuple[dict[str, Update], dict[str, int]]:
    """Updates as sites make them of floats, some beyond their bound; and the sites' rows."""
    rows, updates = {site: rng.randint(1, 1500) for site in terms.sites}, {}
    for site, count in rows.items():
        draw = np.random.default_rng(rng.getrandbits(32))
        vectors = {p.name: (draw.standard_normal(p.size) * p.bound).astype(np.float32) for p in terms.parts}
        sums = {s.name: draw.integers(-(2**40), 2**40, s.size) for s in terms.scalars}
        updates[site] = quantise(terms, vectors, count, sums, rng.randbytes(32), STREAM)
    return updates, rows


@pytest.mark.parametrize("cases", [60, pytest.param(500, marks=pytest.mark.long)])
def test_the_sum_is_the_plain_sum_bit_for_bit(cases: int) -> None:
    """Random attempts; half of updates of any numbers, which wrap, half of rounded floats, of which no sum may wrap."""
    rng, ends, seen = random.Random(2017), Counter[Step | None](), Counter[object]()
    for case in range(cases):
        one = drawn_terms(rng)
        terms, gone = one.terms, drawn_gone(rng, one.terms)
        if case % 2:
            short = hold(one, raw_updates(terms, case), gone)
        else:
            updates, rows = rounded(rng, terms)
            short = hold(one, updates, gone)
            if short is None:
                there = [site for site in terms.sites if gone.get(site) not in STEPS[:3]]
                exact = sum(signed(updates[site].words, terms.bits).astype(int) for site in there)
                assert np.array_equal(signed(one.coordinator._words, terms.bits), exact)
                scalars = [int(one.coordinator._scalars[terms.scalar_places[name]][0]) for name in ("rows", "weight")]
                assert scalars == [sum(rows[s] for s in there), sum(weight_level(rows[s], terms.rows) for s in there)]
        ends[short] += 1
        seen.update([terms.bits, *(part.weight for part in terms.parts), *(gone.values() if short is None else ())])
    assert ends.total() == cases
    assert ends[None] > cases * 0.6
    assert set(STEPS) <= ends.keys()  # short of sites in each step,
    assert {*RINGS, *WEIGHTS, *STEPS} == seen.keys()  # and opened though some were gone from each


def test_every_way_in_which_four_sites_can_vanish() -> None:
    """Each site is gone from one of five steps on, or stays: 6^4 patterns. Three of four are needed."""
    ends = Counter[Step | None]()
    for pattern in product((None, *STEPS), repeat=4):
        one = rehearsal(4, 16)
        gone = {site: step for site, step in zip(one.terms.sites, pattern, strict=True) if step}
        ends[hold(one, raw_updates(one.terms), gone)] += 1
    opened = [_at_most_one_gone(steps) for steps in range(6)]  # 6^4, and fewer with each step
    assert [ends[step] for step in STEPS] == [before - after for before, after in pairwise(opened)]
    assert ends[None] == opened[-1] == 1 + 4 * 5


def _at_most_one_gone(steps: int) -> int:
    """In how many of the patterns at most one of four sites is gone within so many steps."""
    return (6 - steps) ** 4 + 4 * steps * (6 - steps) ** 3
