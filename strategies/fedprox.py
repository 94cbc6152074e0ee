"""Federated averaging with a proximal term at the sites."""

from typing import Annotated

from pydantic import Field
from torch import Tensor

from hansa.records import Vectors
from strategies.base import Memory, Step, Strategy


class FedProx(Strategy):
    """FedProx (Li et al., MLSys 2020, eq. 2): adds mu/2 * ||w - w_t||^2 to the local loss."""

    mu: Annotated[float, Field(ge=0)] = 0.01

    def correct_grad(
        self, grad: Tensor, w: Tensor, anchor: Tensor, shared: Vectors, memory: Memory, step: Step
    ) -> Tensor:
        """The term's gradient, mu * (w - w_t), on top."""
        return grad + self.mu * (w - anchor)
