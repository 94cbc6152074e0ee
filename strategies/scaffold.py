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

    Plain SGD gets the correction c - c_i in its gradient (eq. 3). Under momentum that correction would be amplified
    and diverges; there the parameter moves by -lr * (c - c_i) after the step, and c_i is the mean momentum direction.
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
        """Adds c - c_i, without momentum."""
        return grad if step.momentum else grad + _drift(shared, memory)

    def after_step(self, w: Tensor, anchor: Tensor, shared: Vectors, memory: Memory, step: Step) -> Tensor:
        """Moves by -lr * (c - c_i), under momentum."""
        return w - step.lr * _drift(shared, memory) if step.momentum else w

    def finish(self, run: LocalRun, shared: Vectors, memory: Memory) -> tuple[Upload, Memory]:
        """c_i+ = c_i - c + (x - y_i) / (K lr): option II, K lr being the sum of the learning rates of the steps."""
        control = shared["control"]
        own = memory.get("control", torch.zeros_like(control))
        change = -control - run.delta[: len(control)] / run.lr_sum
        return {"delta": run.delta, "control": change}, {**memory, "control": own + change}


def _drift(shared: Vectors, memory: Memory) -> Tensor:
    control = shared["control"]
    return control - memory["control"] if "control" in memory else control
