"""The work that Hansa and its peers do: the same rows in the same order, from the same weights.

(a) an MLP 64-200-10 on 1000 sites of 20 to 100 rows, 50 a round, batches of 10; (b) the CNN of McMahan et al.
    (AISTATS 2017), 1,663,370 parameters, on 100 sites of 100 rows, 10 a round, batches of 20. One epoch of plain SGD at
    0.1, FedAvg weighted by rows.

A visit is a site in a round. Which sites a round has and how a site shuffles its rows, Hansa draws as it runs; the
peers get each visit's rows laid out in that order, so that they have neither to draw nor to gather.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Work:
    """What a workload is made of."""

    sites: int
    cohort: int  # sites a round
    rounds: int  # the first is not timed
    batch_size: int
    lr: float = 0.1
    seed: int = 1


WORK = {"a": Work(1000, 50, 31, 10), "b": Work(100, 10, 6, 20)}


class Visits:
    """What a peer has to do, from the file that simulation.py wrote."""

    def __init__(self, path: str | Path) -> None:
        with np.load(path) as file:
            self.name = str(file["name"])
            self.X, self.y, self.start = file["X"], file["y"], file["start"]
            self.weights = [file[f"w{i}"] for i in range(sum(key.startswith("w") for key in file.files))]
        work = WORK[self.name]
        self.sites, self.cohort, self.rounds = work.sites, work.cohort, work.rounds
        self.batch_size, self.lr = work.batch_size, work.lr

    def round(self, number: int) -> range:
        """The visits of a round, from 0."""
        return range(number * self.cohort, (number + 1) * self.cohort)

    def rows(self, visit: int) -> slice:
        """Where a visit's rows lie."""
        return slice(int(self.start[visit]), int(self.start[visit + 1]))

    def count(self, visit: int) -> int:
        """How many rows a visit has."""
        return int(self.start[visit + 1] - self.start[visit])

    def batches(self, visit: int) -> Iterator[slice]:
        """Where the rows of a visit's batches lie; the last may be smaller."""
        end = int(self.start[visit + 1])
        for first in range(int(self.start[visit]), end, self.batch_size):
            yield slice(first, min(first + self.batch_size, end))


def finish(path: str | Path, ended: Sequence[float], weights: Sequence[Array]) -> None:
    """Hands over when each round ended, in seconds of one clock, and the last weights."""
    np.savez(path, seconds=np.diff(ended), **{f"w{i}": one for i, one in enumerate(weights)})


def model(name: str) -> Any:
    """The workload's model, of torch."""
    from torch import nn

    if name == "a":
        return nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10))
    convolutions = [nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    convolutions += [nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, 10))
