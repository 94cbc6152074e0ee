"""What the adaptive server optimisers have in common."""

from abc import abstractmethod
from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from hansa.records import ServerState, Vectors
from strategies.base import Strategy


class FedOpt(Strategy):
    """FedOpt (Reddi et al., ICLR 2021, algorithm 2): the mean of the sites' updates is a gradient for an optimiser.

    m <- beta1 * m + (1 - beta1) * mean(delta); x <- x + server_lr * m / (sqrt(v) + tau). What v is, the optimisers
    differ in. There is no bias correction, and v starts at tau^2. Buffers (BatchNorm's statistics) follow no gradient
    and get the mean.
    """

    server_lr: Annotated[float, Field(gt=0)] = 0.01  # the paper searches 0.001 to 10
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    tau: Annotated[float, Field(gt=0)] = 0.001  # how adaptive: the larger, the nearer to momentum alone

    def start(self, params: Tensor, counters: Tensor, n_parameters: int) -> ServerState:
        """The moments m and v, [N]."""
        own = {"m": torch.zeros(n_parameters), "v": torch.full((n_parameters,), self.tau**2)}
        return ServerState(params, counters, own=own)

    @abstractmethod
    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """The next v, from the square of mean(delta); all [N]."""

    def step(self, state: ServerState, mean: Vectors, share: float) -> ServerState:
        """Moves the parameters by the optimiser, the buffers to their mean."""
        n, delta = len(state.own["m"]), mean["delta"]
        m = torch.lerp(state.own["m"], delta[:n], 1 - self.beta1)
        v = self.second(state.own["v"], delta[:n].square())
        params = state.params + delta
        torch.addcdiv(state.params[:n], m, v.sqrt().add_(self.tau), value=self.server_lr, out=params[:n])
        return replace(state, params=params, own={"m": m, "v": v})
