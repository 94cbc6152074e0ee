"""A new data set in one file: scikit-learn's wines, rows without sites, which a partition deals.

Run it:       python examples/custom_dataset.py
In a config:  [simulation]
              dataset = {name = "custom_dataset.py:Wine", test = 0.3}
              partition = {name = "iid", sites = 4}
"""

from functools import cache
from typing import Annotated

import torch
from pydantic import Field
from sklearn.datasets import load_wine
from torch import Tensor, nn

import hansa
from hansa.task import Source
from simulations.datasets.base import FederatedDataset, digest, stratified
from simulations.partition import Dirichlet


class Wine(FederatedDataset):
    """Chemical analyses of wines (Aeberhard, Forina 1991): 178 rows, x [n, 13] float32, y [n] of 3 cultivars.

    Columns are z-scored by the training rows. Fields are the keys of [simulation.dataset].
    """

    test: Annotated[float, Field(gt=0, lt=1)] = 0.25  # share of the rows, always the same ones

    def pooled(self) -> Source:
        """All rows. A set with sites of its own would define `sites()` and `source(site)` as well."""
        return stratified(*_rows(), test=self.test, seed=0).zscored().source

    @property
    def sha256(self) -> str:
        """Of x [178, 13] float32 and y [178] int64, in scikit-learn's order."""
        return digest(_rows())


@cache
def _rows() -> tuple[Tensor, Tensor]:
    x, y = load_wine(return_X_y=True)
    return torch.from_numpy(x).float(), torch.from_numpy(y).long()


class Cultivar(hansa.Task):
    """Logistic regression."""

    def model(self) -> nn.Module:
        return nn.Linear(13, 3)


def main() -> None:
    deal = Dirichlet(sites=4, alpha=0.5)
    history = hansa.simulate(Cultivar(), dataset=Wine(), partition=deal, training={"lr": 0.1}, rounds=10)
    print(history.frame().query("split == 'test'").pivot(index="scope", columns="name", values="value"))


if __name__ == "__main__":
    main()
