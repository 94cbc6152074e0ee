"""Rounding without bias, within bounds that hold to the last unit."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hansa.errors import UserError
from privacy.secagg.keystream import BACK_ENDS, Keystream
from privacy.secagg.packing import signed, word
from privacy.secagg.quantise import FIXED, NotSummable, factor, quantise, round_chunk, weight_level
from privacy.secagg.ring import RINGS, WEIGHTS, Segment, Weight, check_fit, most_levels
from privacy.secagg.terms import Scalars, Terms

COINS = bytes(range(32))


def make_terms(part: Segment, sites: int = 3, bits: int = 32, rows: int = 1000) -> Terms:
    names = tuple(f"s{number:04d}" for number in range(sites))
    return Terms(
        "run", "train", 1, 1, 1, bytes(32), names, sites, bytes(32), rows, bits, (part,), (Scalars("loss", 2),)
    )


def rounded(values: NDArray[np.float32], part: Segment, weight: int, coins: NDArray[np.uint32]) -> list[int]:
    """What comes out with given coins."""

    def fill(number: int, out: memoryview) -> None:
        out[: 4 * len(values)] = coins.astype("<u4").tobytes()

    words = np.empty(len(values), "<u4")
    round_chunk(values, 0, part, factor(part, weight) * FIXED, words, fill)
    found: list[int] = signed(words, 32).tolist()
    return found


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("eighths", range(0, 256, 5))
def test_the_expectation_over_all_coins_is_the_value(eighths: int, sign: int) -> None:
    """For a value that is a multiple of 2^-8 only a coin's first 8 bits count: 256 coins stand for all."""
    value, coins = sign * (3 + eighths / 256), np.arange(256, dtype=np.uint32) << np.uint32(24)
    found = rounded(np.full(256, value, np.float32), Segment("p", 256, "uniform", 1024.0, 1024), 1, coins)
    assert sum(found) / 256 == value
    assert set(found) <= {int(np.floor(value)), int(np.ceil(value))}


def test_small_values_keep_their_mean() -> None:
    """Seen elsewhere: in float32 0.026 of a unit beside 2^23 came out as 0. Five standard errors of 10^6 throws."""
    size, value = 1_000_000, 0.026
    part = Segment("p", size, "uniform", 2.0**23, 2**23)
    terms = make_terms(part)
    sums = {"loss": np.zeros(2, np.int64)}
    update = quantise(terms, {"p": np.full(size, value, np.float32)}, 1, sums, COINS, Keystream())
    error = np.sqrt(value * (1 - value) / size)
    assert abs(signed(update.words, 32).mean() - float(np.float32(value))) < 5 * error


@given(
    bound=st.floats(1e-30, 1e30),
    levels=st.integers(1, 2**23),
    kind=st.sampled_from(WEIGHTS),
    coin=st.sampled_from([0, 2**32 - 1]),
    share=st.floats(-1, 1),
)
@example(bound=0.1, levels=2**23, kind="examples", coin=2**32 - 1, share=1.0)
def test_nothing_comes_out_beyond_weight_times_levels(
    bound: float, levels: int, kind: Weight, coin: int, share: float
) -> None:
    part = Segment("p", 4, kind, bound, levels)
    weight = part.largest_weight
    with np.errstate(over="ignore"):
        values = np.array([share * bound, bound, -bound, np.float32(3e38)], np.float32)
    found = rounded(values, part, weight, np.full(4, coin, "<u4"))
    assert max(map(abs, found)) <= weight * levels
    assert found[3] == weight * levels or (found[3] == weight * levels - 1 and not coin)
    assert abs(found[0] - values[0].clip(-bound, bound) / bound * weight * levels) <= 1.001 + 1e-6 * weight * levels


@pytest.mark.parametrize("bits", RINGS)
@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("sites", [3, 4, 100])
def test_the_finest_rounding_fits_and_the_next_finer_is_refused(sites: int, kind: Weight, bits: int) -> None:
    """All sites at their largest weight and bound, each rounded up: the sum is the largest there can be."""
    levels = most_levels(sites, kind, bits)
    part = Segment("p", 2, kind, 0.3, max(levels, 1))
    if levels:
        values = np.array([1e9, -1e9], np.float32)
        one = np.array(rounded(values, part, part.largest_weight, np.full(2, 2**32 - 1, "<u4"))).astype(word(bits))
        total = np.zeros(2, word(bits))
        for _ in range(sites):
            total += one
        largest = sites * part.largest_weight * levels
        assert signed(total, bits).tolist() == [largest, -largest]
        assert largest < 2 ** (bits - 1)
        check_fit(part, sites, bits)
    with pytest.raises(UserError, match=rf"part 'p': {sites} sites x weights up to \d+ x .* choose"):
        check_fit(replace(part, levels=levels + 1), sites, bits)


def test_a_sum_that_does_not_fit_is_told_with_its_mend() -> None:
    with pytest.raises(UserError) as error:
        make_terms(Segment("delta", 5, "examples", 1.0, 90_000), sites=100)
    assert str(error.value) == (
        "[privacy]: part 'delta': 100 sites x weights up to 255 x 90,000 levels = 2,295,000,000, and a ring of 32 bits "
        "holds 2,147,483,647; choose levels = 84215 or fewer"
    )
    with pytest.raises(UserError, match=r"choose levels = 1 or fewer or ring_bits = 20$"):
        make_terms(Segment("delta", 5, "examples", 1.0, 20), sites=100, bits=16)


