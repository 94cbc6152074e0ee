"""An update as whole numbers: clipped, weighted, rounded without bias; and the sum as floats again.

A value x of a part at weight w becomes w * x * levels / bound, in float64; then a fixed point with 32 bits behind it,
to which a coin of 32 bits is added before they are cut off. The expectation is exact to 2^-33 of a level, and to 2^-52
of the value, as float64 is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from privacy.secagg.keys import derive
from privacy.secagg.keystream import CHUNK, TAG, Fill, Key, Keystream, Words, scratch
from privacy.secagg.packing import word
from privacy.secagg.ring import WEIGHT_LEVELS, Segment
from privacy.secagg.terms import Terms

STEP = CHUNK // 4  # values that one chunk of coins is for
BLOCK = 1 << 14  # values whose float64 stay in the cache
FIXED = 2.0**32
COINS = b"hansa/secagg/coins/1"


class NotSummable(ValueError):
    """An update that cannot go into a sum: says which part of it, and why."""


@dataclass(frozen=True)
class Update:
    """A site's update in whole numbers, ready to be masked; it may be masked anew in another attempt.

    Args:
        form: `Terms.form` for which it was made.
        sites: over how many it may be summed.
        words: all parts, one after the other, in two's complement.
        scalars: as `Terms.scalar_places` has them; in Z_2^64.
    """

    form: object = field(repr=False)
    sites: int
    words: Words = field(repr=False)
    scalars: NDArray[np.uint64] = field(repr=False)


def weight_level(rows: int, most: int) -> int:
    """A site's weight as a small whole number: 255 for `most` rows or more, never 0 for a site that has any."""
    return -(-WEIGHT_LEVELS * min(rows, most) // most)


def quantise(
    terms: Terms,
    vectors: Mapping[str, NDArray[np.float32]],
    rows: int,
    sums: Mapping[str, NDArray[np.int64]],
    coins: bytes,
    stream: Keystream,
) -> Update:
    """A site's update in whole numbers.

    Args:
        terms: name the parts and the metric sums.
        vectors: [size] float32, by part.
        rows: training rows of the site: its weight.
        sums: metric sums in fixed point, by name (`privacy.fixed_point.to_fixed`).
        coins: 32 bytes, from which the rounding is drawn; fresh for each update.
        stream: how coins are made.

    Raises:
        NotSummable: a part is missing, or of another size or type, or not finite; a sum is too large.
    """
    words = np.empty(terms.size, word(terms.bits))
    clipped = []
    for part in terms.parts:
        vector = vectors.get(part.name)
        if vector is None or vector.shape != (part.size,) or vector.dtype != np.float32:
            raise NotSummable(f"part {part.name!r} is not {part.size} values of float32")
        key = Key(derive(coins, b"", COINS + part.name.encode(), 32))
        weight = weight_level(rows, terms.rows) if part.weight == "examples" else 1
        clipped.append(_round(vector, part, weight, words[terms.places[part.name]], stream, key))
    weighed = [weight_level(rows, terms.rows), rows > terms.rows, *clipped] if terms.parts else []
    own = np.array([rows, 0, *weighed], np.int64)
    return Update(terms.form, len(terms.sites), words, np.concatenate([own, *_sums(terms, sums)]).view(np.uint64))


def nothing(terms: Terms, weight: int | None = None) -> Update:
    """What a site gives that can give nothing: zeros at weight 0, and in the sum a 1 that says so of somebody.

    Args:
        terms: of the attempt.
        weight: rows for which the zeros are to count all the same; None: none.
    """
    places = terms.scalar_places
    scalars = np.zeros(max(place.stop for place in places.values()), np.uint64)
    scalars[places["absent"]] = weight is None
    if weight is not None:
        scalars[places["rows"]] = weight
        if terms.parts:
            scalars[places["weight"]] = weight_level(weight, terms.rows)
    return Update(terms.form, len(terms.sites), np.zeros(terms.size, word(terms.bits)), scalars)


def factor(part: Segment, weight: int) -> float:
    """By which a value is multiplied; no value within the bound comes out above weight * levels."""
    most = float(weight * part.levels)
    found = most / part.bound
    while part.bound * found > most:
        found = float(np.nextafter(found, 0.0))
    return found


def _sums(terms: Terms, sums: Mapping[str, NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    limit = (1 << 63) // len(terms.sites) - 1
    for scalar in terms.scalars:
        found = sums.get(scalar.name)
        if found is None or found.shape != (scalar.size,) or found.dtype != np.int64:
            raise NotSummable(f"metric {scalar.name!r} is not {scalar.size} numbers of int64")
        if len(found) and not -limit <= int(found.min()) <= int(found.max()) <= limit:
            raise NotSummable(f"metric {scalar.name!r} is too large to be summed over {len(terms.sites)} sites")
    return [sums[scalar.name] for scalar in terms.scalars]


def _round(vector: NDArray[np.float32], part: Segment, weight: int, out: Words, stream: Keystream, coins: Key) -> int:
    """Rounds a part into its words. Returns how many values were clipped."""
    scale, fill = factor(part, weight) * FIXED, stream.fill(coins)
    return sum(
        round_chunk(vector[start : start + STEP], start, part, scale, out[start : start + STEP], fill)
        for start in range(0, part.size, STEP)
    )


def round_chunk(chunk: NDArray[np.float32], start: int, part: Segment, scale: float, out: Words, fill: Fill) -> int:
    """Rounds at most STEP values of a part.

    Args:
        chunk: float32.
        start: its place in the part.
        part: says the bound.
        scale: `factor` of the part and the weight, times 2^32.
        out: gets the words.
        fill: writes coins.

    Returns:
        How many values were clipped.
    """
    room = scratch()[: 4 * len(chunk) + TAG]
    fill(start // STEP, room)
    coins, clipped = np.frombuffer(room, "<u4", len(chunk)), 0
    for at in range(0, len(chunk), BLOCK):
        block = chunk[at : at + BLOCK]
        values = block.astype(np.float64)
        if not max(float(block.max()), -float(block.min())) <= part.bound:  # a NaN is both
            clipped += _clip(values, start + at, part)
        fixed = np.rint(np.multiply(values, scale, out=values), out=values).astype("<i8")
        fixed += coins[at : at + BLOCK]
        per = 8 // out.itemsize
        out[at : at + BLOCK] = fixed.view(out.dtype)[per // 2 :: per]  # the low bits of what lies above the point
    return clipped


def _clip(values: NDArray[np.float64], start: int, part: Segment) -> int:
    if not np.isfinite(values).all():
        index = int(np.flatnonzero(~np.isfinite(values))[0])
        raise NotSummable(f"part {part.name!r} has {values[index]} at {start + index}")
    beyond = int(np.count_nonzero(np.abs(values) > part.bound))
    np.clip(values, -part.bound, part.bound, out=values)
    return beyond
