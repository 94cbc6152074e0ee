"""Pooled rows dealt to simulated sites. n = rows, C = labels (the distinct ones), K = sites.

A partition first settles which share of each label's rows goes to which site (`Shares`), then deals rows by it. What is
settled on the training rows deals the test rows as well, so that a site is tested by the law that it is trained by.
"""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from hansa.errors import UserError
from hansa.seeds import numpy_generator
from hansa.tables import Table

Labels_n = npt.NDArray[Any]  # [n] whole numbers or strings
Rows = npt.NDArray[np.int64]  # row numbers, ascending
Matrix = npt.NDArray[np.float64]

DRAWS = 1000  # random draws after which a floor counts as out of reach


@dataclass(frozen=True)
class Shares:
    """Which share of each label's rows goes to which site."""

    sites: tuple[str, ...]  # [K] names
    labels: Labels_n | None  # [C] ascending; None: labels play no part, and C = 1
    of: Matrix  # [C, K], each row sums to 1
    seed: int

    def deal(self, labels: Labels_n | None, n: int) -> list[Rows]:
        """Row numbers by site: disjoint, covering all n rows, ascending; which rows of a label is drawn by the seed.

        Of a label with m rows a site gets its share times m, at most one row off. A site may get none.

        Raises:
            UserError: not one label a row, or a label that the shares do not know.
        """
        label_n = self._numbers(labels, n)
        ends = np.cumsum(np.bincount(label_n, minlength=len(self.of)))
        by_label = np.split(np.argsort(label_n, kind="stable"), ends[:-1])
        site_n = np.empty(n, np.int64)
        for number, (rows, share_K) in enumerate(zip(by_label, self.of, strict=True)):
            order = numpy_generator(self.seed, "partition", "rows", number).permutation(rows)
            site_n[order] = np.repeat(np.arange(len(self.sites)), _counts(share_K, len(rows)))
        ends = np.cumsum(np.bincount(site_n, minlength=len(self.sites)))
        return np.split(np.argsort(site_n, kind="stable"), ends[:-1])

    def _numbers(self, labels: Labels_n | None, n: int) -> npt.NDArray[np.int64]:
        if self.labels is None or not n:
            return np.zeros(n, np.int64)
        if labels is None or labels.size != n:
            raise UserError(f"[simulation.partition]: {n} rows are to be dealt by label, and there is not one for each")
        labels = labels.reshape(-1)
        number_n = np.searchsorted(self.labels, labels).clip(max=len(self.labels) - 1)
        if (strange := labels[self.labels[number_n] != labels]).size:
            raise UserError(
                f"[simulation.partition]: rows of {str(strange[0])!r} are to be dealt, but there were none among the "
                "training rows; leave them out, or have some in both splits"
            )
        return number_n.astype(np.int64)


class Partition(Table):
    """A way to deal rows to sites, as [simulation.partition] chooses it by `name`."""

    by: ClassVar[str] = ""  # what `labels` must hold: "labels", "column", or nothing

    @abstractmethod
    def shares(self, labels: Labels_n | None, n: int, seed: int) -> Shares:
        """Each site's share of each label, settled on the training rows; floors hold for these rows.

        Args:
            labels: [n] whole numbers or strings; may be None where labels play no part.
            n: training rows.
            seed: the run's; the same arguments give the same shares, in any process.

        Raises:
            UserError: the rows cannot be dealt in this way.
        """

    def assign(self, labels: Labels_n | None, n: int, seed: int) -> list[Rows]:
        """Row numbers by site, for one set of rows: `shares(...)` and `deal(...)` in one."""
        return self.shares(labels, n, seed).deal(labels, n)

    def _wrong(self, what: str) -> UserError:
        return UserError(f'[simulation.partition] name = "{getattr(self, "name", type(self).__name__)}": {what}')

    def _told_apart(self, labels: Labels_n | None, n: int) -> tuple[Labels_n, npt.NDArray[np.int64]]:
        """The distinct labels [C] and the number of rows of each."""
        if labels is None:
            raise self._wrong('needs labels, and the rows have none; use "iid" or "quantity"')
        labels = np.asarray(labels)
        if labels.size != n:
            raise self._wrong(f"needs one label a row; {n} rows have labels of shape {list(labels.shape)}")
        distinct, counts = np.unique(labels, return_counts=True)
        if distinct.dtype.kind == "f" and not np.isin(distinct, (0, 1)).all():
            raise self._wrong('needs labels, and the target is a real number (regression); use "iid" or "quantity"')
        return distinct, counts


