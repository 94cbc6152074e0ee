"""Splits: nothing lost, nothing doubled, groups whole, both sides filled."""

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Subset, TensorDataset

from clients.split import Rows, choose, valid_split
from hansa.errors import UserError
from hansa.task import collate

fractions = st.floats(0.01, 0.99)
seeds = st.integers(0, 2**31)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbered(n: int, groups: torch.Tensor | None = None) -> Rows:
    return Rows(torch.arange(n), torch.zeros(n), groups=groups)


def numbers(dataset: Any) -> list[int]:
    return [int(dataset[i][0]) for i in range(len(dataset))]


@given(st.integers(2, 60), fractions, seeds)
def test_both_sides_have_rows_and_the_share_is_nearest(n: int, fraction: float, seed: int) -> None:
    gone = int(choose(n, fraction, generator(seed)).sum())
    assert 1 <= gone < n
    assert abs(gone - fraction * n) <= max(0.5, 1 - fraction * n, fraction * n - (n - 1)) + 1e-9


@pytest.mark.parametrize(("n", "fraction"), [(0, 0.5), (1, 0.5), (9, 0.0)])
def test_all_stay_where_there_is_nothing_to_share(n: int, fraction: float) -> None:
    assert not choose(n, fraction, generator(0)).any()
    train, valid = valid_split(numbered(n), fraction, 0, "a")
    assert (len(train), len(valid)) == (n, 0)


@given(st.lists(st.integers(0, 8), min_size=2, max_size=60), fractions, seeds)
def test_no_group_on_both_sides_and_no_row_lost_or_doubled(ids: list[int], fraction: float, seed: int) -> None:
    train, valid = valid_split(numbered(len(ids), torch.tensor(ids)), fraction, seed, "a")
    stays, goes = numbers(train), numbers(valid)
    assert sorted(stays + goes) == list(range(len(ids)))
    assert {ids[i] for i in stays}.isdisjoint(ids[i] for i in goes)
    assert stays
    assert bool(goes) == (len(set(ids)) > 1)


def test_equal_groups_go_in_the_share_asked_for() -> None:
    """20 patients of 5 visits: a quarter is 5 patients, whichever they are."""
    gone = choose(100, 0.25, generator(3), groups=torch.arange(100) % 20)
    assert int(gone.sum()) == 25


@given(st.dictionaries(st.integers(0, 5), st.integers(2, 30), min_size=1), fractions, seeds)
def test_every_class_on_both_sides_where_there_are_no_more_classes_than_rows_to_go(
    sizes: dict[int, int], fraction: float, seed: int
) -> None:
    labels = torch.tensor([label for label, size in sizes.items() for _ in range(size)])
    gone = choose(len(labels), fraction, generator(seed), labels=labels)
    went = Counter(labels[gone].tolist())
    share = max(1, min(len(labels) - 1, int(fraction * len(labels) + 0.5)))
    if len(sizes) <= share:
        for label, size in sizes.items():
            assert 1 <= went[label] < size
            assert abs(went[label] - fraction * size) < 1
    else:
        assert sum(went.values()) == share


def test_same_seed_and_site_give_the_same_split_and_others_another() -> None:
    def draw(seed: int, site: str) -> list[int]:
        return numbers(valid_split(numbered(200), 0.3, seed, site)[1])

    assert draw(1, "a") == draw(1, "a")
    assert draw(1, "a") != draw(2, "a")
    assert draw(1, "a") != draw(1, "b")


def test_tensors_stay_tensors_and_their_groups_stay_with_them() -> None:
    groups = torch.arange(30) // 3
    train, valid = valid_split(numbered(30, groups), 0.3, 0, "a")
    for part in (train, valid):
        assert isinstance(part, Rows)
        assert part.groups is not None
        assert part.groups.tolist() == [number // 3 for number in numbers(part)]
    plain, _ = valid_split(TensorDataset(torch.arange(4)), 0.5, 0, "a")
    assert isinstance(plain, TensorDataset)


def test_any_other_dataset_becomes_a_subset_that_collates() -> None:
    train, valid = valid_split([(float(i), i) for i in range(10)], 0.2, 0, "a")
    assert isinstance(train, Subset)
    assert (len(train), len(valid)) == (8, 2)
    assert sorted(collate(train, range(8))[1].tolist() + collate(valid, range(2))[1].tolist()) == list(range(10))


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_impossible_fraction_is_refused(fraction: float) -> None:
    with pytest.raises(UserError, match="site 'a': valid_fraction"):
        valid_split(numbered(4), fraction, 0, "a")


def test_rows_that_a_tensor_dataset_changes_on_the_way_stay_changed_in_both_parts() -> None:
    class Negative(TensorDataset):
        def __getitem__(self, index: int) -> Any:
            return (-self.tensors[0][index],)

    for part in valid_split(Negative(torch.arange(1.0, 11.0)), 0.3, 0, "boston"):
        assert (collate(part, range(len(part)))[0] < 0).all()
