from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from pydantic import TypeAdapter, ValidationError
from torch.utils.data import Subset, TensorDataset

from hansa.errors import UserError
from simulations.partition import (
    Dirichlet,
    Iid,
    Labels,
    Natural,
    Partition,
    PartitionTable,
    Quantity,
    labels_of,
    numbered,
)

seeds = st.integers(0, 2**63 - 1)


@st.composite
def labelled(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Labels of 60 to 400 rows, 1 to 8 of them, at least 12 rows each, in any order."""
    kinds = draw(st.integers(1, 8))
    counts = draw(st.lists(st.integers(12, 50), min_size=kinds, max_size=kinds))
    labels = np.repeat(draw(st.permutations(range(3, 3 + kinds))), counts)
    return np.random.default_rng(draw(st.integers(0, 99))).permutation(np.tile(labels, 1 + (len(labels) < 60)))


def any_partition(sites: int) -> st.SearchStrategy[Partition]:
    alphas = st.floats(0.3, 100)
    return st.one_of(
        st.just(Iid(sites=sites)),
        st.builds(Dirichlet, sites=st.just(sites), alpha=alphas, floor=st.just(1)),
        st.builds(Quantity, sites=st.just(sites), alpha=alphas, floor=st.just(1)),
        st.just(Natural(column="hospital")),
    )


def covers(dealt: list[Any], n: int) -> bool:
    ascending = all((np.diff(rows) > 0).all() for rows in dealt)
    return ascending and np.array_equal(np.sort(np.concatenate(dealt)), np.arange(n))


# laws of every partition


@given(labels=labelled(), data=st.data(), sites=st.integers(1, 6), seed=seeds)
def test_every_row_goes_to_exactly_one_site(
    labels: np.ndarray[Any, Any], data: st.DataObject, sites: int, seed: int
) -> None:
    partition = data.draw(any_partition(sites))
    assert covers(partition.assign(labels, len(labels), seed), len(labels))


@given(labels=labelled(), data=st.data(), sites=st.integers(1, 6), seed=seeds)
def test_the_seed_alone_decides(labels: np.ndarray[Any, Any], data: st.DataObject, sites: int, seed: int) -> None:
    partition = data.draw(any_partition(sites))
    first, second = (partition.assign(labels.copy(), len(labels), seed) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    "partition",
    [Iid(sites=4), Dirichlet(sites=4, alpha=1), Quantity(sites=4, alpha=1), Labels(sites=4, per_site=2)],
    ids=lambda partition: partition.name,
)
def test_another_seed_deals_otherwise(partition: Partition) -> None:
    labels = np.arange(400) % 5
    first, second = partition.assign(labels, 400, 0), partition.assign(labels, 400, 1)
    assert not all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@given(labels=labelled(), data=st.data(), sites=st.integers(1, 6), seed=seeds, times=st.integers(1, 3))
def test_test_rows_follow_the_training_rows_shares(
    labels: np.ndarray[Any, Any], data: st.DataObject, sites: int, seed: int, times: int
) -> None:
    """m rows cut at rounded ends: a site's count of a label is within one row of m times its share, in both splits.

    Hence test and training counts, scaled to each other, differ by at most 1 + scale.
    """
    partition = data.draw(any_partition(sites))
    shares = partition.shares(labels, len(labels), seed)
    others = np.tile(labels, times)
    train, test = shares.deal(labels, len(labels)), shares.deal(others, len(others))
    for a, b in zip(train, test, strict=True):
        if shares.labels is None:
            assert abs(len(b) - times * len(a)) <= 1 + times
        for label in () if shares.labels is None else shares.labels:
            assert abs((others[b] == label).sum() - times * (labels[a] == label).sum()) <= 1 + times


def test_a_label_that_training_lacks_is_refused_by_name() -> None:
    shares = Dirichlet(sites=2, alpha=1).shares(np.arange(40) % 2, 40, 0)
    with pytest.raises(UserError, match="rows of '7' are to be dealt"):
        shares.deal(np.array([0, 7]), 2)


def test_rows_without_labels_are_not_dealt_by_label() -> None:
    shares = Dirichlet(sites=2, alpha=1).shares(np.arange(40) % 2, 40, 0)
    with pytest.raises(UserError, match="3 rows are to be dealt by label"):
        shares.deal(None, 3)


# iid


@given(n=st.integers(1, 3000), data=st.data(), seed=seeds)
def test_iid_sizes_differ_by_at_most_one(n: int, data: st.DataObject, seed: int) -> None:
    sites = data.draw(st.integers(1, min(n, 120)))
    sizes = [len(rows) for rows in Iid(sites=sites).assign(None, n, seed)]
    assert max(sizes) - min(sizes) <= 1


# dirichlet


@given(labels=labelled(), sites=st.integers(1, 5), alpha=st.floats(1, 10), seed=seeds)
def test_every_site_has_its_floor(labels: np.ndarray[Any, Any], sites: int, alpha: float, seed: int) -> None:
    n = len(labels)
    for kind in (Dirichlet, Quantity):
        for floor, least in ((None, min(10, n // (2 * sites))), (3, 3)):
            sizes = [len(rows) for rows in kind(sites=sites, alpha=alpha, floor=floor).assign(labels, n, seed)]
            assert min(sizes) >= least


@pytest.mark.parametrize("seed", range(5))
def test_large_alpha_gives_every_site_the_whole_s_proportions(seed: int) -> None:
    """A share p ~ Beta(a, (K-1)a) has variance (1/K)(1-1/K)/(Ka+1): here sd = 1.26e-4, and 600 rows times six sd is
    less than half a row. The cut rounds by at most one row more."""
    labels = np.arange(3000) % 5
    dealt = Dirichlet(sites=10, alpha=1e6 / 1.8).assign(labels, 3000, seed)
    counts = np.array([np.bincount(labels[rows], minlength=5) for rows in dealt])
    assert np.abs(counts - 60).max() <= 1.5


def test_dirichlet_shares_have_the_beta_law() -> None:
    """With one label nothing is capped, and p_1 ~ Beta(a, a) for two sites: variance 1/(4(2a+1)), at a = 0.5 1/8.

    The sample variance of m draws has sd sqrt((mu4 - var^2)/m); the arcsine law's mu4 is 3/128: six sd for m = 1500.
    """
    labels = np.zeros(10_000, int)
    p = [Dirichlet(sites=2, alpha=0.5, floor=0).shares(labels, 10_000, seed).of[0, 0] for seed in range(1500)]
    assert abs(np.var(p) - 1 / 8) < 6 * np.sqrt((3 / 128 - 1 / 64) / 1500)
    assert abs(np.mean(p) - 1 / 2) < 6 * np.sqrt(1 / 8 / 1500)


@given(labels=labelled(), sites=st.integers(2, 6), seed=seeds)
def test_a_tiny_alpha_never_divides_zero_by_zero(labels: np.ndarray[Any, Any], sites: int, seed: int) -> None:
    """flower#4376: at alpha = 1e-6 plain Gamma draws are all zero."""
    shares = Dirichlet(sites=sites, alpha=1e-6, floor=0).shares(labels, len(labels), seed)
    assert np.isfinite(shares.of).all()
    np.testing.assert_allclose(shares.of.sum(1), 1)


@given(labels=labelled(), sites=st.integers(2, 6), alpha=st.floats(0.1, 10), seed=seeds)
def test_a_full_site_gets_nothing_of_the_labels_that_follow(
    labels: np.ndarray[Any, Any], sites: int, alpha: float, seed: int
) -> None:
    """NIID-Bench's cap: before its last label a site held less than n/K rows."""
    n = len(labels)
    for rows in Dirichlet(sites=sites, alpha=alpha, floor=0).assign(labels, n, seed):
        if len(rows):
            assert (labels[rows] != labels[rows].max()).sum() < n / sites


# quantity


def test_quantity_is_uneven_in_size_but_not_in_labels() -> None:
    """Rows of a site are a random sample: 6 hypergeometric sd about the whole's share of label 1."""
    labels = np.arange(20_000) % 4 == 1
    dealt = Quantity(sites=5, alpha=1).assign(labels, 20_000, 3)
    sizes = np.array([len(rows) for rows in dealt])
    assert sizes.max() > 2 * sizes.min()
    for rows in dealt:
        sd = np.sqrt(len(rows) * (3 / 16) * (20_000 - len(rows)) / 19_999)
        assert abs(labels[rows].sum() - len(rows) / 4) < 6 * sd + 1


# labels


@given(kinds=st.integers(1, 10), data=st.data(), seed=seeds)
def test_each_site_holds_exactly_k_labels_and_every_label_is_held(kinds: int, data: st.DataObject, seed: int) -> None:
    per_site = data.draw(st.integers(1, kinds))
    sites = data.draw(st.integers(-(-kinds // per_site), 15))
    labels = np.arange(20 * kinds) % kinds
    dealt = Labels(sites=sites, per_site=per_site).assign(labels, len(labels), seed)
    assert covers(dealt, len(labels))
    assert [len(np.unique(labels[rows])) for rows in dealt] == [per_site] * sites
    for label in range(kinds):
        held = [count for rows in dealt if (count := (labels[rows] == label).sum())]
        assert max(held) - min(held) <= 1


def test_site_i_holds_label_i_as_in_niid_bench() -> None:
    labels = np.arange(500) % 5
    dealt = Labels(sites=10, per_site=2).assign(labels, 500, 0)
    assert all(number % 5 in labels[rows] for number, rows in enumerate(dealt))


# natural


def test_natural_gives_each_value_a_site_of_its_name() -> None:
    column = np.array(["va", "hungarian", "va", "cleveland"])
    partition = Natural(column="hospital")
    shares = partition.shares(column, 4, 0)
    assert shares.sites == ("cleveland", "hungarian", "va")
    assert [rows.tolist() for rows in shares.deal(column, 4)] == [[3], [1], [0, 2]]


# mistakes


@pytest.mark.parametrize(
    ("partition", "labels", "n", "message"),
    [
        (Iid(sites=9), None, 8, r'name = "iid": sites = 9, but there are 8 rows; set sites to 8 or fewer'),
        (Dirichlet(sites=2, alpha=1), None, 8, 'needs labels, and the rows have none; use "iid" or "quantity"'),
        (Dirichlet(sites=2, alpha=1), np.linspace(0, 9, 8), 8, "real number"),
        (Dirichlet(sites=2, alpha=1), np.zeros(7, int), 8, r"8 rows have labels of shape \[7\]"),
        (Quantity(sites=4, alpha=1, floor=3), None, 8, "floor = 3 for 4 sites needs 12 rows, there are 8"),
        (Quantity(sites=4, alpha=0.001, floor=2), None, 8, "in 1000 draws .* smaller floor, a larger alpha or fewer"),
        (Labels(sites=2, per_site=3), np.arange(8) % 2, 8, "per_site = 3, but there are 2 labels; set 2 or fewer"),
        (Labels(sites=2, per_site=2), np.arange(8) % 5, 8, "2 sites cannot hold all 5 labels; set per_site = 3"),
        (Labels(sites=4, per_site=2), np.array([0] * 7 + [1]), 8, "label '1' has 1 rows for 4 sites"),
        (Natural(column="bank"), None, 8, "needs the column 'bank', one value for each of 8 rows"),
    ],
)
def test_a_mistake_is_told_in_one_line(partition: Partition, labels: Any, n: int, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        partition.assign(labels, n, 0)
    assert len(caught.value.problems) == 1


def test_a_binary_target_in_floats_counts_as_labels() -> None:
    target = torch.tensor([[0.0], [1.0]] * 20)
    assert covers(Dirichlet(sites=2, alpha=1).assign(target.numpy(), 40, 0), 40)


def test_the_table_is_chosen_by_name() -> None:
    parse = TypeAdapter[Partition](PartitionTable).validate_python
    assert parse({"name": "dirichlet", "alpha": 0.5, "sites": 10}) == Dirichlet(alpha=0.5, sites=10)
    assert parse({"name": "natural", "column": "bank"}) == Natural(column="bank")
    for wrong in ({"name": "dirichlet", "sites": 2}, {"name": "iid", "sites": 2, "alpha": 1}, {"sites": 2}):
        with pytest.raises(ValidationError):
            parse(wrong)


def test_numbered_names_sort_as_their_numbers() -> None:
    for sites in (1, 9, 99, 100, 1000):
        assert sorted(numbered(sites)) == list(numbered(sites))
    assert numbered(2) == ("site-01", "site-02")


# labels_of


class WithTargets:
    targets = (2, 0, 1)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        raise NotImplementedError("rows are costly, and not read where targets are there")


class ByRow:
    def __init__(self, row: Callable[[int], Any]) -> None:
        self.row = row

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> Any:
        return self.row(index)


x, y = torch.zeros(3, 2), torch.tensor([2, 0, 1])


@pytest.mark.parametrize(
    ("dataset", "labels"),
    [
        (TensorDataset(x, y), [2, 0, 1]),
        (TensorDataset(x, y[:, None]), [2, 0, 1]),
        (TensorDataset(x), None),
        (TensorDataset(x, x), None),
        (Subset(TensorDataset(x, y), [2, 0]), [1, 2]),
        (WithTargets(), [2, 0, 1]),
        (ByRow(lambda i: (x[i], int(y[i]))), [2, 0, 1]),
        (ByRow(lambda i: (x[i], y[i])), [2, 0, 1]),
        (ByRow(lambda i: (x[i], "abc"[i])), ["a", "b", "c"]),
        (ByRow(lambda i: x[i]), None),
        (ByRow(lambda i: (x[i], [0] * i)), None),
    ],
)
def test_labels_are_read_where_there_is_one_a_row(dataset: Any, labels: list[Any] | None) -> None:
    found = labels_of(dataset)
    assert (found if found is None else found.tolist()) == labels
