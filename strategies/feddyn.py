"""Dynamic regularisation: what every site minimises is changed until all agree on the optimum of the whole."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.optim import SGD, Optimizer

from hansa.records import LocalRun, Part, ServerState, Upload, Vectors
from strategies.base import Memory, Step, Strategy


class FedDyn(Strategy):
    """FedDyn (Acar et al., ICLR 2021, algorithm 1): adds -<g_k, w> + alpha/2 * ||w - w_t||^2 to the local loss.

    g_k, the site's memory, is the gradient of its loss where its last round ended. A site that takes no part keeps it.
    The mean over sites is uniform.
    """

    optimizers: ClassVar[tuple[type[Optimizer], ...]] = (SGD,)
    alpha: Annotated[float, Field(gt=0)] = 0.01

    def start(self, params: Tensor, counters: Tensor, n_parameters: int) -> ServerState:
        """The server's h starts at zero, [N]: it is the mean of g_k over all sites."""
        return ServerState(params, counters, own={"h": torch.zeros(n_parameters)})

    def parts(self, size: int, n_parameters: int) -> Mapping[str, Part]:
        """The update."""
        return {"delta": Part(size, "uniform")}

    def step(self, state: ServerState, mean: Vectors, share: float) -> ServerState:
        """H <- h - alpha * |S|/N * mean(delta); x <- mean of the sites' models - h / alpha."""
        h, delta = state.own["h"], mean["delta"]
        h = torch.add(h, delta[: len(h)], alpha=-self.alpha * share)
        params = state.params + delta
        params[: len(h)].sub_(h, alpha=1 / self.alpha)
        return ServerState(params, state.counters, own={"h": h})

    def correct_grad(
        self, grad: Tensor, w: Tensor, anchor: Tensor, shared: Vectors, memory: Memory, step: Step
    ) -> Tensor:
        """The terms' gradient on top: -g_k + alpha * (w - w_t)."""
        grad = grad + self.alpha * (w - anchor)
        return grad - memory["gradient"] if "gradient" in memory else grad

    def finish(self, run: LocalRun, shared: Vectors, memory: Memory) -> tuple[Upload, Memory]:
        """g_k <- g_k - alpha * (w - w_t), the gradient where the changed loss is least."""
        change = run.delta[: run.n_parameters] * -self.alpha
        own = memory["gradient"] + change if "gradient" in memory else change
        return {"delta": run.delta}, {**memory, "gradient": own}
