"""A new strategy in one file: server momentum, against FedAvg on digits whose labels are spread unevenly.

Run it:       python examples/custom_strategy.py
In a config:  [strategy]
              name = "custom_strategy.py:FedAvgM"
              beta = 0.9
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

import hansa
from hansa.records import ServerState, Vectors
from simulations.datasets.digits import Digits
from simulations.history import History
from simulations.partition import Dirichlet
from strategies.fedavg import FedAvg


class FedAvgM(hansa.Strategy):
    """FedAvgM (Hsu, Qi, Brown 2019, arXiv:1909.06335, section 4.2): v <- beta * v + delta; x <- x + v."""

    beta: Annotated[float, Field(ge=0, lt=1)] = 0.9

    def start(self, params: Tensor, counters: Tensor, n_parameters: int) -> ServerState:
        """The velocity v starts at zero, [N]: momentum is for parameters; BatchNorm's statistics just get the mean."""
        return ServerState(params, counters, own={"velocity": torch.zeros(n_parameters)})

    def step(self, state: ServerState, mean: Vectors, share: float) -> ServerState:
        """One step of the server's momentum."""
        n = len(state.own["velocity"])
        velocity = self.beta * state.own["velocity"] + mean["delta"][:n]
        move = torch.cat([velocity, mean["delta"][n:]])
        return ServerState(state.params + move, state.counters, own={"velocity": velocity})


class Digit(hansa.Task):
    """A small network for images of 8 x 8 pixels."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def run(strategy: hansa.Strategy, rounds: int) -> History:
    """Ten sites, each with a few of the digits only."""
    return hansa.simulate(
        Digit(),
        strategy=strategy,
        dataset=Digits(),
        partition=Dirichlet(sites=10, alpha=0.1),
        training={"epochs": 2, "batch_size": 16, "lr": 0.1},
        rounds=rounds,
    )


def main(rounds: int = 15) -> None:
    curves = {type(s).__name__: run(s, rounds).curve("accuracy") for s in (FedAvg(), FedAvgM())}
    print("round  " + "  ".join(f"{name:>8}" for name in curves))
    for number in curves["FedAvg"].index:
        print(f"{number:>5}  " + "  ".join(f"{curve[number]:8.3f}" for curve in curves.values()))


if __name__ == "__main__":
    main()
