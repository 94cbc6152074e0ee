"""Whole attempts for tests: terms, updates of any numbers, and what an upload holds."""

import random
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from privacy.secagg.keystream import Keystream
from privacy.secagg.messages import Header
from privacy.secagg.packing import packed, unpack, word
from privacy.secagg.quantise import Update
from privacy.secagg.rehearsal import Rehearsal, founded
from privacy.secagg.ring import Segment
from privacy.secagg.terms import Scalars, Terms, roster_digest, threshold

STREAM = Keystream()
LARGE = (Segment("delta", 150_000, "examples", 1.0, 20),)  # more than a chunk of a keystream
PARTS = (Segment("delta", 37, "examples", 1.0, 20),)


def rehearsal(
    n: int = 4,
    bits: int = 32,
    parts: tuple[Segment, ...] = PARTS,
    t: int | None = None,
    randbytes: Callable[[int], bytes] | None = None,
    attempt: int = 1,
    scalars: tuple[Scalars, ...] = (Scalars("loss", 3),),
    round: int = 1,
) -> Rehearsal:
    """An attempt of n sites."""
    names = [f"site-{number:02d}" for number in range(n)]
    roster, keys = founded(names, random.Random(99).randbytes)
    known, t = roster_digest(roster, names), t or threshold(n)
    terms = Terms("run", "train", 1, round, attempt, known, tuple(names), t, bytes(32), 1000, bits, parts, scalars)
    return Rehearsal(terms, roster, keys, randbytes or random.Random(n).randbytes, STREAM)


def raw_updates(terms: Terms, seed: int = 5) -> dict[str, Update]:
    """Any numbers of the ring: the sum law asks for no bounds. Rows, weights and counts must be possible."""
    rng, updates = np.random.default_rng(seed), {}
    for site in terms.sites:
        words = rng.integers(0, 2**terms.bits, terms.size).astype(word(terms.bits))
        scalars = no_scalars(terms)
        for name, place in terms.scalar_places.items():
            if name.startswith("sum "):
                scalars[place] = rng.integers(0, 2**64, place.stop - place.start, np.uint64)
            elif name in ("rows", "weight", "heavy"):
                scalars[place] = rng.integers(0, 2)
        updates[site] = Update(terms.form, len(terms.sites), words, scalars)
    return updates


def no_scalars(terms: Terms) -> NDArray[np.uint64]:
    """Of a site without rows, and with zeros for its metrics."""
    return np.zeros(max(place.stop for place in terms.scalar_places.values()), np.uint64)


def words_of(one: Rehearsal, upload: bytes) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
    """The scalars and the bulk of an upload, still masked."""
    start = Header.SIZE + 8 * max(place.stop for place in one.terms.scalar_places.values())
    bulk = unpack(memoryview(upload)[start:], one.terms.size, one.terms.bits)
    assert len(upload) == start + packed(one.terms.size, one.terms.bits)
    return np.frombuffer(upload[Header.SIZE : start], "<u8"), bulk
