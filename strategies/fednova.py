"""Normalised averaging: sites that do more local work do not pull the model to themselves."""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch.optim import SGD, Optimizer

from hansa.records import LocalRun, Part, ServerState, Upload, Vectors
from strategies.base import Memory, Strategy


class FedNova(Strategy):
    """FedNova (Wang et al., NeurIPS 2020, eq. 6): x <- x - sum(p_i * lr * ||a_i||_1) * sum(p_i * d_i), p_i by rows.

    d_i is the site's mean gradient: its change, the other way, over lr * ||a_i||_1, which is what constant gradients of
    1 would have moved, momentum and a changing lr included (`LocalRun.lr_sum`).
    """

    stateless: ClassVar[bool] = True
    optimizers: ClassVar[tuple[type[Optimizer], ...]] = (SGD,)

    def parts(self, size: int, n_parameters: int) -> Mapping[str, Part]:
        """-d_i, lr * ||a_i||_1, and the change of the buffers if there are any."""
        parts = {"direction": Part(n_parameters, "examples"), "moved": Part(1, "examples")}
        return parts | ({"buffers": Part(size - n_parameters, "examples")} if size > n_parameters else {})

    def step(self, state: ServerState, mean: Vectors, share: float) -> ServerState:
        """Goes along the mean direction as far as the sites went in the mean."""
        n, params = len(mean["direction"]), state.params.clone()
        params[:n].addcmul_(mean["direction"], mean["moved"])
        if "buffers" in mean:
            params[n:] += mean["buffers"]
        return ServerState(params, state.counters)

    def finish(self, run: LocalRun, shared: Vectors, memory: Memory) -> tuple[Upload, Memory]:
        """Divides the change by how far a constant gradient of 1 would have moved."""
        direction, buffers = run.delta[: run.n_parameters] / run.lr_sum, run.delta[run.n_parameters :]
        upload = {"direction": direction, "moved": torch.tensor([run.lr_sum])}
        return upload | ({"buffers": buffers} if len(buffers) else {}), memory
