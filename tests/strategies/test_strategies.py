"""Each algorithm against its paper, hand computation, or another algorithm that it contains."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import hansa
from hansa.errors import UserError
from hansa.records import LocalRun, ServerState
from hansa.task import Task
from simulations.api import simulate
from simulations.datasets.digits import Digits
from simulations.partition import Dirichlet
from strategies.base import Step, Strategy
from strategies.ditto import Ditto
from strategies.fedavg import FedAvg
from strategies.fedprox import FedProx
from strategies.scaffold import Scaffold
from tests.strategies.quadratics import OPTIMUM, TWO_SIDED, Quadratics, final

PLAIN = Step(lr=0.1, momentum=0.0)


class DigitsTask(Task):
    """Softmax regression on 8 x 8 digits."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def digits(strategy: Strategy, **training: Any) -> Tensor:
    """The model after three rounds at four uneven sites."""
    work = {"epochs": 2, "lr": 0.1, **training}
    split = Dirichlet(sites=4, alpha=0.5)
    history = simulate(DigitsTask(), dataset=Digits(), partition=split, strategy=strategy, rounds=3, training=work)
    return history.state.params


# FedAvg


def test_fedavg_of_two_quadratics_by_hand() -> None:
    """One step each from 0 at lr 0.1: a moves to 0.1 * 1 * 4, b to 0.1 * 2 * -1; weights 3 and 1."""
    task = Quadratics({"a": (3, 1.0, 4.0), "b": (1, 2.0, -1.0)})
    by_hand = (3 * 0.4 + 1 * -0.2) / 4
    assert final(task, FedAvg(), 1, steps=1, lr=0.1, batch_size=3) == pytest.approx(by_hand, rel=1e-6)


def test_one_site_equals_central_training() -> None:
    """FedAvg with one site is its local SGD; rounding in the sum costs 2^-33 a round and row."""
    task = Quadratics({"a": (4, 0.7, 3.0)})
    history = simulate(task, sites=["a"], rounds=5, training={"steps": 4, "lr": 0.1, "batch_size": 4})
    by_hand = 3.0 * (1 - (1 - 0.1 * 0.7) ** 20)
    assert float(history.state.params) == pytest.approx(by_hand, rel=1e-6)


# FedProx


def test_mu_zero_equals_fedavg_bit_for_bit() -> None:
    assert torch.equal(digits(FedProx(mu=0.0)), digits(FedAvg()))


def test_mu_changes_the_result() -> None:
    """Seen elsewhere: a proximal term that compared parameters with themselves, always 0."""
    assert not torch.equal(digits(FedProx(mu=1.0)), digits(FedAvg()))


@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(0, 5))
def test_the_proximal_gradient_equals_finite_differences(w: float, anchor: float, mu: float) -> None:
    """The term is mu/2 * (w - anchor)^2 (eq. 2): its central difference is exact for a quadratic, but for rounding."""
    point, near = (torch.tensor([x], dtype=torch.float64) for x in (w, anchor))
    gradient = FedProx(mu=mu).correct_grad(torch.zeros(1, dtype=torch.float64), point, near, {}, {}, PLAIN)
    h = 1e-3
    difference = (mu / 2 * (w + h - anchor) ** 2 - mu / 2 * (w - h - anchor) ** 2) / (2 * h)
    assert float(gradient) == pytest.approx(difference, abs=1e-9)


# SCAFFOLD


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_scaffold_reaches_the_optimum_of_two_sided_quadratics(momentum: float) -> None:
    """With many local steps FedAvg stops elsewhere; the control variates remove that drift (theorem III).

    At the fixed point every corrected gradient is zero from the first step on, with or without momentum.
    """
    work = {"steps": 10, "lr": 0.02, "momentum": momentum}
    assert final(TWO_SIDED, Scaffold(), 150, **work) == pytest.approx(OPTIMUM, abs=1e-3)


def test_fedavg_stops_elsewhere_on_two_sided_quadratics() -> None:
    """Its fixed point weights site k by 1 - (1 - lr * curvature_k)^steps in place of the curvature."""
    pull = {c: 1 - (1 - 0.02 * c) ** 10 for c in (1.0, 4.0)}
    fixed = (pull[1.0] * 10.0 + pull[4.0] * -5.0) / (pull[1.0] + pull[4.0])
    assert abs(fixed - OPTIMUM) > 0.5
    assert final(TWO_SIDED, FedAvg(), 60, steps=10, lr=0.02) == pytest.approx(fixed, abs=1e-3)


