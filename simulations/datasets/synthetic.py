"""FedProx's synthetic data: one linear law a site, as far apart as one asks for."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from pydantic import ConfigDict, Field, model_validator

from hansa.seeds import numpy_generator
from simulations.datasets.base import Arrays, SiteDataset, digest
from simulations.partition import numbered

D, C = 60, 10  # features, labels
SD_D = np.arange(1, D + 1) ** -0.6  # of x about its mean: the variance of feature j is j^-1.2

Vector = npt.NDArray[np.float64]
Matrix = npt.NDArray[np.float64]


class Synthetic(SiteDataset):
    """Synthetic(alpha, beta) of Li et al. (FedProx, MLSys 2020, section 5.1): x [n, 60] float32, y [n] of 10 labels.

    Site k: u ~ N(0, alpha), W [60, 10] and b [10] ~ N(u, 1); B ~ N(0, beta), v [60] ~ N(B, 1), x ~ N(v, diag(j^-1.2));
    y = argmax(W'x + b); floor(lognormal(4, 2)) + 50 rows, the first 90% of them for training. alpha and beta are
    standard deviations, as in the authors' code. IID: one W and b ~ N(0, 1) for all sites, v = 0.
    A site's rows depend on the seed and its number only, not on the number of sites.
    """

    model_config = ConfigDict(serialize_by_alias=True)  # the method `sites` has the name that the key has

    alpha: Annotated[float, Field(ge=0)] = 0.0  # how far the sites' laws are apart
    beta: Annotated[float, Field(ge=0)] = 0.0  # how far the sites' inputs are apart
    iid: bool = False
    number: int = Field(30, ge=1, alias="sites")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    normalize: Literal[False] = False  # the law is stated for raw inputs

    @model_validator(mode="after")
    def _iid_has_no_distance(self) -> Self:
        if self.iid and (self.alpha or self.beta):
            raise ValueError("alpha and beta have no effect with iid = true; remove them")
        return self

    def arrays(self) -> Mapping[str, Arrays]:
        """Rows by site."""
        return _arrays(self)

    @property
    def sha256(self) -> str:
        """Of all tensors, site by site: x and y of training, x and y of test."""
        return digest([t for a in self.arrays().values() for t in (a.x_train, a.y_train, a.x_test, a.y_test)])

    def law(self, site: int) -> tuple[Matrix, Vector]:
        """W [60, 10] and b [10] of a site (from 0)."""
        random = numpy_generator(self.seed, "synthetic", "law", 0 if self.iid else site)
        u = 0.0 if self.iid else random.normal(0, self.alpha)
        return random.normal(u, 1, (D, C)), random.normal(u, 1, C)

    def rows(self, site: int) -> Arrays:
        """The rows of a site (from 0), drawn anew."""
        random = numpy_generator(self.seed, "synthetic", "rows", site)
        n = int(random.lognormal(4, 2)) + 50
        v_D = np.zeros(D) if self.iid else random.normal(random.normal(0, self.beta), 1, D)
        W_DC, b_C = self.law(site)
        x_nD = v_D + SD_D * random.standard_normal((n, D))
        x, y = torch.from_numpy(x_nD).float(), torch.from_numpy((x_nD @ W_DC + b_C).argmax(1))
        cut = int(0.9 * n)
        return Arrays(x[:cut], y[:cut], x[cut:], y[cut:])


@lru_cache(maxsize=2)  # the last, and the one before: a comparison goes from seed to seed
def _arrays(dataset: Synthetic) -> dict[str, Arrays]:
    return {name: dataset.rows(site) for site, name in enumerate(numbered(dataset.number))}
