"""Privacy of a site: what one site can change in the sum, and the noise that hides it."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from scipy import stats

from privacy.dp.mechanism import Event
from privacy.dp.randomness import Stream
from privacy.dp.sitewise import PLAIN_STEPS, Grid, SiteSum, clipped, measured
from privacy.fixed_point import FixedPointSum
from privacy.secagg.keystream import Keystream
from privacy.secagg.packing import signed, word
from privacy.secagg.quantise import FIXED, factor, quantise, round_chunk
from privacy.secagg.ring import Segment, Weight, most_levels
from privacy.secagg.terms import Terms

KEY = bytes(range(32))
floats = st.floats(-1e6, 1e6, width=32)
vectors = st.integers(1, 8).flatmap(lambda n: arrays(np.float32, n, elements=floats))
Vector = NDArray[np.float32]


def length(*parts: Any) -> float:
    """L2 norm of all parts together."""
    return math.sqrt(math.fsum(float(x) ** 2 for part in parts for x in np.asarray(part).ravel()))


@given(vectors, vectors, st.floats(1e-6, 1e6))
@example(np.full(8, 1e-40, np.float32), np.full(3, 3e38, np.float32), 1.0)
@example(np.array([0.6], np.float32), np.array([0.8], np.float32), 1.0)
def test_all_parts_together_come_within_the_clip(delta: Vector, control: Vector, clip: float) -> None:
    """The direction stays: each value goes by the same factor, up to float32's 2^-24."""
    upload = {"delta": torch.tensor(delta), "control": torch.tensor(control)}
    found = clipped(upload, clip)
    assert found.norm == pytest.approx(length(delta, control), rel=1e-12)
    assert length(*upload.values()) <= clip
    factor = min(1.0, clip / found.norm) if found.norm else 1.0
    for before, after in ((delta, upload["delta"]), (control, upload["control"])):
        np.testing.assert_allclose(after, before.astype(np.float64) * factor, rtol=2e-6, atol=1e-44)


def test_an_update_within_the_clip_stays_to_the_bit() -> None:
    upload = {"delta": torch.tensor([0.3, -0.4])}
    assert clipped(upload, 0.6).below
    assert torch.equal(upload["delta"], torch.tensor([0.3, -0.4]))


def test_nothing_is_divided_by_a_norm_of_zero() -> None:
    upload = {"delta": torch.zeros(5)}
    found = clipped(upload, 1.0)
    assert (found.norm, found.below, found.remark) == (0.0, True, None)
    assert torch.equal(upload["delta"], torch.zeros(5))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("at", [0, 70_000])
def test_what_is_not_finite_becomes_zeros_in_all_parts(bad: float, at: int) -> None:
    """And counts as beyond the clip: an adaptive clip must not shrink for it."""
    upload = {"delta": torch.ones(70_001), "control": torch.ones(3)}
    upload["delta"][at] = bad
    found = clipped(upload, 1.0)
    assert found.remark == "the update is not finite; zeros were sent in its place"
    assert not found.below
    assert not any(part.any() for part in upload.values())


def test_pieces_give_what_the_whole_gives() -> None:
    """An upload too large for memory is measured, and then clipped, a piece at a time."""
    whole = torch.randn(200_000, generator=torch.Generator().manual_seed(0))
    pieces = [piece.clone() for piece in torch.split(whole, 30_000)]
    clipping = measured(iter(pieces), 1.0)
    for piece in pieces:
        clipping.apply(piece)
    upload = {"delta": whole}
    assert clipping.norm == pytest.approx(clipped(upload, 1.0).norm, rel=1e-12)
    torch.testing.assert_close(torch.cat(pieces), upload["delta"], rtol=1e-7, atol=0)


def released(updates: list[dict[str, Vector]], weights: list[int], kind: Weight) -> dict[str, Any]:
    """The means before the noise, as the plain sum makes them."""
    means = {}
    for name, part in updates[0].items():
        total = FixedPointSum(len(part), kind, len(updates))
        for update, weight in zip(updates, weights, strict=True):
            total.add(torch.tensor(update[name]), weight)
        means[name] = total.mean(sum(weights))
    return means


