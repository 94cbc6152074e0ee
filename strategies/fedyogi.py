"""Yogi at the server."""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from strategies.fedopt import FedOpt


class FedYogi(FedOpt):
    """FedYogi (Reddi et al., ICLR 2021, algorithm 2): v <- v - (1 - beta2) * d^2 * sign(v - d^2), d = mean(delta)."""

    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Forgets more slowly than Adam where v is large."""
        return v - (1 - self.beta2) * square * (v - square).sign()
