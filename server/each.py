"""Every site's vector by itself, for a strategy that must see single updates: it costs n x P floats of memory."""

from collections.abc import Sequence

import torch
from torch import Tensor


class Each:
    """A row for each site that was asked, [n, size] float32, in the order of their names.

    Args:
        size: of a vector.
        sites: that were asked.
    """

    def __init__(self, size: int, sites: Sequence[str]) -> None:
        self.place = {site: place for place, site in enumerate(sorted(sites))}
        self.total = torch.zeros(len(self.place), size)  # pages that no site fills take no memory

    def add(self, vector: Tensor, site: str) -> None:
        """Puts a site's vector, which was checked, into its row."""
        self.total[self.place[site]] = vector

    def of(self, sites: Sequence[str]) -> Tensor:
        """The rows of some sites, sorted by name; a copy, unless it is all of them."""
        rows = [self.place[site] for site in sorted(sites)]
        return self.total if len(rows) == len(self.place) else self.total[rows]
