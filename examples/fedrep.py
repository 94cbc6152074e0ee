"""FedRep: a shared body under a head of each site's own.

In a config:  [strategy]
              name = "fedrep.py:FedRep"
              local = ["head.*"]
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field
from torch import nn

from hansa import Strategy
from hansa.records import LocalRun, Part
from strategies.base import Local, Memory


class FedRep(Strategy):
    """FedRep (Collins et al., ICML 2021, algorithm 1): the sites agree on a body; the head, `local`, stays at home.

    A round is `head_passes` times [training]'s local work for the head, the body frozen, then once for the body under
    the new head. With epochs = 1 and head_passes = 10 these are the epochs of the paper's experiments.
    """

    local: Annotated[tuple[str, ...], Field(min_length=1)]  # name patterns of the head's tensors
    head_passes: Annotated[int, Field(ge=1)] = 10

    def parts(self, size: int, n_parameters: int) -> Mapping[str, Part]:
        """The change of the body; the paper's mean over sites is uniform."""
        return {"delta": Part(size, "uniform")}

    def local_update(self, model: nn.Module, batches: Iterable[Any], ctx: Local) -> tuple[LocalRun, Memory]:
        """First the head, from where it stood at this site, then the body."""
        for _ in range(self.head_passes):
            ctx.fit(model, batches, only=self.local)
        return ctx.fit(model, batches, without=self.local), ctx.memory
