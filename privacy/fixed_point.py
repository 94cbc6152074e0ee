"""Sums over sites in whole numbers: the order of arrival never changes a bit, and masks will cancel exactly.

A float32 value x at weight w counts as round(w * x * 2^s), in int64. The product w * x has at most 53 significant bits
for weights below 2^29, so that float64 holds it exactly and rounding is the only error: 2^-(s+1) a site, which a mean
divides by the total weight.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from hansa.layout import chunks
from privacy.scalars import SCALAR_BITS, in_range

FRACTION_BITS = {"examples": 32, "uniform": 44}  # s, by kind of weight: rows run into millions, uniform weights are 1
PIECE = 1 << 16  # floats that are added at once


class Overflow(ArithmeticError):
    """A vector too large for the sum: it would not fit beside those of the other sites."""


class FixedPointSum:
    """A running sum of one part of the uploads, [size] int64."""

    def __init__(self, size: int, weight: Literal["examples", "uniform"], sites: int) -> None:
        self.scale = 2.0 ** FRACTION_BITS[weight]
        self.limit = 2.0**62 / sites  # each of the sites stays below it, so that no sum of them can wrap
        self.total = torch.zeros(size, dtype=torch.int64)
        # Memory that is allocated anew for each product costs more than the product.
        self._product = torch.empty(min(size, PIECE), dtype=torch.float64)
        self._whole = torch.empty(min(size, PIECE), dtype=torch.int64)

    def check(self, vector: Tensor, weight: int) -> None:
        """Raises Overflow when weight * vector is too large to be added beside the other sites'."""
        largest = float(torch.stack(torch.aminmax(vector)).abs().amax()) if len(vector) else 0.0
        if not largest * weight * self.scale < self.limit:
            raise Overflow(f"an update of {largest:.3g} at weight {weight} is too large to be summed")

    def add(self, vector: Tensor, weight: int) -> None:
        """Adds weight * vector ([size] float32), which was checked."""
        for part in chunks(len(vector), PIECE):
            product, whole = (one[: part.stop - part.start] for one in (self._product, self._whole))
            product.copy_(vector[part]).mul_(weight * self.scale).round_()
            self.total[part] += whole.copy_(product)

    def mean(self, weight: int) -> Tensor:
        """The sum over a total weight, [size] float32."""
        result = torch.empty(len(self.total))
        for part in chunks(len(self.total)):
            result[part] = self.total[part].double().div_(weight * self.scale)
        return result


def to_fixed(sums: Tensor, sites: int) -> Tensor:
    """Metric sums as int64 that may be added over `sites` sites.

    Raises:
        Overflow: a value is not finite or too large.
    """
    scaled = sums.double() * 2.0**SCALAR_BITS
    if not in_range(scaled.numpy(), sites):
        raise Overflow("not finite or too large to be summed")
    return scaled.round().long()


def from_fixed(total: Tensor) -> Tensor:
    """Metric sums in float64 again."""
    return total.double() * math.ldexp(1.0, -SCALAR_BITS)