def segments(kind: Weight, bits: int, sites: int, bound: float) -> tuple[Segment, ...]:
    levels = most_levels(sites, kind, bits)
    return tuple(Segment(name, size, kind, bound, levels) for name, size in (("a", 3), ("b", 2)))


def summed(updates: list[dict[str, Vector]], weights: list[int], parts: tuple[Segment, ...], bits: int) -> Any:
    """The means before the noise, as the sum in a ring makes them, with the same coins for a site in each call."""
    names = tuple(f"s{number}" for number in range(len(updates)))
    rows = max(weights)
    terms = Terms("run", "train", 1, 1, 1, bytes(32), names, len(names), bytes(32), rows, bits, parts, ())
    words = np.zeros(terms.size, word(bits))
    for number, (update, weight) in enumerate(zip(updates, weights, strict=True)):
        words += quantise(terms, update, weight, {}, bytes([number]) * 32, Keystream()).words
    values = {part.name: signed(words[terms.places[part.name]], bits) for part in parts}
    return {part.name: (values[part.name] / (factor(part, 1) * sum(weights))).astype(np.float32) for part in parts}


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[list[dict[str, Vector]], list[dict[str, Vector]], int]:
    """Clipped updates of two parts at three to five sites; in the second list one site has zeros."""
    clip, sites = 1.0, draw(st.integers(3, 5))
    one = arrays(np.float32, 5, elements=st.floats(-2, 2, width=32))
    updates = []
    for _ in range(sites):
        values = draw(one)
        upload = {"a": torch.tensor(values[:3]), "b": torch.tensor(values[3:])}
        clipped(upload, clip)
        updates.append({name: part.numpy() for name, part in upload.items()})
    gone = draw(st.integers(0, sites - 1))
    zeros = {name: np.zeros_like(part) for name, part in updates[gone].items()}
    return updates, [*updates[:gone], zeros, *updates[gone + 1 :]], gone


def moved(one: dict[str, Any], other: dict[str, Any], weight: int) -> float:
    return length(*(np.asarray(one[name], np.float64) - np.asarray(other[name]) for name in one)) * weight


@given(neighbours(), st.data())
def test_no_site_moves_the_plain_sum_by_more_than_the_sensitivity(
    both: tuple[list[dict[str, Vector]], list[dict[str, Vector]], int], data: st.DataObject
) -> None:
    with_it, without, _ = both
    kind: Weight = data.draw(st.sampled_from(["uniform", "examples"]))
    one = st.just(1) if kind == "uniform" else st.integers(1, 1000)
    weights = [data.draw(one) for _ in with_it]
    by_site = {str(number): weight for number, weight in enumerate(weights)}
    grids = (Grid(3, PLAIN_STEPS[kind]), Grid(2, PLAIN_STEPS[kind]))
    release = SiteSum(1.0, 1.0, by_site, grids)
    change = moved(released(with_it, weights, kind), released(without, weights, kind), release.weight)
    assert change <= release.sensitivity
    assert release.sensitivity <= max(weights) * (1 + 2e-3)


@given(neighbours(), st.sampled_from([16, 20, 32]), st.sampled_from(["uniform", "examples"]))
def test_no_site_moves_the_rounded_sum_by_more_than_the_sensitivity(
    both: tuple[list[dict[str, Vector]], list[dict[str, Vector]], int], bits: int, kind: Weight
) -> None:
    """Weights in levels of 255ths, and a ring so narrow that the rounding shows."""
    with_it, without, _ = both
    weights = [1] * len(with_it) if kind == "uniform" else [255, *range(40, 36 + len(with_it) * 4, 4)][: len(with_it)]
    parts = segments(kind, bits, len(with_it), 1.0)
    release = SiteSum(
        1.0, 1.0, {str(number): weight for number, weight in enumerate(weights)}, tuple(map(Grid.of, parts))
    )
    change = moved(summed(with_it, weights, parts, bits), summed(without, weights, parts, bits), release.weight)
    assert change <= release.sensitivity


