"""Adam at the server."""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from strategies.fedopt import FedOpt


class FedAdam(FedOpt):
    """FedAdam (Reddi et al., ICLR 2021, algorithm 2): v <- beta2 * v + (1 - beta2) * mean(delta)^2."""

    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.99

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Forgets what is long past."""
        return torch.lerp(v, square, 1 - self.beta2)