class _Numbered(Partition):
    sites: Annotated[int, Field(ge=1)]

    def _names(self, n: int) -> tuple[str, ...]:
        if self.sites > n:
            raise self._wrong(f"sites = {self.sites}, but there are {n} rows; set sites to {n} or fewer")
        return numbered(self.sites)


class Iid(_Numbered):
    """Rows dealt at random, labels unseen: sizes differ by at most one row."""

    name: Literal["iid"] = "iid"

    def shares(self, labels: Labels_n | None, n: int, seed: int) -> Shares:
        """An equal share of all rows to each site."""
        return Shares(self._names(n), None, np.full((1, self.sites), 1 / self.sites), seed)


class _Drawn(_Numbered):
    """Shares from Dirichlet draws, repeated until every site has its floor of training rows."""

    alpha: Annotated[float, Field(ge=1e-6)]  # concentration: the smaller, the more uneven
    floor: Annotated[int, Field(ge=0)] | None = None  # rows; None: 10, or half an equal share where that is less

    def _draw(self, counts_C: npt.NDArray[np.int64], seed: int, cap: float) -> Matrix:
        n, K = int(counts_C.sum()), self.sites
        floor = min(10, n // (2 * K)) if self.floor is None else self.floor
        if floor * K > n:
            raise self._wrong(
                f"floor = {floor} for {K} sites needs {floor * K} rows, there are {n}; set a smaller floor"
            )
        for draw in range(DRAWS):
            random = numpy_generator(seed, "partition", "shares", draw)
            of, held_K = _capped(_log_gamma(random, self.alpha, (len(counts_C), K)), counts_C, cap)
            if held_K.min() >= floor:
                return of
        raise self._wrong(
            f"in {DRAWS} draws there was always a site with fewer than {floor} rows; set a smaller floor, a larger "
            "alpha or fewer sites"
        )


class Dirichlet(_Drawn):
    """Label skew: each label's rows go to the sites by p ~ Dirichlet(alpha), label by label (Yurochkin et al. 2019).

    As in NIID-Bench (Li et al., ICDE 2022), a site that holds n/K rows gets nothing of the labels that follow, and all
    is drawn again until every site has `floor` rows. The draws depend on the seed and the number of labels only; which
    draw is taken, and where the cap bites, depends on the training rows' label counts.
    """

    name: Literal["dirichlet"] = "dirichlet"
    by = "labels"

    def shares(self, labels: Labels_n | None, n: int, seed: int) -> Shares:
        """A draw a label, none to sites that are full."""
        names, (distinct, counts_C) = self._names(n), self._told_apart(labels, n)
        return Shares(names, distinct, self._draw(counts_C, seed, n / self.sites), seed)


class Quantity(_Drawn):
    """Size skew: the sites' numbers of rows are in proportion q ~ Dirichlet(alpha), labels unseen (NIID-Bench)."""

    name: Literal["quantity"] = "quantity"

    def shares(self, labels: Labels_n | None, n: int, seed: int) -> Shares:
        """One draw for all rows."""
        return Shares(self._names(n), None, self._draw(np.array([n]), seed, np.inf), seed)


class Labels(_Numbered):
    """Each site holds `per_site` labels, every label is held, its rows split equally among its holders.

    NIID-Bench's #C = k: site i holds label i mod C, the others are drawn. With fewer sites than labels a site holds all
    labels that are i mod K, before any is drawn.
    """

    name: Literal["labels"] = "labels"
    by = "labels"
    per_site: Annotated[int, Field(ge=1)]  # labels

    def shares(self, labels: Labels_n | None, n: int, seed: int) -> Shares:
        """An equal share of a label to each of its holders."""
        names, (distinct, counts_C) = self._names(n), self._told_apart(labels, n)
        held = self._held(len(distinct), seed)
        holders_C = held.sum(1)
        if (short := np.flatnonzero(counts_C < holders_C)).size:
            rows, holders = counts_C[short[0]], holders_C[short[0]]
            raise self._wrong(
                f"label {str(distinct[short[0]])!r} has {rows} rows for {holders} sites; set fewer sites or per_site"
            )
        return Shares(names, distinct, held / holders_C[:, None], seed)

    def _held(self, n_labels: int, seed: int) -> npt.NDArray[np.bool_]:
        if self.per_site > n_labels:
            raise self._wrong(f"per_site = {self.per_site}, but there are {n_labels} labels; set {n_labels} or fewer")
        if self.per_site * self.sites < n_labels:
            least = -(-n_labels // self.sites)
            raise self._wrong(f"{self.sites} sites cannot hold all {n_labels} labels; set per_site = {least} or more")
        held = np.zeros((n_labels, self.sites), np.bool_)
        turn = np.arange(max(n_labels, self.sites))
        held[turn % n_labels, turn % self.sites] = True
        random = numpy_generator(seed, "partition", "labels")
        for site in held.T:  # a view: what is set here is set in `held`
            site[random.choice(np.flatnonzero(~site), self.per_site - int(site.sum()), replace=False)] = True
        return held


class Natural(Partition):
    """One site for each value of a column that the data have: a hospital, a bank. Pass the values as `labels`."""

    name: Literal["natural"] = "natural"
    by = "column"
    column: str

    def shares(self, labels: Labels_n | None, n: int, seed: int) -> Shares:
        """All rows with a value to the site of that name; sites in ascending order of the values."""
        if labels is None or np.asarray(labels).size != n:
            raise self._wrong(f"needs the column {self.column!r}, one value for each of {n} rows")
        distinct = np.unique(labels)
        return Shares(tuple(str(value) for value in distinct), distinct, np.eye(len(distinct)), seed)


PartitionTable = Annotated[Iid | Dirichlet | Quantity | Labels | Natural, Field(discriminator="name")]


def numbered(sites: int) -> tuple[str, ...]:
    """Names for sites that have none: "site-01" to "site-12", as wide as the last needs, two digits at least."""
    width = max(2, len(str(sites)))
    return tuple(f"site-{number:0{width}}" for number in range(1, sites + 1))


def labels_of(dataset: Any) -> Labels_n | None:
    """A dataset's targets [n], or None where rows have none or not one number or word each.

    The second tensor of a `TensorDataset`, `dataset.targets` (torchvision), else the second item of every row.
    """
    if isinstance(dataset, torch.utils.data.Subset):
        whole = labels_of(dataset.dataset)
        return None if whole is None else whole[np.asarray(dataset.indices, np.int64)]
    if isinstance(dataset, torch.utils.data.TensorDataset):
        return _flat(dataset.tensors[1], len(dataset)) if len(dataset.tensors) > 1 else None
    if (targets := getattr(dataset, "targets", None)) is not None:
        return _flat(targets, len(dataset))
    rows = [dataset[number] for number in range(len(dataset))]
    if any(not isinstance(row, tuple | list) or len(row) < 2 for row in rows):
        return None
    return _flat([row[1] for row in rows], len(rows))


def _flat(targets: Any, n: int) -> Labels_n | None:
    try:
        values = np.asarray(targets)
    except ValueError:  # targets of unequal lengths
        return None
    return values.reshape(n) if values.size == n and values.dtype.kind in "biufUS" else None


def _counts(share_K: Matrix, n: int) -> npt.NDArray[np.int64]:
    """Cuts n rows by shares: each site's count is at most one row off, and they sum to n."""
    ends = np.rint(np.cumsum(share_K) * n).astype(np.int64)
    ends[-1] = n
    return np.diff(ends, prepend=0)


def _log_gamma(random: np.random.Generator, alpha: float, shape: tuple[int, int]) -> Matrix:
    """Logs of Gamma(alpha) draws, whose normalised exponentials are a Dirichlet draw.

    Gamma(a) = Gamma(a + 1) * U^(1/a): in logs nothing underflows where alpha is small, so no share is ever 0/0.
    """
    return np.log(random.standard_gamma(alpha + 1, shape)) + np.log1p(-random.random(shape)) / alpha


def _capped(log_CK: Matrix, counts_C: npt.NDArray[np.int64], cap: float) -> tuple[Matrix, npt.NDArray[np.int64]]:
    """Shares [C, K] of sites that hold less than `cap` rows when a label's turn comes, and the rows held at the end."""
    of, held_K = np.empty_like(log_CK), np.zeros(log_CK.shape[1], np.int64)
    for label, count in enumerate(counts_C):
        open_K = np.where(held_K < cap, log_CK[label], -np.inf)
        weight_K = np.exp(open_K - open_K.max())
        of[label] = weight_K / weight_K.sum()
        held_K += _counts(of[label], int(count))
    return of, held_K
