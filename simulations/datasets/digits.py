"""Handwritten digits of 8 x 8 pixels, from scikit-learn: runs anywhere, without a download."""

from functools import cache

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from hansa.task import Source
from simulations.datasets.base import FederatedDataset, digest, stratified


class Digits(FederatedDataset):
    """Optical recognition of digits (Alpaydin, Kaynak 1998): 1797 images, x [n, 1, 8, 8] float32 from 0 to 1, y [n].

    20% of each digit's rows are test rows, always the same. It has no sites of its own.
    """

    def pooled(self) -> Source:
        """All rows."""
        x, y = _rows()
        return stratified(x / 16, y, test=0.2, seed=0).source

    @property
    def sha256(self) -> str:
        """Of x [1797, 1, 8, 8] float32 (0 to 16) and y [1797] int64, in scikit-learn's order."""
        return digest(_rows())


@cache
def _rows() -> tuple[Tensor, Tensor]:
    x, y = load_digits(return_X_y=True)
    return torch.from_numpy(x).float().reshape(-1, 1, 8, 8), torch.from_numpy(y.astype(np.int64))
