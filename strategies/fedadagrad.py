"""Adagrad at the server."""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from strategies.fedopt import FedOpt


class FedAdagrad(FedOpt):
    """FedAdagrad (Reddi et al., ICLR 2021, algorithm 2): v <- v + mean(delta)^2."""

    server_lr: Annotated[float, Field(gt=0)] = 0.1  # v only grows
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.0  # as in the paper's experiments

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Forgets nothing."""
        return v + square
