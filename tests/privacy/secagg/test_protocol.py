"""A whole attempt: what its sum means, what lies do to it, and what it takes of memory."""

import tracemalloc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.secagg import shamir
from privacy.secagg.errors import Refused
from privacy.secagg.keystream import Keystream
from privacy.secagg.messages import Header, Opening
from privacy.secagg.packing import packed, signed, word
from privacy.secagg.quantise import Update, quantise
from privacy.secagg.rehearsal import Rehearsal
from privacy.secagg.ring import RINGS, Segment
from tests.privacy.secagg.attempts import LARGE, STREAM, raw_updates, rehearsal


@settings(max_examples=25)
@given(
    rows=st.lists(st.integers(1, 1500), min_size=4, max_size=4),
    bits=st.sampled_from([24, 32]),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_mean_is_that_of_floats_within_the_rounding(rows: list[int], bits: int, seed: int) -> None:
    """One level is bound / levels; a site is off by less than one, so a sum over n by less than n, over the weight."""
    parts = (Segment("delta", 30, "examples", 0.5, 2000), Segment("c", 8, "uniform", 2.0, 2000))
    one, rng = rehearsal(4, bits, parts), np.random.default_rng(seed)
    names = one.terms.sites
    vectors = {s: {p.name: rng.uniform(-0.7, 0.7, p.size).astype(np.float32) for p in parts} for s in names}
    updates = {
        site: quantise(one.terms, vectors[site], count, {"loss": np.array([count, -1, 0])}, rng.bytes(32), STREAM)
        for site, count in zip(names, rows, strict=True)
    }
    total = one.run(updates, {names[1]: "mask"})
    there = [0, 2, 3]
    weights = [-(-255 * min(rows[i], 1000) // 1000) for i in there]
    for part, scale in zip(parts, (sum(weights), 3), strict=True):
        mine = weights if part.weight == "examples" else [1, 1, 1]
        clipped = [vectors[names[i]][part.name].astype(float).clip(-part.bound, part.bound) for i in there]
        exact = sum(w * x for w, x in zip(mine, clipped, strict=True)) / scale
        assert np.abs(total.mean(part.name) - exact).max() <= 3 * part.bound / part.levels / scale + 1e-6
        beyond = sum(int((np.abs(vectors[names[i]][part.name]) > part.bound).sum()) for i in there)
        assert total.clipped[part.name] == beyond / (3 * part.size)
    whole = sum(rows[i] for i in there)
    assert (total.rows, total.weight, total.heavy) == (whole, sum(weights), sum(rows[i] > 1000 for i in there))
    assert total.weight_error == pytest.approx(sum(weights) * 1000 / 255 / whole - 1)
    assert total.sums["loss"].tolist() == [whole, -3, 0]


def test_a_site_s_update_is_not_touched_and_may_be_masked_again() -> None:
    """A second attempt with the same update, and a site less: a retry costs no new rounding."""
    first, second = rehearsal(4, attempt=1), rehearsal(4, attempt=2)
    updates = raw_updates(first.terms)
    before = {site: update.words.copy() for site, update in updates.items()}
    with pytest.raises(Refused):
        first.run(updates, dict.fromkeys(first.terms.sites[:2], "unmask"))
    assert all(np.array_equal(before[site], update.words) for site, update in updates.items())
    second.run(updates, {second.terms.sites[3]: "mask"})


def test_an_update_made_for_more_sites_fits_and_one_for_fewer_does_not() -> None:
    one = rehearsal(4)
    updates = raw_updates(one.terms)
    names = one.terms.sites
    deliveries = one.share(names, one.advertise(names))
    for site, sites, fits in ((names[0], 5, True), (names[1], 3, False)):
        one.sites[site].receive(deliveries[site])
        update = replace(updates[site], sites=sites)
        if fits:
            assert sum(map(len, one.sites[site].mask(update)))
        else:
            with pytest.raises(Refused, match="made for other terms"):
                one.sites[site].mask(update)


def opened(one: Rehearsal, lies: Mapping[str, bytes], givers: int) -> Callable[[], object]:
    """A coordinator that has all openings; some sites lie about their share of the first site's seed."""
    names = one.terms.sites
    deliveries = one.share(names, one.advertise(names))
    consents = one.sign(names, one.mask(names, deliveries, raw_updates(one.terms)))
    for site in names[:givers]:
        opening = Opening.from_bytes(one.sites[site].unmask(consents))
        if site in lies:
            opening = replace(opening, seeds=((0, lies[site]), *opening.seeds[1:]))
        one.coordinator.unmask(site, opening.to_bytes())
    return one.coordinator.total


@pytest.mark.parametrize("liar", range(5))
def test_a_wrong_share_does_no_harm_where_one_more_came_than_is_needed(liar: int) -> None:
    one = rehearsal(5)
    names = one.terms.sites
    opened(one, {names[liar]: bytes(shamir.SIZE)}, 5)()
    plain = rehearsal(5).run(raw_updates(one.terms))
    assert one.coordinator._words.tolist() == plain.words.tolist()


def test_a_wrong_share_is_told_where_no_more_came_than_are_needed() -> None:
    one = rehearsal(5)
    with pytest.raises(Refused, match="wrong share of a secret of site-0"):
        opened(one, {one.terms.sites[2]: bytes(shamir.SIZE)}, 4)()


def test_the_same_sums_come_from_all_ways_of_making_masks() -> None:
    results = set()
    for stream in (Keystream("ctr", 1), Keystream("ctr", 2)):
        one = rehearsal(4, 20, LARGE)
        one.coordinator._stream = stream
        for site in one.sites.values():
            site._stream = stream
        results.add(one.run(raw_updates(one.terms)).words.tobytes() + b"".join(one.uploads.values()))
    assert len(results) == 1


def test_a_sum_beyond_what_sites_can_send_is_refused() -> None:
    """A site that sends noise in place of an update: the sum of 4 x 255 x 20 levels is far below 2^31."""
    one = rehearsal(4)
    total = one.run(raw_updates(one.terms))
    with pytest.raises(Refused, match="no updates within their bounds have"):
        total.mean("delta")


@pytest.mark.parametrize("index", range(5))
def test_weights_beyond_what_sites_can_send_are_refused(index: int) -> None:
    one = rehearsal(4)
    updates = raw_updates(one.terms)
    updates[one.terms.sites[2]].scalars[index] = -5 % 2**64
    with pytest.raises(Refused, match="a sum of weights that no updates"):
        one.run(updates)


def test_a_mean_over_no_weight_is_refused() -> None:
    one = rehearsal(4)
    none = Update(one.terms.form, 4, np.zeros(37, "<u4"), np.zeros(8, np.uint64))
    with pytest.raises(Refused, match="weights are all 0"):
        one.run(dict.fromkeys(one.terms.sites, none)).mean("delta")


def peak(work: Callable[[], object]) -> int:
    """Bytes that were taken at once, above what was there before."""
    tracemalloc.start()
    work()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


@pytest.mark.parametrize("bits", RINGS)
def test_no_step_makes_another_vector_of_the_model_s_size(bits: int) -> None:
    """Rounding makes the ring's words; masking, adding and taking masks off make pieces of some megabytes."""
    size, some = 4_000_000, 6 << 20
    one = rehearsal(3, bits, (Segment("delta", size, "uniform", 1.0, 20),))
    names, vector, made = one.terms.sites, np.zeros(size, np.float32), list[Update]()
    work = partial(quantise, one.terms, {"delta": vector}, 5, {"loss": np.zeros(3, np.int64)}, bytes(32), STREAM)
    assert peak(lambda: made.append(work())) < size * word(bits).itemsize + some
    deliveries = one.share(names, one.advertise(names))
    for name in names:
        one.sites[name].receive(deliveries[name])
        pieces = one.sites[name].mask(made[0])
        upload = bytearray(Header.SIZE + 8 * len(made[0].scalars) + packed(size, bits))
        assert peak(partial(drain, pieces, upload)) < some
        assert peak(partial(one.coordinator.add, name, memoryview(upload))) < some
    consents = one.sign(names, one.coordinator.survivors())
    assert peak(lambda: one.unmask(names, consents)) < some


def drain(pieces: Iterable[bytes | memoryview], room: bytearray) -> None:
    at = 0
    for piece in pieces:
        room[at : at + len(piece)] = piece
        at += len(piece)
    assert at == len(room)


def test_a_round_without_parts_adds_its_scalars() -> None:
    """An evaluation: metric sums and nothing else."""
    one = rehearsal(4, parts=())
    numbers = dict(zip(one.terms.sites, ([1, -2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]), strict=True))
    sums = {site: {"loss": np.array(values)} for site, values in numbers.items()}
    updates = {s: quantise(one.terms, {}, 100, sums[s], bytes(32), STREAM) for s in one.terms.sites}
    total = one.run(updates, {one.terms.sites[1]: "mask"})
    assert total.sums["loss"].tolist() == [18, 17, 24]
    assert (total.rows, total.clipped) == (300, {})


def test_a_ring_s_sum_is_signed() -> None:
    one = rehearsal(4, 20)
    words, scalars = np.full(37, -3, np.int64).astype("<u4"), np.array([1, 0, 1, 0, 0, 0, 0, 0], "<u8")
    minus = Update(one.terms.form, 4, words, scalars)
    total = one.run(dict.fromkeys(one.terms.sites, minus))
    assert set(signed(total.words, 20).tolist()) == {-12}
