"""Sites whose losses are quadratics, so that every step can be worked out by hand.

Site k minimises curvature_k / 2 * (w - optimum_k)^2 over rows that are all alike.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from hansa.task import Dataset, Site, Task
from simulations.api import simulate
from strategies.base import Strategy


class Point(nn.Module):
    """One parameter w; the output for a row (curvature, optimum) is the row's loss."""

    def __init__(self, start: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([start]))

    def forward(self, rows: Tensor) -> Tensor:
        """[B, 2] -> [B]."""
        curvature, optimum = rows.unbind(1)
        loss: Tensor = curvature / 2 * (self.w - optimum).square()
        return loss


class Quadratics(Task):
    """Rows, curvature and optimum by site."""

    kind = "regression"

    def __init__(self, sites: Mapping[str, tuple[int, float, float]], start: float = 0.0) -> None:
        self.sites, self.start = sites, start

    def model(self) -> nn.Module:
        return Point(self.start)

    def train_data(self, site: Site) -> Dataset:
        rows, curvature, optimum = self.sites[site.name]
        return TensorDataset(torch.tensor([[curvature, optimum]]).repeat(rows, 1), torch.zeros(rows))

    def valid_data(self, site: Site) -> None:
        return None

    def test_data(self, site: Site) -> Dataset:
        return self.train_data(site)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return output.mean()

    def metrics(self, output: Any, target: Any) -> dict[str, tuple[float, float]]:
        return {}


def final(task: Task, strategy: Strategy, rounds: int, **training: Any) -> float:
    """The parameter after some rounds at the sites "a" and "b"."""
    return float(simulate(task, sites=["a", "b"], strategy=strategy, rounds=rounds, training=training).state.params)


# Two sites whose optima lie on two sides, and the optimum of their mean loss.
TWO_SIDED = Quadratics({"a": (1, 1.0, 10.0), "b": (1, 4.0, -5.0)}, start=3.0)
OPTIMUM = (1.0 * 10.0 + 4.0 * -5.0) / (1.0 + 4.0)
