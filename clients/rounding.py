"""How what a site has trained becomes the whole numbers that are summed: floats, rows, metric sums, counters."""

import json
import math
import mmap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clients.ground import Ground
from hansa.errors import UserError
from hansa.records import Part
from hansa.wire.link_pb2 import Plan, Result
from hansa.wire.secure import has
from privacy.dp.terms import public_weight
from privacy.scalars import whole
from privacy.secagg.quantise import Update, quantise
from privacy.secagg.terms import Terms
from privacy.secure import COUNTERS

Shapes = tuple[tuple[str, tuple[int, ...]], ...]  # of metric sums, by name


class Rounding:
    """Of one run.

    Args:
        ground: of the site in it.
    """

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self._left_out: set[str] = set()  # metrics that were told to be so

    def update(self, plan: Plan, terms: Terms, result: Result, parts: Mapping[str, Part], upload: Path) -> Update:
        """What the training process answered, as an attempt's terms have it.

        Args:
            plan: that it answered.
            terms: of the attempt.
            result: its floats, if they are few.
            parts: the order of its floats; integers follow.
            upload: the file of its floats, if they are many.

        Raises:
            NotSummable: it is not finite, or not of the terms' shape.
        """
        data = _data(result, upload)
        vectors, at = {}, 0
        for name, part in parts.items() if terms.parts else ():
            vectors[name], at = np.frombuffer(data, "<f4", part.size, at), at + 4 * part.size
        counters = np.frombuffer(data, "u1")[at:].view("<i8").astype(np.int64)
        sums = self._sums(terms, result, counters)
        return quantise(terms, vectors, result.examples, sums, self.ground.coins(plan), self.ground.stream)

    def _sums(self, terms: Terms, result: Result, counters: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """The sums that the terms name: zeros for those that the site has not; those that they do not name stay."""
        given = {one.name: np.array(one.values) for one in result.sums}
        found: dict[str, NDArray[np.int64]] = {}
        for scalar in terms.scalars:
            if scalar.name == COUNTERS:
                found[scalar.name] = counters
                continue
            values = given.pop(scalar.name, np.zeros(scalar.size))
            numbers = whole(values, len(terms.sites)) if len(values) == scalar.size else None
            if numbers is None:
                self._say_once(scalar.name, "is of another shape, not finite or too large; zeros go in its place")
            found[scalar.name] = np.zeros(scalar.size, np.int64) if numbers is None else numbers
        for name in given:
            self._say_once(name, "is not among those that the sites told when they came; it stays here")
        return found

    def _say_once(self, name: str, what: str) -> None:
        if name not in self._left_out:
            self._left_out.add(name)
            self.ground.say(f"metric {name!r} {what}")


def metrics_of(terms: Terms, plan: Plan, start: str, sums: Shapes) -> list[int]:
    """Which of the terms' metric sums a site has that starts from a version of memory; by their places."""
    sizes = {name: math.prod(shape) for name, shape in sums if has(name, start)}
    if plan.kind == "train":
        sizes |= {scalar.name: scalar.size for scalar in terms.scalars if scalar.name == COUNTERS}
    return [at for at, one in enumerate(terms.scalars) if sizes.get(one.name) == one.size]


def weight_of_zeros(plan: Plan, site: str) -> int | None:
    """The weight at which a site's zeros count; None: they count for nothing."""
    try:
        return public_weight(json.loads(plan.hyper), site)
    except (UserError, ValueError, TypeError, RecursionError):
        return None  # no terms that anybody could train by


def _data(result: Result, upload: Path) -> Any:
    """The bytes of an unmasked upload."""
    if result.upload.data or not upload.exists():
        return result.upload.data
    with open(upload, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
