"""A clip that follows a quantile of the norms: where it goes, and what its bits cost."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from hansa.errors import UserError
from hansa.seeds import numpy_generator
from privacy.dp.adaptive import HALF, LEAST, MOST, Adaptive, bit
from privacy.dp.mechanism import Event
from privacy.dp.randomness import Stream
from privacy.dp.sitewise import PLAIN_STEPS, Clipping, Grid, SiteSum, clipped
from privacy.fixed_point import FixedPointSum
from privacy.secagg.keystream import Keystream
from privacy.secagg.packing import word
from privacy.secagg.quantise import quantise
from privacy.secagg.ring import Segment, most_levels
from privacy.secagg.terms import Terms
from privacy.secagg.total import Total

SITES, SIZE, MEDIAN, SPREAD = 50, 20, 3.0, 0.5
NAMES = tuple(f"s{number:02d}" for number in range(SITES))
WEIGHTS = dict.fromkeys(NAMES, 1)
Uploads = list[dict[str, Tensor]]


def uploads(round: int, clip: float) -> Uploads:
    """All sites' clipped updates with their bits: the norms are log-normal, of a known median."""
    random = numpy_generator(0, round, "norms")
    made = []
    for norm in MEDIAN * np.exp(SPREAD * random.standard_normal(SITES)):
        direction = random.standard_normal(SIZE)
        delta = torch.tensor(direction / np.linalg.norm(direction) * norm, dtype=torch.float32)
        clipping = clipped({"delta": delta}, clip)
        made.append({"delta": delta, "bit": torch.tensor([bit(clipping)])})
    return made


def plain(sent: Uploads, clip: float) -> tuple[dict[str, Tensor], Grid]:
    """Means as the server makes them without secure aggregation."""
    totals = {name: FixedPointSum(len(part), "uniform", SITES) for name, part in sent[0].items()}
    for upload in sent:
        for name, total in totals.items():
            total.add(upload[name], 1)
    return {name: total.mean(SITES) for name, total in totals.items()}, Grid(SIZE, PLAIN_STEPS["uniform"])


def rounded(sent: Uploads, clip: float) -> tuple[dict[str, Tensor], Grid]:
    """Means as secure aggregation makes them, in a ring of 16 bits; no value of an update is beyond its norm."""
    levels = most_levels(SITES, "uniform", 16)
    parts = (Segment("delta", SIZE, "uniform", clip, levels), Segment("bit", 1, "uniform", HALF, levels))
    terms = Terms("run", "train", 1, 1, 1, bytes(32), NAMES, SITES, bytes(32), 1, 16, parts, ())
    scalars = np.zeros(max(place.stop for place in terms.scalar_places.values()), np.uint64)
    words = np.zeros(terms.size, word(16))
    for number, upload in enumerate(sent):
        vectors = {name: part.numpy() for name, part in upload.items()}
        update = quantise(terms, vectors, 1, {}, bytes([number]) * 32, Keystream())
        words += update.words
        scalars += update.scalars
    total = Total(terms, NAMES, words, scalars)
    return {part.name: torch.from_numpy(total.mean(part.name)) for part in parts}, Grid.of(parts[0])


@pytest.mark.parametrize("way", [plain, rounded])
@pytest.mark.parametrize("factor", [0.01, 100])
@pytest.mark.parametrize("quantile", [0.5, 0.8])
def test_the_clip_comes_to_the_quantile_from_afar(way: type, factor: float, quantile: float) -> None:
    """From 100 times too small or too large, with the noise on updates and bits.

    All norms beyond the clip: it grows by exp(0.2 * 0.5) a round, so 100 times in 46 rounds for the median. Near the
    quantile the noise of a round's share is sqrt(0.5^2 / 50 + (2.5 / 50)^2) = 0.09, and C's logarithm wavers by some
    0.03: 1.3 (0.26) is beyond eight times that.
    """
    adaptive = Adaptive(SITES, noise_multiplier=1.0, quantile=quantile)
    truth = MEDIAN * math.exp(SPREAD * {0.5: 0.0, 0.8: 0.8416}[quantile])
    clip, seen = truth * factor, []
    for round in range(160):
        mean, grid = way(uploads(round, clip), clip)
        stream = Stream(round.to_bytes(32))
        release = SiteSum(clip, adaptive.update_multiplier, WEIGHTS, (grid,))
        noisy = release.noised({"delta": mean["delta"]}, stream)["delta"]
        assert not torch.equal(noisy, mean["delta"])
        share = mean["bit"].clone()
        stream.normal(share, adaptive.mean_bit_std(SITES))
        clip = adaptive.after(clip, float(share))
        seen.append(clip)
    assert all(truth / 1.3 < one < truth * 1.3 for one in seen[-20:])


