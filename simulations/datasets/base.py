"""What a data set of a simulation is: one class, whose fields are the keys of [simulation.dataset]."""

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.utils.data import TensorDataset

from clients.split import pick
from hansa.errors import UserError
from hansa.tables import Table
from hansa.task import Dataset, Source
from simulations.partition import Natural, Partition, labels_of

Split = Literal["train", "test"]


@dataclass(frozen=True)
class TrainTest:
    """A source that holds both splits in memory."""

    train: Dataset
    test: Dataset

    def split(self, name: Split) -> Dataset:
        """The rows of one split."""
        return self.train if name == "train" else self.test


@dataclass(frozen=True)
class Arrays:
    """Both splits of a site or of all: x [n, ...] float32, y [n] int64."""

    x_train: Tensor
    y_train: Tensor
    x_test: Tensor
    y_test: Tensor

    @property
    def source(self) -> TrainTest:
        """The splits as tensor data sets."""
        return TrainTest(TensorDataset(self.x_train, self.y_train), TensorDataset(self.x_test, self.y_test))

    def zscored(self) -> "Arrays":
        """Each column by mean and unbiased sd of the training rows; 1e-9 is added to the sd, as FLamby does."""
        mean, sd = self.x_train.mean(0), self.x_train.std(0) + 1e-9
        return Arrays((self.x_train - mean) / sd, self.y_train, (self.x_test - mean) / sd, self.y_test)


class FederatedDataset(Table):
    """A data set with sites of its own, or pooled rows that a partition deals.

    Third parties register theirs in the entry-point group `hansa.datasets`. A data set is a value: what is costly is
    cached outside it (`functools.cache`), so that `model_copy(update={"seed": ...})` is another data set.
    """

    def sites(self) -> tuple[str, ...]:
        """Names of the sites that the data come from. Empty: pooled rows only, which need a partition."""
        return ()

    def source(self, site: str) -> Source:
        """The data of one of `sites()`."""
        raise self.unknown(site)

    @abstractmethod
    def pooled(self) -> Source:
        """All rows: what a partition deals, and what pooled training uses."""

    def values(self, column: str, split: Split) -> npt.NDArray[Any]:
        """A column [n] of the pooled rows by which the partition "natural" may deal them.

        Raises:
            UserError: there is no such column.
        """
        raise UserError(f'[simulation.partition] column: {type(self).__name__} has no column "{column}" to divide by')

    @property
    @abstractmethod
    def sha256(self) -> str:
        """Digest, in hex, of the raw data as used: before the split and any normalisation."""

    def unknown(self, site: str) -> UserError:
        """The error for a site that is not there."""
        return UserError(f"{type(self).__name__} has no site {site!r}; it has {', '.join(self.sites()) or 'none'}")


class SiteDataset(FederatedDataset):
    """Data that come by site. Pooled rows are the sites' rows, one site after the other, in both splits."""

    normalize: bool = True  # z-score: a site by its own training rows, pooled rows by all training rows

    @abstractmethod
    def arrays(self) -> Mapping[str, Arrays]:
        """Raw rows by site. Called often: cache what is costly."""

    def sites(self) -> tuple[str, ...]:
        """The sites, in a fixed order."""
        return tuple(self.arrays())

    def source(self, site: str) -> Source:
        """A site's rows."""
        if site not in self.arrays():
            raise self.unknown(site)
        return self._finish(self.arrays()[site])

    def pooled(self) -> Source:
        """All sites' rows."""
        every = [(a.x_train, a.y_train, a.x_test, a.y_test) for a in self.arrays().values()]
        return self._finish(Arrays(*(torch.cat(parts) for parts in zip(*every, strict=True))))

    def values(self, column: str, split: Split) -> npt.NDArray[Any]:
        """The column "site": where a pooled row comes from."""
        if column != "site":
            return super().values(column, split)
        sizes = [len(a.y_train if split == "train" else a.y_test) for a in self.arrays().values()]
        return np.repeat(np.array(self.sites()), sizes)

    def _finish(self, arrays: Arrays) -> Source:
        return (arrays.zscored() if self.normalize else arrays).source


def divide(dataset: FederatedDataset, partition: Partition | None, seed: int) -> dict[str, Source]:
    """The data by site: the set's own sites without a partition, else its pooled rows as the partition deals them.

    Test rows are dealt by the shares that were settled on the training rows; floors hold for training rows only.

    Raises:
        UserError: no partition and no sites of its own, or the partition does not fit the data.
    """
    if partition is None:
        if not dataset.sites():
            raise UserError(f"{type(dataset).__name__} has no sites of its own; write [simulation.partition]")
        return {site: dataset.source(site) for site in dataset.sites()}
    splits: tuple[Split, Split] = ("train", "test")
    pooled = dataset.pooled()
    whole = {split: pooled.split(split) for split in splits}
    keys = {split: _keys(dataset, partition, whole[split], split) for split in splits}
    shares = partition.shares(keys["train"], len(whole["train"]), seed)
    dealt = [[subset(whole[split], rows) for rows in shares.deal(keys[split], len(whole[split]))] for split in splits]
    return {site: TrainTest(*both) for site, *both in zip(shares.sites, *dealt, strict=True)}


def subset(dataset: Dataset, rows: npt.NDArray[np.int64]) -> Dataset:
    """Some rows of a data set; tensors stay tensors, so that batches are indexed at once, and keep their groups."""
    return pick(dataset, torch.from_numpy(rows))


def stratified(x: Tensor, y: Tensor, test: float, seed: int) -> Arrays:
    """Rows split with a share of `test` rows, both splits in the order of the file and with the labels' proportions.

    As in FLamby, labels play no part where there is one only, or one with fewer than three rows.
    """
    _, counts = np.unique(y, return_counts=True)
    by = y if len(counts) > 1 and counts.min() > 2 else None
    _, chosen = train_test_split(np.arange(len(y)), train_size=1 - test, test_size=test, random_state=seed, stratify=by)
    is_test = torch.zeros(len(y), dtype=torch.bool)
    is_test[chosen] = True
    return Arrays(x[~is_test], y[~is_test], x[is_test], y[is_test])


def digest(tensors: Sequence[Tensor]) -> str:
    """SHA-256, in hex, of the bytes of tensors, one after the other."""
    total = hashlib.sha256()
    for tensor in tensors:
        total.update(tensor.contiguous().numpy().tobytes())
    return total.hexdigest()


def _keys(dataset: FederatedDataset, partition: Partition, rows: Dataset, split: Split) -> npt.NDArray[Any] | None:
    if not len(rows):
        return None
    if isinstance(partition, Natural):
        return dataset.values(partition.column, split)
    return labels_of(rows) if partition.by == "labels" else None
