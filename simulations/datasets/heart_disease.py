"""UCI Heart Disease: four hospitals, prepared as FLamby does."""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from simulations.datasets.base import Arrays, SiteDataset, stratified
from simulations.datasets.download import fetch

SOURCE = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease"
FILES = {  # hospital -> sha256 of processed.HOSPITAL.data
    "cleveland": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    "hungarian": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    "switzerland": "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
    "va": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
}
COLUMNS = ["age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak", "slope", "ca"]
COLUMNS += ["thal", "num"]
DROPPED = ["slope", "ca", "thal"]  # missing nearly everywhere outside Cleveland
CODES = ["cp", "restecg"]  # kinds of chest pain, of resting ECG


class HeartDisease(SiteDataset):
    """Fed-Heart-Disease (du Terrail et al., NeurIPS 2022, FLamby): x [n, 13] float32, y [n] 1 = disease.

    740 patients of 920: those with a missing value among the columns kept are left out. Codes are one-hot and come
    last, the first level dropped. 34% of a hospital's rows are test rows, always the same.
    The data: Janosi, Steinbrunn, Pfisterer, Detrano (1988), UCI, CC BY 4.0.
    """

    def arrays(self) -> Mapping[str, Arrays]:
        """Raw rows by hospital, in the order of the files."""
        return _arrays(_paths())

    @property
    def sha256(self) -> str:
        """Of the four files, one after the other."""
        return hashlib.sha256(b"".join(path.read_bytes() for path in _paths())).hexdigest()


def _paths() -> tuple[Path, ...]:
    names = {f"processed.{hospital}.data": digest for hospital, digest in FILES.items()}
    return tuple(fetch(f"uci_heart_disease/{name}", f"{SOURCE}/{name}", digest) for name, digest in names.items())


@cache
def _arrays(paths: tuple[Path, ...]) -> dict[str, Arrays]:
    hospitals = pd.concat({hospital: _read(path) for hospital, path in zip(FILES, paths, strict=True)})
    rows = pd.get_dummies(hospitals, columns=CODES, drop_first=True)
    return {str(hospital): _split(part) for hospital, part in rows.groupby(level=0, sort=False)}


def _read(path: Path) -> pd.DataFrame:
    rows = pd.read_csv(path, header=None, names=COLUMNS, na_values="?")
    return rows.drop(columns=DROPPED).dropna().astype(np.float64)


def _split(rows: pd.DataFrame) -> Arrays:
    x = torch.from_numpy(rows.drop(columns="num").to_numpy(np.float32))
    y = torch.from_numpy((rows["num"].to_numpy() != 0).astype(np.int64))  # 1 to 4: kinds of disease
    return stratified(x, y, test=1 - 0.66, seed=43)