@given(st.integers(1, 2**40), st.integers(0, 2**41))
def test_a_weight_is_the_share_of_the_largest_rounded_up(most: int, rows: int) -> None:
    level = weight_level(rows, most)
    exact = 255 * min(rows, most)
    assert (level - 1) * most < exact <= level * most
    assert (level == 0) == (rows == 0)
    assert level <= 255


def test_what_is_clipped_is_counted() -> None:
    part = Segment("p", 6, "uniform", 0.5, 100)
    values = np.array([0.5, -0.5, 0.6, -7, 0, np.float32(0.5) + np.float32(6e-8)], np.float32)
    update = quantise(make_terms(part), {"p": values}, 2000, {"loss": np.array([5, -6])}, COINS, Keystream())
    assert update.scalars.view(np.int64).tolist() == [2000, 0, 255, 1, 3, 5, -6]
    assert signed(update.words, 32).tolist() == [100, -100, 100, -100, 0, 100]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("index", [0, 70_000])
def test_a_value_that_is_not_finite_is_named(bad: float, index: int) -> None:
    values = np.zeros(70_001, np.float32)
    values[index] = bad
    terms = make_terms(Segment("p", 70_001, "uniform", 1.0, 100))
    for threads in (1, 2):
        with pytest.raises(NotSummable, match=rf"part 'p' has {bad} at {index}$"):
            quantise(terms, {"p": values}, 1, {"loss": np.zeros(2, np.int64)}, COINS, Keystream("ctr", threads))


@pytest.mark.parametrize(
    ("vectors", "sums"),
    [
        ({}, {"loss": [0, 0]}),
        ({"p": np.zeros(2, np.float32)}, {"loss": [0, 0]}),
        ({"p": np.zeros(3, np.float64)}, {"loss": [0, 0]}),
        ({"p": np.zeros(3, np.float32)}, {}),
        ({"p": np.zeros(3, np.float32)}, {"loss": [0, 0, 0]}),
    ],
)
def test_only_what_the_terms_name_is_taken(vectors: dict[str, NDArray[np.float32]], sums: dict[str, list[int]]) -> None:
    terms = make_terms(Segment("p", 3, "uniform", 1.0, 100))
    with pytest.raises(NotSummable):
        quantise(terms, vectors, 1, {n: np.array(v, np.int64) for n, v in sums.items()}, COINS, Keystream())


@pytest.mark.parametrize("sign", [1, -1])
def test_metric_sums_have_a_limit_that_is_tight(sign: int) -> None:
    """floor(2^63 / n) - 1: n of them stay below 2^63."""
    terms, limit = make_terms(Segment("p", 1, "uniform", 1.0, 1), sites=7), 2**63 // 7 - 1
    vectors = {"p": np.zeros(1, np.float32)}
    largest = {"loss": np.array([sign * limit, 0])}
    update = quantise(terms, vectors, 1, largest, COINS, Keystream())
    total = sum([update.scalars] * 7, np.zeros(len(update.scalars), np.uint64))
    assert total.view(np.int64).tolist()[5] == 7 * sign * limit
    with pytest.raises(NotSummable, match="'loss' is too large to be summed over 7 sites"):
        quantise(terms, vectors, 1, {"loss": np.array([sign * (limit + 1), 0])}, COINS, Keystream())


def test_threads_and_back_ends_change_no_bit() -> None:
    size = 200_003
    terms = make_terms(Segment("p", size, "examples", 1.0, 1000))
    values = np.random.default_rng(1).standard_normal(size).astype(np.float32)
    ways = [Keystream(back_end, threads) for back_end in BACK_ENDS for threads in (1, 2)]
    sums = {"loss": np.zeros(2, np.int64)}
    updates = [quantise(terms, {"p": values}, 500, sums, COINS, way) for way in ways]
    assert len({update.words.tobytes() + update.scalars.tobytes() for update in updates}) == 1


@pytest.mark.parametrize("bits", RINGS)
def test_rings_hold_the_same_numbers(bits: int) -> None:
    part = Segment("p", 500, "uniform", 1.0, 100)
    values = np.random.default_rng(1).standard_normal(500).astype(np.float32)
    sums = {"loss": np.zeros(2, np.int64)}
    update = quantise(make_terms(part, bits=bits), {"p": values}, 5, sums, COINS, Keystream())
    wide = quantise(make_terms(part), {"p": values}, 5, sums, COINS, Keystream())
    assert signed(update.words, bits).tolist() == signed(wide.words, 32).tolist()


def test_two_parts_are_rounded_by_coins_of_their_own() -> None:
    values = np.full(64, 0.5, np.float32)
    part = Segment("p", 64, "uniform", 1.0, 1)
    terms = replace(make_terms(part), parts=(part, replace(part, name="q")))
    sums = {"loss": np.zeros(2, np.int64)}
    update = quantise(terms, {"p": values, "q": values}, 1, sums, COINS, Keystream())
    assert update.words[:64].tolist() != update.words[64:].tolist()
