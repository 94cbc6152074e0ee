"""Stochastic controlled averaging."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.optim import SGD, Optimizer

from hansa.records import LocalRun, Part, ServerState, Upload, Vectors
from strategies.base import Memory, Step, Strategy


class Scaffold(Strategy):
    """SCAFFOLD (Karimireddy et al., ICML 2020, algorithm 1, option II).

    Under momentum K * lr becomes what K gradients of 1 would have moved (FedNova's lr * ||a||_1, Wang et al., NeurIPS
    2020). The control variates stay gradients then, the correction acts with gain 1, and the fixed point is where the
    mean gradient is zero, as without momentum. Divided by the bare K * lr they would be up to 1/(1 - momentum) times
    too large and diverge.
    """

    optimizers: ClassVar[tuple[type[Optimizer], ...]] = (SGD,)
    server_lr: Annotated[float, Field(gt=0)] = 1.0
    weight: Literal["uniform", "examples"] = "uniform"  # the paper's mean is uniform

    def start(self, params: Tensor, counters: Tensor, n_parameters: int) -> ServerState:
        """The server's control variate c starts at zero, [N]."""
        return ServerState(params, counters, {"control": torch.zeros(n_parameters)})

    def parts(self, size: int, n_parameters: int) -> Mapping[str, Part]:
        """The update, and the change of the site's control variate."""
        return {"delta": Part(size, self.weight), "control": Part(n_parameters, self.weight)}

    def step(self, state: ServerState, mean: Vectors, share: float) -> ServerState:
        """X <- x + server_lr * mean(delta x); c <- c + |S|/N * mean(delta c) (eq. 5)."""
        params = state.params + self.server_lr * mean["delta"]
        control = state.shared["control"] + share * mean["control"]
        return ServerState(params, state.counters, {"control": control})

    def correct_grad(
        self, grad: Tensor, w: Tensor, anchor: Tensor, shared: Vectors, memory: Memory, step: Step
    ) -> Tensor:
        """Adds c - c_i (eq. 3)."""
        grad = grad + shared["control"]
        return grad - memory["control"] if "control" in memory else grad

    def finish(self, run: LocalRun, shared: Vectors, memory: Memory) -> tuple[Upload, Memory]:
        """c_i+ = c_i - c + (x - y_i) / (K lr): option II."""
        control = shared["control"]
        own = memory.get("control", torch.zeros_like(control))
        change = -control - run.delta[: len(control)] / run.lr_sum
        return {"delta": run.delta, "control": change}, {**memory, "control": own + change}
