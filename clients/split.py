"""Seeded splits of a site's rows: which stand on the other side (test, validation), groups of rows kept whole."""

import warnings
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from clients.datatable import DataWarning
from hansa.errors import UserError
from hansa.seeds import torch_generator
from hansa.task import Dataset, is_whole


class Rows(TensorDataset):
    """Rows as whole tensors; `groups` holds an integer a row where some rows belong together (one patient's)."""

    def __init__(self, *tensors: Tensor, groups: Tensor | None = None) -> None:
        super().__init__(*tensors)
        self.groups = groups


def choose(
    n: int, fraction: float, generator: torch.Generator, groups: Tensor | None = None, labels: Tensor | None = None
) -> Tensor:
    """Which of n rows go to the other side, [n] bool.

    At least one row stays and one goes, unless the fraction is 0 or there is but one row or group: then all stay.

    Args:
        n: rows.
        fraction: the share that is to go, at least 0 and below 1.
        generator: where the draw comes from.
        groups: [n] integers; a group goes as a whole, and as many go as come nearest to the fraction.
        labels: [n] classes; each class is split by itself, so that both sides have every one. Without effect where a
            class has one row only, or where there are more classes than rows to go.
    """
    if groups is not None:
        return _choose_groups(groups, fraction, generator)
    chosen = torch.zeros(n, dtype=torch.bool)
    for rows in _strata(n, fraction, labels):
        chosen[rows[torch.randperm(len(rows), generator=generator)[: _share(len(rows), fraction)]]] = True
    return chosen


def take(dataset: Dataset, mask: Tensor) -> Dataset:
    """The rows of a dataset where `mask` [n] is true: tensors stay tensors, anything else becomes a `Subset`."""
    return pick(dataset, mask.nonzero().flatten())


def pick(dataset: Dataset, rows: Tensor) -> Dataset:
    """The rows of these numbers, with their groups: tensors stay tensors, anything else becomes a `Subset`."""
    if is_whole(dataset):
        return take_rows(dataset, rows)
    found: Any = Subset(cast(Any, dataset), rows.tolist())
    if (groups := groups_of(dataset)) is not None:
        found.groups = groups[rows]
    return cast(Dataset, found)


def take_rows(dataset: TensorDataset, rows: Tensor) -> Rows:
    """The rows of tensors where `rows` [n] is true, or of these numbers, with their groups."""
    groups = groups_of(dataset)
    return Rows(*(t[rows] for t in dataset.tensors), groups=None if groups is None else groups[rows])


def valid_split(dataset: Dataset, fraction: float, seed: int, site: str) -> tuple[Dataset, Dataset]:
    """Training and validation rows out of a site's training rows, drawn with the run's seed for this site.

    A dataset whose attribute `groups` holds an integer a row keeps its groups whole. The validation rows are none when
    the fraction is 0 or when there is but one row or group.

    Raises:
        UserError: the fraction is not at least 0 and below 1.
    """
    if not isinstance(fraction, int | float) or not 0 <= fraction < 1:
        raise UserError(f"site {site!r}: valid_fraction = {fraction!r}; set it in the task to at least 0 and below 1")
    chosen = choose(len(dataset), fraction, torch_generator(seed, site, "valid"), groups_of(dataset))
    return take(dataset, ~chosen), take(dataset, chosen)


def warn_of_one_class(labels: Tensor, whose: str) -> None:
    """Warns where all rows are of one class, [n] int64: training goes on, but an AUC over them is undefined."""
    if len(labels) and bool((labels == labels[0]).all()):
        warnings.warn(f"{whose} are all of class {int(labels[0])}; their AUC is undefined", DataWarning, stacklevel=2)


def groups_of(dataset: Dataset) -> Tensor | None:
    """What a data set's attribute `groups` holds, [n]: an integer a row, the same for the rows of one person.

    Raises:
        UserError: it is not one integer a row.
    """
    if (given := getattr(dataset, "groups", None)) is None:
        return None
    groups = torch.as_tensor(given)
    if groups.shape != (len(dataset),) or groups.is_floating_point():
        raise UserError(
            f"task: the rows' attribute groups is of shape {list(groups.shape)}, {groups.dtype}, for {len(dataset)} "
            "rows; give one integer a row"
        )
    return groups


def _share(n: int, fraction: float) -> int:
    return min(max(int(n * fraction + 0.5), 1), n - 1) if n > 1 and fraction else 0


def _strata(n: int, fraction: float, labels: Tensor | None) -> list[Tensor]:
    if labels is not None:
        classes, rows_of = torch.unique(labels, return_counts=True)
        if n and rows_of.min() > 1 and len(classes) <= _share(n, fraction):
            return [(labels == one).nonzero().flatten() for one in classes]
    return [torch.arange(n)]


def _choose_groups(groups: Tensor, fraction: float, generator: torch.Generator) -> Tensor:
    _, group_of, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
    order = torch.randperm(len(sizes), generator=generator)
    count = 0
    if len(sizes) > 1 and fraction:
        rows = sizes[order].cumsum(0)[:-1]  # that go with the first 1, 2, ... groups; one group stays
        count = 1 + int((rows - fraction * len(groups)).abs().argmin())
    return torch.isin(group_of, order[:count])
