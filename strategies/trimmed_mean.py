"""A mean that a few sites cannot move far, whatever they send."""

import math
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from hansa.layout import chunks
from hansa.records import ServerState, Vectors
from strategies.base import Strategy

SORTED = 1 << 22  # values that are sorted at once


class TrimmedMean(Strategy):
    """Coordinate-wise trimmed mean (Yin et al., ICML 2018, definition 2): without the largest and the smallest updates.

    Of each number of the updates the largest and the smallest share `beta` of the sites are left out, rounded up; at
    least one or two in the middle stay. Sites weigh alike. The server holds all updates at once, n x P floats.
    """

    needs: ClassVar[Literal["sum", "each"]] = "each"
    beta: Annotated[float, Field(ge=0, lt=0.5)] = 0.2  # at least the share of sites that may send anything

    def step(self, state: ServerState, mean: Vectors, share: float) -> ServerState:
        """X <- x + trimmed mean of the updates."""
        n = len(mean["delta"])
        cut = math.ceil(self.beta * n - 1e-9)  # 0.1 * 30 is a little more than 3
        return replace(state, params=state.params + trimmed(mean["delta"], min(cut, (n - 1) // 2)))


def trimmed(rows_SP: Tensor, cut: int) -> Tensor:
    """The mean of each column without its `cut` smallest and `cut` largest values, [P]; the rows' order is no matter.

    Args:
        rows_SP: S rows, a site each.
        cut: less than S / 2.
    """
    n, size = rows_SP.shape
    result = torch.empty(size)
    for part in chunks(size, max(1, SORTED // n)):
        result[part] = rows_SP[:, part].sort(dim=0).values[cut : n - cut].mean(dim=0, dtype=torch.float64)
    return result
