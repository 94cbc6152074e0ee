"""One model that goes from site to site."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from hansa.records import ServerState, Vectors
from strategies.base import Strategy

if TYPE_CHECKING:
    from hansa.config import Config


class Cyclic(Strategy):
    """Cyclic weight transfer (Chang et al., JAMIA 2018): in each round one site trains on, where the one before ended.

    The sites take turns in the order of their names; n rounds are a cycle. One that gives nothing is passed over.
    """

    needs: ClassVar[Literal["sum", "each"]] = "each"

    def check(self, config: "Config") -> Iterator[str]:
        """What [rounds] says of sites, which here take turns."""
        yield from super().check(config)
        for key in ("sites_per_round", "quorum"):
            if getattr(config["rounds"], key) not in (1, 1.0):
                yield f"Cyclic: one site is asked in each round, in turn; remove [rounds] {key}"

    def asks(self, sites: Sequence[str], round: int) -> Sequence[str]:
        """The one whose turn it is."""
        return [sites[(round - 1) % len(sites)]]

    def step(self, state: ServerState, mean: Vectors, share: float) -> ServerState:
        """The site's model is the next one's start."""
        return replace(state, params=state.params + mean["delta"][0])
