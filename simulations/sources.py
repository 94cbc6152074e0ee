"""Which data each simulated site gets."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import SkipValidation

from hansa.errors import UserError
from hansa.task import Dataset, Site, Source, Task, sized
from simulations.datasets.base import FederatedDataset, TrainTest, divide
from simulations.partition import Partition, numbered


class TaskRows(FederatedDataset):
    """What a task gives to one site, as pooled rows that a partition deals."""

    train: SkipValidation[Any]
    test: SkipValidation[Any]

    def pooled(self) -> Source:
        """The task's rows."""
        return TrainTest(self.train, self.test if self.test is not None else [])

    def values(self, column: str, split: Literal["train", "test"]) -> npt.NDArray[Any]:
        """An attribute of the dataset that holds one value a row."""
        rows = self.train if split == "train" else self.test
        if not hasattr(rows, column):
            return super().values(column, split)
        return np.asarray(getattr(rows, column))

    @property
    def sha256(self) -> str:
        """Not known: the rows are the task's own."""
        return ""


def sources(
    task: Task,
    sites: int | Sequence[str] | None,
    dataset: FederatedDataset | None,
    partition: Partition | None,
    seed: int,
) -> tuple[Task, Mapping[str, Source | None]]:
    """The task, and each site's source (None: the task's own methods know what to do with a site).

    A partition without a dataset deals what the task's `train_data` and `test_data` give to one site that has it all.

    Raises:
        UserError: neither sites nor data to make them from, or names that are given twice.
    """
    if dataset is not None:
        return task, divide(dataset, partition, seed)
    if partition is not None:
        whole = Site("all", seed)
        train, test = sized(task.train_data(whole), "train_data"), task.test_data(whole)
        rows = TaskRows(train=train, test=None if test is None else sized(test, "test_data"))
        dealt = divide(rows, partition, seed)
        return dealing(task, dealt), dealt
    names = list(numbered(sites)) if isinstance(sites, int) else list(sites or ())
    if not names:
        raise UserError("[simulation] sites: no sites; give their names or number, a dataset, or a partition")
    if len(set(names)) < len(names):
        raise UserError(f"[simulation] sites: a name stands twice in {names}")
    return task, dict.fromkeys(names)


@dataclass(frozen=True)
class Share:
    """What a site gets of rows that were dealt: in place of a task's method; it goes to other processes."""

    dealt: Mapping[str, Source]
    split: Literal["train", "test"]

    def __call__(self, site: Site) -> Dataset:
        """The site's rows."""
        return self.dealt[site.name].split(self.split)


def dealing(task: Task, dealt: Mapping[str, Source]) -> Task:
    """The task, with each site's share in place of the whole."""
    task = copy.copy(task)
    task.__dict__ |= {"train_data": Share(dealt, "train"), "test_data": Share(dealt, "test")}
    return task
