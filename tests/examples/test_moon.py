"""MOON as its paper has it (Li, He, Song, CVPR 2021)."""

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import hansa
from clients.config import TrainingTable
from clients.memory import MemoryInRam
from clients.site import SiteHalf
from hansa.records import Broadcast, Plan, Reply
from hansa.workbench import Workbench
from simulations.history import History
from strategies.base import Strategy

LR, TAU, MU = 0.5, 0.25, 2.0
FEATURES = "0"  # the first of the model's layers
Chosen = Callable[..., Any]


class Toy(hansa.Task):
    """4 features, a representation z of 3, 2 labels; each site's inputs lie about a mean of their own."""

    def __init__(self, dropout: float = 0.0) -> None:
        self.dropout = dropout

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 3), nn.Dropout(self.dropout), nn.Linear(3, 2))

    def train_data(self, site: hansa.Site) -> TensorDataset:
        number = int(site.name.removeprefix("site-"))
        x = torch.randn(40, 4, generator=torch.Generator().manual_seed(number)) + number / 2
        return TensorDataset(x, (x.sum(1) > 2 * number).long())

    def valid_data(self, site: hansa.Site) -> None:
        return None

    def test_data(self, site: hansa.Site) -> None:
        return None


def params(strategy: Strategy | None, sites: int) -> Tensor:
    """Of the model after three rounds, with dropout."""
    training = {"epochs": 2, "batch_size": 8, "lr": 0.1}
    history: History = hansa.simulate(Toy(0.3), strategy=strategy, sites=sites, training=training, rounds=3)
    return history.state.params


def test_mu_zero_equals_fedavg_bit_for_bit(chosen: Chosen) -> None:
    """What is left of the loss is the task's; the frozen models draw no random number, dropout or not."""
    fedavg = params(None, sites=3)
    assert torch.equal(params(chosen("moon.py:Moon", features=FEATURES, mu=0.0), sites=3), fedavg)
    assert not torch.allclose(params(chosen("moon.py:Moon", features=FEATURES, mu=1.0), sites=3), fedavg)


def test_one_site_alone_equals_fedavg(chosen: Chosen) -> None:
    """Its last local model is the global one: both similarities are the same, and so are their gradients.

    But for the rounding of w_t + (w - w_t).
    """
    moon = params(chosen("moon.py:Moon", features=FEATURES, mu=5.0), sites=1)
    torch.testing.assert_close(moon, params(None, sites=1), rtol=1e-4, atol=1e-6)


def test_contrast_by_hand(chosen: Chosen) -> None:
    """Row 1: sim 1 and 0. Row 2, (3, 4): sim with (4, 3) is 24/25, with (-3, -4) it is -1. tau = 1/4."""
    contrast = vars(sys.modules[type(chosen("moon.py:Moon", features=FEATURES)).__module__])["contrast"]
    z, near, far = (torch.tensor(rows) for rows in ([[1.0, 0], [3, 4]], [[2.0, 0], [4, 3]], [[0.0, 1], [-3, -4]]))
    rows = [-math.log(math.exp(s / TAU) / (math.exp(s / TAU) + math.exp(t / TAU))) for s, t in ((1, 0), (0.96, -1))]
    assert contrast(z, near, far, TAU).item() == pytest.approx(sum(rows) / 2, rel=1e-5)


def test_a_round_is_eq_3_with_the_sites_last_local_model(chosen: Chosen) -> None:
    """Two rounds of one full batch by hand: w <- w - lr * grad(cross-entropy + mu * eq. 3), z being the first layer's.

    Round 1 is plain, there is no last model yet. Round 2 starts from another global model, and looks back at the
    model with which the site, not the federation, ended round 1.
    """
    task, site = Toy(), hansa.Site("site-1", 0)
    strategy = chosen("moon.py:Moon", features=FEATURES, mu=MU, tau=TAU)
    bench = Workbench(task, strategy.local, 0, torch.device("cpu"))
    half = SiteHalf(task, strategy, site, bench, MemoryInRam())
    x, y = task.train_data(site).tensors

    def loss(w: Tensor, w_global: Tensor, w_previous: Tensor) -> Tensor:
        def z(v: Tensor) -> Tensor:
            return F.linear(x, v[:12].view(3, 4), v[12:15])

        near, far = (F.cosine_similarity(z(w), z(other)) / TAU for other in (w_global, w_previous))
        eq_3 = -(near.exp() / (near.exp() + far.exp())).log().mean()
        return F.cross_entropy(F.linear(z(w), w[15:21].view(2, 3), w[21:]), y) + MU * eq_3

    def by_hand(w_global: Tensor, w_previous: Tensor) -> Tensor:
        w = w_global.clone().requires_grad_()
        return w_global - LR * torch.autograd.grad(loss(w, w_global, w_previous), w)[0]

    def by_moon(number: int, w_global: Tensor, memory: dict[str, str]) -> Reply:
        hyper = TrainingTable(batch_size=40, lr=LR).hyper(number)
        sent = Broadcast(w_global, bench.start[1])
        answer = half.handle(Plan("run", 0, number, "train", "valid", sent, hyper, memory))
        assert isinstance(answer, Reply)
        return answer

    first = bench.start[0]
    one = by_moon(1, first, {})
    local = first + one.upload["delta"]
    torch.testing.assert_close(local, by_hand(first, first))
    second = local + 0.3 * torch.randn(23, generator=torch.Generator().manual_seed(5))
    two = by_moon(2, second, {site.name: one.memory or ""})
    torch.testing.assert_close(second + two.upload["delta"], by_hand(second, local))
    assert not torch.allclose(by_hand(second, local), by_hand(second, second), atol=1e-3)


def test_a_module_that_the_model_lacks_is_named(chosen: Chosen) -> None:
    with pytest.raises(
        hansa.UserError, match=r"features: the model has no module 'projection'; it has 0, 1, 2, and theirs"
    ):
        params(chosen("moon.py:Moon", features="projection"), sites=1)
