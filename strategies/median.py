"""The median of the sites' updates, number by number."""

from dataclasses import replace
from typing import ClassVar, Literal

from hansa.records import ServerState, Vectors
from strategies.base import Strategy
from strategies.trimmed_mean import trimmed


class Median(Strategy):
    """Coordinate-wise median (Yin et al., ICML 2018, definition 1); of an even number, the mean of the middle two.

    Fewer than half of the sites cannot move a number beyond those of the others. Sites weigh alike. The server holds
    all updates at once, n x P floats.
    """

    needs: ClassVar[Literal["sum", "each"]] = "each"

    def step(self, state: ServerState, mean: Vectors, share: float) -> ServerState:
        """X <- x + median of the updates."""
        middle = (len(mean["delta"]) - 1) // 2
        return replace(state, params=state.params + trimmed(mean["delta"], middle))
