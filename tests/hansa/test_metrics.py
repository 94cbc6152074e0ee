"""Sums over batches and sites give the metric over all rows."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from hansa.metrics import BINS, LOGIT_RANGE, as_sums, ratio, roc, total, value

LABELLED = st.lists(st.tuples(st.floats(-15, 15, width=32), st.integers(0, 1)), min_size=2, max_size=40).filter(
    lambda rows: len({label for _, label in rows}) == 2
)


@given(LABELLED)
def test_auc_equals_sklearn_up_to_pairs_in_one_bin(rows: list[tuple[float, int]]) -> None:
    """A pair in one bin counts 1/2 in place of 0 or 1: the two differ by at most half the share of such pairs."""
    logits, labels = torch.tensor([x for x, _ in rows], dtype=torch.float64), torch.tensor([y for _, y in rows])
    histograms = roc(logits, labels)
    together = float((histograms[0] * histograms[1]).sum() / (histograms[0].sum() * histograms[1].sum()))
    auc = value(histograms)
    assert auc == pytest.approx(roc_auc_score(labels, logits), abs=together / 2 + 1e-12)


@given(LABELLED, LABELLED)
def test_auc_of_two_sites_is_that_of_the_pooled_rows(a: list[tuple[float, int]], b: list[tuple[float, int]]) -> None:
    parts = [roc(torch.tensor([x for x, _ in rows]), torch.tensor([y for _, y in rows])) for rows in (a, b)]
    pooled = roc(torch.tensor([x for x, _ in a + b]), torch.tensor([y for _, y in a + b]))
    assert torch.equal(total([{"auc": part} for part in parts])["auc"], pooled)


def test_one_class_only_leaves_auc_undefined() -> None:
    assert value(roc(torch.tensor([0.1, 0.2]), torch.tensor([1, 1]))) is None


def test_a_perfect_ranking_has_auc_1_and_ties_half() -> None:
    assert value(roc(torch.tensor([-1.0, 1.0]), torch.tensor([0, 1]))) == 1.0
    assert value(roc(torch.zeros(2), torch.tensor([0, 1]))) == 0.5


def test_scores_beyond_the_range_fall_into_the_outermost_bins() -> None:
    histograms = roc(torch.tensor([-1e9, 1e9, math.inf, -math.inf]), torch.tensor([0, 1, 1, 0]))
    assert [float(histograms[0, 0]), float(histograms[1, BINS - 1])] == [2, 2]
    assert LOGIT_RANGE < 1e9


def test_nothing_counted_is_undefined() -> None:
    assert value(ratio(0, 0)) is None


def test_a_pair_becomes_a_ratio() -> None:
    sums = total([as_sums({"accuracy": (torch.tensor(3), 4)}), as_sums({"accuracy": (1, 4)})])
    assert value(sums["accuracy"]) == 0.5
