"""Local batch normalisation, where sites' inputs differ: other scanners, other populations."""

from typing import Annotated

from pydantic import Field

from strategies.base import Strategy


class FedBN(Strategy):
    """FedBN (Li et al., ICLR 2021, algorithm 1): FedAvg, but weights and statistics of BatchNorm stay at each site.

    A site that was in no round has those of the initial model.
    """

    local: Annotated[tuple[str, ...], Field(min_length=1)] = ("<*BatchNorm*>",)
