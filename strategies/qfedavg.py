"""Fairness among sites: those with a larger loss count for more."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from hansa.records import LocalRun, Part, ServerState, Upload, Vectors
from strategies.base import Local, Memory, Strategy

TINY = 1e-10  # a loss of 0 has no power below 0; as in the authors' code


class QFedAvg(Strategy):
    """q-FedAvg (Li et al., ICLR 2020, algorithm 2): minimises the sum of p_k / (q + 1) * F_k^(q + 1).

    With d_k the site's change and F_k its loss before: x <- x + sum(p_k * F_k^q * d_k) / sum(p_k * h_k / L), where
    h_k / L = q * F_k^(q - 1) * ||d_k||^2 * L + F_k^q, and the Lipschitz estimate L is 1 / lr. The weights p_k go by
    rows; q = 0 is FedAvg.
    """

    stateless: ClassVar[bool] = True
    q: Annotated[float, Field(ge=0)] = 1.0

    def parts(self, size: int, n_parameters: int) -> Mapping[str, Part]:
        """F_k^q * d_k, h_k / L, and the change of the buffers if there are any."""
        parts = {"delta": Part(n_parameters, "examples"), "scale": Part(1, "examples")}
        return parts | ({"buffers": Part(size - n_parameters, "examples")} if size > n_parameters else {})

    def step(self, state: ServerState, mean: Vectors, share: float) -> ServerState:
        """The sum of the sites' changes over that of their scales; buffers get their mean."""
        n, params = len(mean["delta"]), state.params.clone()
        params[:n].addcdiv_(mean["delta"], mean["scale"])
        if "buffers" in mean:
            params[n:] += mean["buffers"]
        return ServerState(params, state.counters)

    def local_update(self, model: nn.Module, batches: Iterable[Any], ctx: Local) -> tuple[LocalRun, Memory]:
        """One pass, after the loss of the model that came."""
        loss = ctx.train_loss(model)
        run = ctx.fit(model, batches)
        return replace(run, told={"loss": loss, "lr": float(ctx.hyper["lr"])}), ctx.memory

    def finish(self, run: LocalRun, shared: Vectors, memory: Memory) -> tuple[Upload, Memory]:
        """Weighs the change by the loss."""
        moved, buffers = run.delta[: run.n_parameters], run.delta[run.n_parameters :]
        loss = max(run.told["loss"], 0.0) + TINY
        square: Tensor = torch.linalg.vector_norm(moved, dtype=torch.float64).square()
        scale = self.q * loss ** (self.q - 1) * float(square) / run.told["lr"] + loss**self.q
        upload = {"delta": moved * loss**self.q, "scale": torch.tensor([scale], dtype=torch.float32)}
        return upload | ({"buffers": buffers} if len(buffers) else {}), memory
