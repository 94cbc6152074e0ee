"""Median, trimmed mean and cyclic weight transfer: what the server does with single updates."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from hansa.errors import UserError
from hansa.records import ServerState
from hansa.task import Dataset, Site, Task
from privacy.config import PrivacyTable
from privacy.dp.config import DpTable
from simulations.api import simulate
from simulations.datasets.digits import Digits
from simulations.partition import Iid
from strategies.base import Strategy
from strategies.cyclic import Cyclic
from strategies.fedavg import FedAvg
from strategies.median import Median
from strategies.trimmed_mean import TrimmedMean, trimmed
from tests.strategies.quadratics import Quadratics

NONE = torch.zeros(0, dtype=torch.int64)
VALUE = st.floats(-100, 100, width=32)


def moved(strategy: Strategy, rows: list[list[float]]) -> list[float]:
    """Where the model goes from zero, by a row a site."""
    state = ServerState(torch.zeros(len(rows[0])), NONE)
    after: list[float] = strategy.step(state, {"delta": torch.tensor(rows)}, 1.0).params.tolist()
    return after


def test_the_median_by_hand() -> None:
    """Number by number; of four the mean of the middle two, where torch.median gives the lower."""
    assert moved(Median(), [[1.0, -9.0], [2.0, 0.0], [90.0, 4.0]]) == [2.0, 0.0]
    assert moved(Median(), [[1.0], [2.0], [4.0], [90.0]]) == [3.0]


def test_the_trimmed_mean_by_hand() -> None:
    """Beta 0.2 of five: one off each end. Of two none can go."""
    rows = [[1.0, -9.0], [2.0, 0.0], [3.0, 3.0], [4.0, 6.0], [90.0, 7.0]]
    assert moved(TrimmedMean(beta=0.2), rows) == [3.0, 3.0]
    assert moved(TrimmedMean(beta=0.2), rows[:2]) == [1.5, -4.5]


@pytest.mark.parametrize("sites", [10, 20, 30])
def test_a_share_that_is_a_whole_number_is_not_rounded_up(sites: int) -> None:
    """0.1 * 30 is 3.0000000000000004 to a computer: three are cut off, not four."""
    rows = torch.zeros(sites, 1)
    rows[sites // 10] = 1.0  # sorted it is the last, and is cut
    rows[: sites // 10] = torch.arange(1, sites // 10 + 1).unsqueeze(1) + 1.0
    assert moved(TrimmedMean(beta=0.1), rows.tolist())[0] == pytest.approx(1.0 / (sites - 2 * (sites // 10)))


@given(st.lists(VALUE, min_size=1, max_size=9), st.data())
def test_fewer_than_half_cannot_move_the_median_beyond_the_others(honest: list[float], data: st.DataObject) -> None:
    wild = data.draw(st.lists(st.sampled_from([-1e30, -7.0, 0.0, 7.0, 1e30]), max_size=len(honest) - 1))
    found = moved(Median(), [[x] for x in data.draw(st.permutations(honest + wild))])[0]
    assert min(honest) <= found <= max(honest)


@given(st.integers(1, 7), st.integers(1, 40), st.data())
def test_trimmed_equals_scipys(sites: int, size: int, data: st.DataObject) -> None:
    """scipy.stats.trim_mean cuts off a share, rounded down."""
    from scipy.stats import trim_mean

    cut = data.draw(st.integers(0, (sites - 1) // 2))
    rows = torch.tensor(data.draw(st.lists(VALUE, min_size=sites * size, max_size=sites * size))).view(sites, size)
    expected = trim_mean(rows.double().numpy(), (cut + 0.5) / sites, axis=0)
    assert trimmed(rows, cut).tolist() == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-6)


class Flipped(Task):
    """Digits; at two sites of ten the labels are marked, and the loss turns round."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))

    def train_data(self, site: Site) -> Dataset:
        rows = super().train_data(site)
        if site.name not in ("site-01", "site-02"):
            return rows
        x, y = zip(*(rows[i] for i in range(len(rows))), strict=True)
        return TensorDataset(torch.stack([torch.as_tensor(one) for one in x]), torch.as_tensor(y) + 10)

    def valid_data(self, site: Site) -> None:
        return None

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        wrong = target >= 10
        losses = nn.functional.cross_entropy(output, target.remainder(10).long(), reduction="none")
        return torch.where(wrong, -10.0 * losses, losses).mean()


class Clean(Flipped):
    def train_data(self, site: Site) -> Dataset:
        return Task.train_data(self, site)


def accuracy(task: Task, strategy: Strategy) -> float:
    """Over all test rows, %."""
    work: dict[str, Any] = {"epochs": 4, "lr": 1.0}
    history = simulate(task, dataset=Digits(), partition=Iid(sites=10), strategy=strategy, rounds=5, training=work)
    told, rows = torch.stack([torch.as_tensor(sums["accuracy"]) for sums in history.test.values()]).sum(0).tolist()
    return float(100 * told / rows)


def test_sites_that_climb_their_loss_break_fedavg_and_not_the_others() -> None:
    """Of ten sites two send the opposite, ten times as large: within three points of training without them."""
    clean = accuracy(Clean(), FedAvg())
    assert clean > 90
    assert accuracy(Flipped(), FedAvg()) < 50
    assert accuracy(Flipped(), Median()) > clean - 3
    assert accuracy(Flipped(), TrimmedMean(beta=0.2)) > clean - 3


@pytest.mark.parametrize("strategy", [Median(), TrimmedMean(), Cyclic()])
def test_under_secure_aggregation_they_are_refused_in_words(strategy: Strategy) -> None:
    task, privacy = Quadratics({name: (1, 1.0, 1.0) for name in "abc"}), PrivacyTable(secure=True, clip=1.0)
    with pytest.raises(UserError, match=f"{type(strategy).__name__}: it must see each site's update"):
        simulate(task, sites=["a", "b", "c"], strategy=strategy, rounds=1, privacy=privacy)


def test_noise_for_whole_sites_is_refused_in_words() -> None:
    """It would be on a mean that nobody makes."""
    task = Quadratics({name: (1, 1.0, 1.0) for name in "ab"})
    dp = DpTable(unit="site", epsilon=1.0, delta=1e-3, clip=1.0)
    with pytest.raises(UserError, match="the strategy must see each update"):
        simulate(task, sites=["a", "b"], strategy=Median(), rounds=1, dp=dp)


def test_cyclic_is_training_at_one_site_after_the_other() -> None:
    """Gradient descent in float64 on a, b, a, b, a; b's curvature is 4."""
    task = Quadratics({"a": (1, 1.0, 10.0), "b": (1, 4.0, -5.0)}, start=3.0)
    x = 3.0
    for curvature, optimum in [(1.0, 10.0), (4.0, -5.0)] * 2 + [(1.0, 10.0)]:
        x = optimum + (x - optimum) * (1 - 0.05 * curvature) ** 3
    history = simulate(task, sites=["b", "a"], strategy=Cyclic(), rounds=5, training={"steps": 3, "lr": 0.05})
    assert float(history.state.params) == pytest.approx(x, rel=1e-6)