@given(
    arrays(np.float32, 40, elements=st.floats(-1, 1, width=32)),
    st.integers(1, 255),
    st.integers(1, 200),
    st.sampled_from([0, 2**32 - 1]),
)
def test_no_coins_lengthen_an_update_by_more_than_the_stretch(
    values: Vector, weight: int, levels: int, coin: int
) -> None:
    """Each weighted value is off by less than bound / levels, whatever the weight: sqrt(d) of that in L2."""
    part = Segment("p", len(values), "examples", 0.5, levels)
    upload = {"p": torch.tensor(values)}
    clipped(upload, 0.5)

    def fill(number: int, out: memoryview) -> None:
        out[: 4 * len(values)] = np.full(len(values), coin, "<u4").tobytes()

    words = np.empty(len(values), "<u4")
    round_chunk(upload["p"].numpy(), 0, part, factor(part, weight) * FIXED, words, fill)
    found = signed(words, 32) * (0.5 / levels)
    release = SiteSum(0.5, 1.0, {"site": weight}, (Grid.of(part),))
    assert length(found - upload["p"].double().numpy() * weight) <= release.stretch
    assert length(found) <= weight * 0.5 + release.stretch <= release.sensitivity


def test_without_the_stretch_the_noise_would_be_too_small() -> None:
    """100 values of 0.1 and a hair, of norm 1, each rounded up to 0.2: the norm doubles."""
    part, values = Segment("p", 100, "uniform", 1.0, 5), np.full(100, 0.1, np.float32)
    coins = np.full(100, 2**32 - 1, "<u4")

    def fill(number: int, out: memoryview) -> None:
        out[:400] = coins.tobytes()

    words = np.empty(100, "<u4")
    round_chunk(values, 0, part, factor(part, 1) * FIXED, words, fill)
    release = SiteSum(1.0, 1.0, {"site": 1}, (Grid.of(part),))
    assert length(signed(words, 32) * 0.2) == pytest.approx(2.0)
    assert release.stretch == pytest.approx(2.0, rel=1e-5)
    assert release.sensitivity > 2.0
    assert replace(release, grids=()).sensitivity < 2.0


def test_a_light_site_is_hidden_as_the_heaviest_is() -> None:
    """Sensitivity clip * max weight, up to the rounding of the mean: 2^-22 of the total weight."""
    release = SiteSum(2.0, 1.5, {"a": 1, "b": 300, "c": 40})
    assert release.sensitivity == pytest.approx(600, rel=1e-6)
    assert release.std == pytest.approx(900, rel=1e-6)
    assert release.event == Event(1.5, 1.0, 1)


def test_the_noise_of_a_mean_has_the_variance_of_the_sum_over_the_weight() -> None:
    """Chi-square of 2 * 10^5 squares, and Kolmogorov and Smirnov's test for the normal, under a fixed key."""
    release = SiteSum(2.0, 3.0, {"a": 1, "b": 4}, (Grid(200_000, 1e-3),))
    assert release.sensitivity == pytest.approx(4 * 2 + 1e-3 * math.sqrt(200_000), rel=1e-5)
    mean = {"delta": torch.full((100_000,), 0.25), "control": torch.zeros(100_000)}
    found = release.noised(mean, Stream(KEY))
    noise = torch.cat([found["delta"] - 0.25, found["control"]]).double().numpy() / (release.std / 5)
    assert 0.01 < stats.chi2(len(noise)).cdf((noise**2).sum()) < 0.99
    assert stats.kstest(noise, "norm").pvalue > 0.01
    assert abs(np.corrcoef(noise[:100_000], noise[100_000:])[0, 1]) < 4 / math.sqrt(100_000)
    assert torch.equal(mean["delta"], torch.full((100_000,), 0.25))  # the mean before the noise is not written over
