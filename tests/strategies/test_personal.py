"""q-FedAvg, FedBN and local fine-tuning: for sites that differ."""

from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

from hansa.errors import UserError
from hansa.layout import Layout
from hansa.records import LocalRun
from hansa.task import Dataset, Site, Task
from simulations.api import simulate
from strategies.fedavg import FedAvg
from strategies.fedbn import FedBN
from strategies.finetune import FineTune
from strategies.qfedavg import QFedAvg
from tests.strategies.quadratics import TWO_SIDED, Quadratics, final

NONE = torch.zeros(0, dtype=torch.int64)

# q-FedAvg


def test_q_zero_is_fedavg() -> None:
    work = {"steps": 3, "lr": 0.1}
    assert final(TWO_SIDED, QFedAvg(q=0.0), 4, **work) == pytest.approx(final(TWO_SIDED, FedAvg(), 4, **work), rel=1e-5)


@pytest.mark.parametrize("q", [0.5, 1.0, 2.0])
def test_qfedavg_by_hand(q: float) -> None:
    """Algorithm 2 in float64, L = 1 / lr; the weights by rows are 3/4 and 1/4."""
    sites, lr, x = {"a": (3, 1.0, 4.0), "b": (1, 2.0, -1.0)}, 0.1, 0.5
    for _ in range(3):
        changes, scales = 0.0, 0.0
        for rows, curvature, optimum in sites.values():
            loss, y = curvature / 2 * (x - optimum) ** 2, x
            for _ in range(2):
                y -= lr * curvature * (y - optimum)
            pull = (x - y) / lr  # L * (w_t - w_k)
            changes += rows / 4 * loss**q * pull
            scales += rows / 4 * (q * loss ** (q - 1) * pull**2 + loss**q / lr)
        x -= changes / scales
    found = final(Quadratics(sites, start=0.5), QFedAvg(q=q), 3, steps=2, lr=lr, batch_size=3)
    assert found == pytest.approx(x, rel=1e-5)


def test_a_larger_q_makes_the_sites_losses_more_alike() -> None:
    """At x two sites have (x - 10)^2 / 2 and (x + 5)^2 / 2, of three rows and one: q = 0 ends at their mean, 6.25."""
    task = Quadratics({"a": (3, 1.0, 10.0), "b": (1, 1.0, -5.0)}, start=3.0)
    work = {"steps": 1, "lr": 0.2, "batch_size": 3}
    fair, plain = final(task, QFedAvg(q=2.0), 40, **work), final(task, FedAvg(), 40, **work)
    assert plain == pytest.approx(6.25, abs=1e-3)
    # 3 * (10 - x)^5 = (x + 5)^5 at the optimum of q = 2
    assert fair == pytest.approx((10 * 3**0.2 - 5) / (3**0.2 + 1), abs=0.1)


def test_a_site_without_loss_does_not_break_the_round() -> None:
    """0 to the power q - 1 is infinite for q below 1."""
    task = Quadratics({"a": (1, 1.0, 2.0), "b": (1, 1.0, 4.0)}, start=2.0)
    assert 2.0 < final(task, QFedAvg(q=0.5), 2, steps=1, lr=0.1) < 4.0


def test_qfedavg_leaves_buffers_to_the_mean() -> None:
    run = LocalRun(torch.tensor([0.5, 7.0]), NONE, 1, 0.1, examples=1, told={"loss": 2.0, "lr": 0.1}, n_parameters=1)
    upload, _ = QFedAvg(q=1.0).finish(run, {}, {})
    assert upload["buffers"].tolist() == [7.0]
    assert upload["scale"].tolist() == pytest.approx([0.25 / 0.1 + 2.0])
    assert {n: len(v) for n, v in upload.items()} == {n: part.size for n, part in QFedAvg().parts(2, 1).items()}


# FedBN


class Shifted(Task):
    """Inputs that two sites measure on different scales; the label is whether the true value is positive."""

    scales: ClassVar = {"a": (1.0, 0.0), "b": (50.0, 400.0)}

    def model(self) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 1))

    def train_data(self, site: Site) -> Dataset:
        x = torch.linspace(-1, 1, 64).unsqueeze(1)
        scale, shift = self.scales[site.name]
        return TensorDataset(x * scale + shift, (x.squeeze(1) > 0).long())

    def valid_data(self, site: Site) -> None:
        return None

    def test_data(self, site: Site) -> Dataset:
        return self.train_data(site)


def test_fedbn_shares_all_but_batchnorm() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.LazyLinear(1), nn.LayerNorm(1))
    model(torch.zeros(1, 1, 4, 4))
    shared = Layout.of(model, without=FedBN().local)
    assert [entry.name for entry in (*shared.floats, *shared.counters)] == [
        *("0.weight", "0.bias", "3.weight", "3.bias", "4.weight", "4.bias")
    ]


def test_fedbn_serves_sites_that_measure_differently_and_fedavg_does_not() -> None:
    """With statistics of its own each site sees the same normalised inputs; the pooled ones fit neither."""

    def worst(strategy: Any) -> float:
        work = {"epochs": 4, "lr": 0.5, "batch_size": 16}
        test = simulate(Shifted(), sites=["a", "b"], strategy=strategy, rounds=6, training=work).test
        return min(float(sums["accuracy"][0]) / 64 for sums in test.values())

    assert worst(FedBN()) > 0.95
    assert worst(FedAvg()) < 0.75


def test_a_model_without_batchnorm_is_refused_in_words() -> None:
    with pytest.raises(UserError, match=r"no layer is of the kind <\*BatchNorm\*>; there are Point"):
        final(TWO_SIDED, FedBN(), 1, steps=1)


# local fine-tuning


@pytest.mark.parametrize("passes", [1, 3])
def test_finetune_by_hand(passes: int) -> None:
    """The last round's model, moved by passes * 2 steps at the site; its loss is curvature / 2 * (v - optimum)^2."""
    work = {"steps": 2, "lr": 0.05}
    history = simulate(TWO_SIDED, sites=["a", "b"], strategy=FineTune(passes=passes), rounds=3, training=work)
    before = final(TWO_SIDED, FedAvg(), 2, **work)
    for name, (_, curvature, optimum) in TWO_SIDED.sites.items():
        v = optimum + (before - optimum) * (1 - 0.05 * curvature) ** (2 * passes)
        found = float(torch.as_tensor(history.test[name]["personal_loss"])[0])
        assert found == pytest.approx(curvature / 2 * (v - optimum) ** 2, rel=1e-4)
    assert float(history.state.params) == final(TWO_SIDED, FedAvg(), 3, **work)
