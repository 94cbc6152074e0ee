"""What a federated model is measured against: no federation, no privacy, no model."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.utils.data import ConcatDataset

from hansa.errors import UserError
from hansa.evaluate import EVALUATION_ROWS, evaluate
from hansa.metrics import Sums, ratio, roc
from hansa.task import Dataset, Site, Task
from privacy.config import PrivacyTable
from simulations.datasets.base import TrainTest
from simulations.federation import Federation
from simulations.history import History
from simulations.partition import labels_of
from simulations.sources import dealing
from strategies.fedavg import FedAvg

Scores = Mapping[str, Sums]  # site -> metric sums on its test rows


def local_only(federation: Federation) -> Scores:
    """Each site trains alone, as many rounds, and is scored on its own test rows."""
    scores: dict[str, Sums] = {}
    for site, source in federation.sources.items():
        alone = replace(federation, strategy=FedAvg(), sources={site: source}, **_all(federation))
        scores |= alone.try_out().test
    return scores


def centralised(federation: Federation) -> Scores:
    """All training rows in one place, as many rounds; scored on each site's test rows. What privacy forbids."""
    sites = [Site(name, federation.seed, source) for name, source in federation.sources.items()]
    pool = TrainTest(*(_together(federation.task, sites, split) for split in ("train", "test")))
    task = dealing(federation.task, {"pooled": pool})
    one = replace(
        federation,
        task=task,
        strategy=FedAvg(),
        sources={"pooled": pool},
        stragglers=None,
        **_all(federation),
    )
    return score(federation.task, one.try_out(), sites)


def majority(federation: Federation) -> Scores:
    """The commonest label of all training rows, whatever the patient.

    Raises:
        UserError: the labels are not classes.
    """
    sites = [Site(name, federation.seed, source) for name, source in federation.sources.items()]
    train = [labels_of(federation.task.train_data(site)) for site in sites]
    if any(labels is None for labels in train):
        raise UserError("majority class: the task's labels are not classes")
    kinds, counts = np.unique(np.concatenate([labels for labels in train if labels is not None]), return_counts=True)
    commonest = kinds[counts.argmax()]
    return {site.name: _constant(federation.task.test_data(site), commonest, binary=len(kinds) == 2) for site in sites}


def score(task: Task, history: History, sites: list[Site]) -> Scores:
    """A run's shared model on each site's test rows."""
    model: nn.Module = history.model()
    tests = {site.name: task.test_data(site) for site in sites}
    return {
        n: evaluate(task, model, rows, EVALUATION_ROWS, history.bench.device)
        for n, rows in tests.items()
        if rows is not None
    }


def _all(federation: Federation) -> dict[str, Any]:
    """The same course with every site in every round, and nothing to hide."""
    rounds = federation.rounds.model_copy(update={"sites_per_round": 1.0, "quorum": 1.0})
    return {"rounds": rounds, "privacy": PrivacyTable(secure=False)}


def _together(task: Task, sites: list[Site], split: Literal["train", "test"]) -> Dataset:
    every = [task.train_data(site) if split == "train" else task.test_data(site) for site in sites]
    return ConcatDataset([rows for rows in every if rows is not None])  # type: ignore[misc]  # map-style, all of them


def _constant(rows: Dataset | None, label: int, *, binary: bool) -> Sums:
    labels = labels_of(rows) if rows is not None else None
    if labels is None:
        return {}
    sums = {"accuracy": ratio(float((labels == label).sum()), len(labels))}
    return sums | ({"auc": roc(torch.zeros(len(labels)), torch.from_numpy(labels))} if binary else {})
