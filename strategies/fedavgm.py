"""Federated averaging with momentum at the server."""

from dataclasses import replace
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from hansa.records import ServerState, Vectors
from strategies.base import Strategy


class FedAvgM(Strategy):
    """FedAvgM (Hsu, Qi, Brown, 2019, section 4.3): v <- momentum * v + mean(delta); x <- x + server_lr * v.

    Buffers (BatchNorm's statistics) follow no gradient and get the mean.
    """

    server_lr: Annotated[float, Field(gt=0)] = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9

    def start(self, params: Tensor, counters: Tensor, n_parameters: int) -> ServerState:
        """The velocity v starts at zero, [N]."""
        return ServerState(params, counters, own={"velocity": torch.zeros(n_parameters)})

    def step(self, state: ServerState, mean: Vectors, share: float) -> ServerState:
        """As torch.optim.SGD with the gradient -mean(delta)."""
        delta, n = mean["delta"], len(state.own["velocity"])
        velocity = torch.add(delta[:n], state.own["velocity"], alpha=self.momentum)
        params = state.params + delta
        torch.add(state.params[:n], velocity, alpha=self.server_lr, out=params[:n])
        return replace(state, params=params, own={"velocity": velocity})
