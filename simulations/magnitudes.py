"""How large the values of simulated updates are, and how many rows a site has: what bounds are chosen by."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from hansa.layout import Layout
from hansa.records import Plan, Reply

MANTISSA = 4  # bits of a float32's by which bins are told apart: each is 4 to 6% wider than the one before
SHIFT = 23 - MANTISSA
INFINITE = 0x7F800000 >> SHIFT  # the first bin of what is not finite
CHUNK = 1 << 18  # values counted at once


@dataclass
class Magnitudes:
    """Counts of |value| over sites, rounds and runs, for each tensor of each part by itself.

    A part's tensors may be of very different sizes (BatchNorm's running variances beside weights), and few of the
    large ones: a quantile over the whole part would cut just these.

    Args:
        layout: of the shared model.
    """

    layout: Layout
    counts: dict[tuple[str, str], NDArray[np.int64]] = field(default_factory=dict)  # of a part and a tensor, by bin
    rows: int = 0  # of the largest site

    def watch(self, plan: Plan, reply: Reply) -> None:
        """Counts a site's answer."""
        if plan.kind != "train":
            return
        self.rows = max(self.rows, reply.examples)
        for part, vector in reply.upload.items():
            for name, tensor in self._tensors(vector):
                counts = self.counts.setdefault((part, name), np.zeros(INFINITE, np.int64))
                counts += _counted(tensor)

    def bounds(self, quantile: float, margin: float) -> Mapping[str, float]:
        """By part: the largest of its tensors' quantiles, times a margin, rounded up to two digits."""
        found: dict[str, float] = {}
        for (part, _), counts in self.counts.items():
            found[part] = max(found.get(part, 0.0), _quantile(counts, quantile))
        return {part: rounded_up(margin * edge) if edge else 1.0 for part, edge in found.items()}

    def _tensors(self, vector: Tensor) -> Iterator[tuple[str, Tensor]]:
        """The tensors of a vector that has a place for each shared float, or parameter; else the vector is one."""
        entries = {self.layout.size: self.layout.floats, self.layout.n_parameters: self.layout.parameters}
        for entry in entries.get(len(vector), ()):
            yield entry.name, entry.of(vector)
        if len(vector) not in entries:
            yield "", vector


def rounded_up(value: float) -> float:
    """To two significant digits."""
    step = 10.0 ** (math.floor(math.log10(value)) - 1)
    return float(f"{math.ceil(value / step - 1e-9) * step:.2g}")


def _counted(tensor: Tensor) -> NDArray[np.int64]:
    """How many values fall into each bin of magnitude; those that are not finite are left out."""
    bits, counts = tensor.detach().reshape(-1).numpy().view(np.int32), np.zeros(INFINITE, np.int64)
    for start in range(0, len(bits), CHUNK):
        bins = (bits[start : start + CHUNK] & 0x7FFFFFFF) >> SHIFT
        counts += np.bincount(bins[bins < INFINITE], minlength=INFINITE)
    return counts


def _quantile(counts: NDArray[np.int64], quantile: float) -> float:
    """The upper edge of the bin in which it lies; 0 where there are no values but 0."""
    if not counts[1:].any():
        return 0.0
    number = int(np.searchsorted(counts.cumsum(), quantile * counts.sum()))
    return float(np.array([(number + 1) << SHIFT], np.int32).view(np.float32)[0])