def test_scaffold_by_hand() -> None:
    """Algorithm 1, option II, worked in float64 for two rounds of two steps."""
    x, c, own, lr, steps = 3.0, 0.0, {"a": 0.0, "b": 0.0}, 0.05, 2
    sites = {"a": (1.0, 10.0), "b": (4.0, -5.0)}
    for _ in range(2):
        moves, changes = [], []
        for name, (curvature, optimum) in sites.items():
            y = x
            for _ in range(steps):
                y -= lr * (curvature * (y - optimum) - own[name] + c)
            new = own[name] - c + (x - y) / (steps * lr)
            moves.append(y - x)
            changes.append(new - own[name])
            own[name] = new
        x, c = x + sum(moves) / 2, c + sum(changes) / 2
    assert final(TWO_SIDED, Scaffold(), 2, steps=steps, lr=lr) == pytest.approx(x, rel=1e-5)


def test_the_server_moves_c_by_the_share_of_sites_that_took_part() -> None:
    """Eq. 5: c + |S|/N * mean(delta c), here 1/2 * 4."""
    state = ServerState(torch.zeros(1), torch.zeros(0, dtype=torch.int64), {"control": torch.ones(1)})
    after = Scaffold(server_lr=0.5).step(state, {"delta": torch.tensor([2.0]), "control": torch.tensor([4.0])}, 0.5)
    assert (float(after.params), float(after.shared["control"])) == (1.0, 3.0)


def test_scaffold_refuses_adam_in_words() -> None:
    with pytest.raises(UserError, match="Scaffold: not valid with Adam; it needs SGD"):
        final(TWO_SIDED, Scaffold(), 1, steps=1, optimizer="adam")


def test_scaffolds_control_variates_concern_parameters_only() -> None:
    """BatchNorm's running statistics follow no gradient."""
    none = torch.zeros(0, dtype=torch.int64)
    run = LocalRun(torch.tensor([-0.2, 7.0]), none, steps=2, lr_sum=0.2, examples=1, n_parameters=1)
    upload, memory = Scaffold().finish(run, {"control": torch.zeros(1)}, {})
    assert upload["control"].tolist() == pytest.approx([1.0])
    assert memory["control"].shape == (1,)


# Ditto


def test_ditto_shares_fedavgs_model_bit_for_bit() -> None:
    assert torch.equal(digits(Ditto(lam=0.5)), digits(FedAvg()))


@pytest.mark.parametrize(("lam", "where"), [(0.0, 10.0), (3.0, (1.0 * 10.0 + 3.0 * -4.0) / (1.0 + 3.0))])
def test_dittos_personal_model_balances_its_loss_and_the_shared_model(lam: float, where: float) -> None:
    """F_a(v) + lam/2 (v - w)^2 has its minimum at (curvature * optimum + lam * w) / (curvature + lam); w is -4.

    b's weight is so large that the shared model stays at its optimum, -4, where it starts.
    """
    task = Quadratics({"a": (1, 1.0, 10.0)}, start=-4.0)
    history = simulate(task, sites=["a"], strategy=Ditto(lam=lam), rounds=1, training={"steps": 300, "lr": 0.05})
    assert history.test["a"]["personal_loss"][0] >= 0
    shared = float(history.state.params)
    personal = 10.0 - (2 * float(history.test["a"]["personal_loss"][0])) ** 0.5
    assert shared == pytest.approx(10.0, abs=1e-3)
    assert personal == pytest.approx((1.0 * 10.0 + lam * -4.0) / (1.0 + lam), abs=1e-3) == pytest.approx(where, abs=2)


# the interface


def test_a_plain_class_is_a_strategy() -> None:
    """Server learning rate 2 doubles the step."""

    class Doubling(hansa.Strategy):
        def step(self, state: ServerState, mean: Mapping[str, Tensor], share: float) -> ServerState:
            return ServerState(state.params + 2 * mean["delta"], state.counters)

    task = Quadratics({"a": (1, 1.0, 4.0), "b": (1, 1.0, 2.0)})
    once = final(task, FedAvg(), 1, steps=1, lr=0.1)
    assert final(task, Doubling(), 1, steps=1, lr=0.1) == pytest.approx(2 * once)


@pytest.mark.parametrize("field", [{"mu": -1}, {"mu": float("nan")}, {"muu": 1}])
def test_a_strategy_checks_its_fields(field: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="FedProx"):
        FedProx(**field)
