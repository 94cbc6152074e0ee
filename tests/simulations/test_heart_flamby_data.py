"""Fed-Heart-Disease against what FLamby publishes of it, on the UCI files in HANSA_DATA_DIR."""

from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from hansa.task import Source
from simulations.datasets.base import divide
from simulations.datasets.heart_disease import HeartDisease
from simulations.partition import Natural

pytestmark = pytest.mark.data

RAW = HeartDisease(normalize=False)


def tensors(source: Source, split: Any) -> tuple[torch.Tensor, ...]:
    dataset = source.split(split)
    assert isinstance(dataset, TensorDataset)
    return dataset.tensors


def both(source: Source) -> tuple[torch.Tensor, ...]:
    """Training rows, then test rows."""
    return tuple(torch.cat(parts) for parts in zip(tensors(source, "train"), tensors(source, "test"), strict=True))


def test_rows_by_hospital_are_flambys() -> None:
    """The table of FLamby's README: 303, 261, 46, 130 patients, 66% of them for training."""
    sizes = {site: tuple(len(HeartDisease().source(site).split(s)) for s in ("train", "test")) for site in RAW.sites()}
    assert sizes == {"cleveland": (199, 104), "hungarian": (172, 89), "switzerland": (30, 16), "va": (85, 45)}
    pooled = HeartDisease().pooled()
    assert (len(pooled.split("train")), len(pooled.split("test"))) == (486, 254)


def test_columns_are_eight_as_read_and_five_codes() -> None:
    """The first row of processed.cleveland.data is 63,1,1,145,233,1,2,150,0,2.3,...,0: cp 1 is dropped, restecg 2."""
    x, y = both(RAW.source("cleveland"))
    first = torch.tensor([63, 1, 145, 233, 1, 150, 0, 2.3, 0, 0, 0, 0, 1])
    (found,) = torch.nonzero((x == first).all(1))
    assert int(y[found]) == 0
    assert x.shape[1] == 13
    for codes in (x[:, 8:11], x[:, 11:13]):  # cp 2, 3, 4; restecg 1, 2
        assert set(codes.sum(1).tolist()) == {0, 1}


def test_a_split_keeps_the_proportion_of_disease() -> None:
    """139 of 303 patients at Cleveland are ill; a stratified split is within one patient of it in each part."""
    for site in RAW.sites():
        ill = [(int(y.sum()), len(y)) for y in (tensors(RAW.source(site), s)[1] for s in ("train", "test"))]
        share = sum(i for i, _ in ill) / sum(n for _, n in ill)
        assert all(abs(i - share * n) <= 1 for i, n in ill)
        if site == "cleveland":
            assert sum(i for i, _ in ill) == 139


def test_each_hospital_is_normalised_by_itself_and_pooled_rows_together() -> None:
    dataset = HeartDisease()
    for source in (dataset.pooled(), *map(dataset.source, dataset.sites())):
        x = tensors(source, "train")[0].double()
        assert x.mean(0).abs().max() < 1e-5
        varied = x.std(0) > 0  # cholesterol is 0 for all of Switzerland
        assert (x.std(0)[varied] - 1).abs().max() < 1e-5
    assert not tensors(dataset.source("switzerland"), "train")[0][:, 3].any()


def test_hospitals_divided_from_pooled_rows_have_the_pooled_scale() -> None:
    dealt = divide(HeartDisease(), Natural(column="site"), 0)
    pooled = tensors(HeartDisease().pooled(), "train")[0]
    assert torch.equal(tensors(dealt["cleveland"], "train")[0], pooled[:199])