@pytest.mark.parametrize("norm", [0.5, 2.0])
def test_a_clip_that_cuts_all_grows_and_one_that_cuts_none_shrinks(norm: float) -> None:
    """Seen elsewhere: 60 rounds in which all were clipped took it from 0.1 to 0.00025, the wrong way."""
    adaptive, clip = Adaptive(SITES, 1.0), 1.0
    mean_bit = bit(Clipping(norm, clip))
    for _ in range(60):
        clip = adaptive.after(clip, mean_bit)
    assert clip == pytest.approx(math.exp(60 * 0.2 * (0.5 if norm > 1 else -0.5)))


@given(st.floats(1e-3, 1e3), st.floats(0, 1), st.floats(0.05, 0.95))
def test_the_clip_stays_where_the_share_is_the_quantile(clip: float, share: float, quantile: float) -> None:
    adaptive = Adaptive(SITES, 1.0, quantile)
    assert adaptive.after(clip, quantile - HALF) == pytest.approx(clip)
    assert (adaptive.after(clip, share - HALF) < clip) == (share > quantile) or abs(share - quantile) < 1e-12


def test_the_clip_stays_a_number_that_a_sum_can_be_bound_by() -> None:
    adaptive = Adaptive(SITES, 1.0)
    assert adaptive.after(2 * LEAST, 1e4) == LEAST
    assert adaptive.after(MOST / 2, -1e4 / 3) == MOST


@given(st.integers(21, 10_000), st.floats(0.01, 0.99))
def test_updates_and_bits_together_have_the_round_s_noise(sites: int, share: float) -> None:
    """As one vector, whitened: a site moves the updates by 1 / z_D deviations and the bits by (1/2) / s_b."""
    adaptive = Adaptive(sites, share * sites / 10)
    moved = math.hypot(1 / adaptive.update_multiplier, HALF / adaptive.bit_std)
    assert moved == pytest.approx(1 / adaptive.noise_multiplier)
    assert adaptive.update_multiplier > adaptive.noise_multiplier
    assert adaptive.event == Event(adaptive.noise_multiplier, 1.0, 1)


def test_the_paper_s_noise_on_bits() -> None:
    """n / 20, and for 100 sites at z = 1: z_D = (1 - 10^-2)^(-1/2) = 1.00504."""
    adaptive = Adaptive(100, 1.0)
    assert adaptive.bit_std == 5
    assert adaptive.update_multiplier == pytest.approx(1.0050378)
    assert replace(adaptive, noise_multiplier=0.0).update_multiplier == 0.0


def test_few_sites_are_told_to_fix_the_clip() -> None:
    with pytest.raises(UserError) as error:
        Adaptive(20, 0.1)
    assert str(error.value) == (
        "[dp] adaptive: 20 sites a round are too few, the noise that hides one site's bit drowns the share of all; "
        "remove adaptive, and fix clip from a pilot"
    )
    Adaptive(21, 0.1)


def test_noise_that_the_bits_alone_do_not_have_is_refused() -> None:
    with pytest.raises(UserError) as error:
        Adaptive(50, 5.0)
    assert str(error.value) == (
        "[dp] adaptive: noise_multiplier 5 is not below 5, which is what the bits of 50 sites alone get; ask more "
        "sites a round, or remove adaptive, and fix clip from a pilot"
    )
