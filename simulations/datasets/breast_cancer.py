"""Wisconsin breast cancer, from scikit-learn: runs anywhere, without a download."""

from collections.abc import Mapping
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from sklearn.datasets import load_breast_cancer
from torch import Tensor

from hansa.seeds import numpy_generator
from simulations.datasets.base import Arrays, SiteDataset, digest, stratified

ROWS = {  # hospital -> rows (benign, malignant): 45, 30, 15 and 10% of all; 28, 40, 49 and 53% malignant
    "north": (184, 72),
    "east": (103, 68),
    "south": (43, 42),
    "west": (27, 30),
}


class BreastCancer(SiteDataset):
    """Wisconsin Diagnostic (Street et al. 1993): 569 tumours, x [n, 30] float32, y [n] 1 = malignant.

    The four hospitals are made up: rows are dealt to them by fixed draws, uneven in size and in the share of malignant
    tumours. 25% of a hospital's rows are test rows, always the same.
    """

    def arrays(self) -> Mapping[str, Arrays]:
        """Raw rows by hospital."""
        return _arrays()

    @property
    def sha256(self) -> str:
        """Of x [569, 30] float32 and y [569] int64, in scikit-learn's order."""
        return digest(_rows())


def _rows() -> tuple[Tensor, Tensor]:
    x, benign = load_breast_cancer(return_X_y=True)
    return torch.from_numpy(x).float(), torch.from_numpy(1 - benign.astype(np.int64))


@cache
def _arrays() -> dict[str, Arrays]:
    x, y = _rows()
    dealt = [_deal(y, label) for label in (0, 1)]
    rows = {site: np.sort(np.concatenate([part[number] for part in dealt])) for number, site in enumerate(ROWS)}
    return {site: stratified(x[chosen], y[chosen], test=0.25, seed=0) for site, chosen in rows.items()}


def _deal(y: Tensor, label: int) -> list[npt.NDArray[np.int64]]:
    """Row numbers of one label, by hospital."""
    ends = np.cumsum([counts[label] for counts in ROWS.values()])
    rows = np.flatnonzero(y.numpy() == label)
    return np.split(numpy_generator(0, "breast_cancer", label).permutation(rows), ends[:-1])
