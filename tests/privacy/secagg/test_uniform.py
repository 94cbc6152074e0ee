"""An upload says nothing: it looks uniform, whatever it hides, and has nothing in common with another one.

All randomness is drawn from fixed seeds. What is measured is told in standard deviations of what chance would give; 5
of them have odds of one in 1.7 million.
"""

import math
import random

import numpy as np
import pytest
from numpy.typing import NDArray

from privacy.secagg.packing import packed, word
from privacy.secagg.quantise import Update
from privacy.secagg.rehearsal import Rehearsal
from privacy.secagg.ring import RINGS
from tests.privacy.secagg.attempts import LARGE, no_scalars, raw_updates, rehearsal, words_of

SIZE = LARGE[0].size


def chi_square(data: bytes) -> float:
    """By how much Pearson's chi-square of the 256 bytes is off its mean, 255 (its variance is 510)."""
    observed = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
    expected = len(data) / 256
    return abs(float(((observed - expected) ** 2).sum() / expected) - 255) / math.sqrt(510)


def correlation(one: NDArray[np.uint32], other: NDArray[np.uint32]) -> float:
    """Pearson's, over 1 / sqrt(count), its standard deviation for numbers that are independent."""
    return abs(float(np.corrcoef(one, other)[0, 1])) * math.sqrt(len(one))


def uploads(one: Rehearsal, updates: dict[str, Update] | None = None) -> list[NDArray[np.uint32]]:
    """The masked bulk of each site; by default all sites have the same update, of one number."""
    sevens = np.full(SIZE, 7, word(one.terms.bits))
    equal = Update(one.terms.form, len(one.terms.sites), sevens, no_scalars(one.terms))
    one.run(updates or dict.fromkeys(one.terms.sites, equal))
    return [words_of(one, upload)[1] for upload in one.uploads.values()]


def unrelated(one: NDArray[np.uint32], other: NDArray[np.uint32]) -> bool:
    """Neither their difference nor their correlation says anything."""
    return chi_square((one - other).tobytes()) < 5 and correlation(one, other) < 5


@pytest.mark.parametrize("bits", RINGS)
def test_an_upload_of_equal_numbers_is_uniform_by_chi_square(bits: int) -> None:
    """The worst case for a mask of one number (seen elsewhere): differences of neighbours must be uniform, too."""
    one = rehearsal(4, bits, LARGE)
    for bulk, upload in zip(uploads(one), one.uploads.values(), strict=True):
        assert chi_square(upload[-packed(SIZE, bits) :]) < 5
        assert chi_square(np.diff(bulk).astype("<u4").view(np.uint8).reshape(-1, 4)[:, :2].tobytes()) < 5


@pytest.mark.parametrize("bits", RINGS)
def test_an_upload_of_equal_numbers_has_no_serial_correlation(bits: int) -> None:
    """With the neighbour, with the next block of AES and later ones, and with the next chunk of a keystream."""
    for bulk in uploads(rehearsal(4, bits, LARGE)):
        for lag in (1, 2, 3, 4, 8, 16, 64, 256, 4096, 65536, 131072):
            assert correlation(bulk[:-lag], bulk[lag:]) < 5


def test_equal_updates_of_two_sites_are_unrelated_uploads() -> None:
    masked = uploads(rehearsal(4, 32, LARGE))
    assert all(unrelated(a, b) for i, a in enumerate(masked) for b in masked[:i])


@pytest.mark.parametrize(("round", "attempt"), [(2, 1), (1, 2)])
def test_masks_of_two_rounds_or_attempts_are_independent(round: int, attempt: int) -> None:
    """Seen elsewhere: masks foretold from another round. Here the very same randomness is drawn in both."""
    first, second = uploads(rehearsal(4, 32, LARGE)), uploads(rehearsal(4, 32, LARGE, round=round, attempt=attempt))
    assert all(unrelated(a, b) for a in first for b in second)


@pytest.mark.parametrize("changed", ["peer", "own"])
def test_one_other_key_makes_an_upload_another_one_everywhere(changed: str) -> None:
    """One peer draws another mask key, or the site another seed."""
    runs = []
    for salt in (b"", b"other"):
        one = rehearsal(4, 32, LARGE)
        who = one.terms.sites[1 if changed == "peer" else 0]
        one.sites[who]._random = random.Random(salt + who.encode()).randbytes
        runs.append(uploads(one)[0])
    assert unrelated(*runs)


def test_masks_do_not_depend_on_what_they_hide() -> None:
    """With the same keys and another update, an upload differs by just the difference of the updates.

    The upload is therefore x + m with an m of which x is no part; that m looks uniform is what the others hold.
    """
    runs = [rehearsal(4, 32, LARGE) for _ in range(2)]
    updates = [raw_updates(one.terms, seed) for seed, one in enumerate(runs)]
    for one, its in zip(runs, updates, strict=True):
        one.run(its)
    for site in runs[0].terms.sites:
        (s0, b0), (s1, b1) = (words_of(one, one.uploads[site]) for one in runs)
        assert np.array_equal(b1 - b0, updates[1][site].words - updates[0][site].words)
        assert np.array_equal(s1 - s0, updates[1][site].scalars - updates[0][site].scalars)


def test_less_than_all_masks_off_still_looks_uniform() -> None:
    """The sum as the server has it before anybody opens it."""
    one = rehearsal(4, 32, LARGE)
    names = one.terms.sites
    one.mask(names, one.share(names, one.advertise(names)), raw_updates(one.terms))
    assert chi_square(one.coordinator._words.tobytes()) < 5
