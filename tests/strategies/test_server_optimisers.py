"""FedAvgM, FedAdam, FedYogi, FedAdagrad: against torch.optim where it has the same formula, else against the paper's.

Seen elsewhere: a bias correction that the paper has not, moments for BatchNorm's statistics, which end in NaN.
"""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from hansa.records import ServerState
from strategies.base import Strategy
from strategies.fedadagrad import FedAdagrad
from strategies.fedadam import FedAdam
from strategies.fedavgm import FedAvgM
from strategies.fedyogi import FedYogi

NONE = torch.zeros(0, dtype=torch.int64)
START = torch.tensor([1.0, -2.0, 0.5])
DELTAS = torch.tensor([[0.3, -0.2, 0.0], [-0.1, 0.4, 1e-4], [0.2, 0.2, -3.0], [5.0, -0.01, 0.1]])
EVERY = [FedAvgM(), FedAdam(), FedYogi(), FedAdagrad()]


def after(strategy: Strategy, start: Tensor, deltas: Tensor, n_parameters: int) -> ServerState:
    """The state after a round for each mean update."""
    state = strategy.start(start, NONE, n_parameters)
    for delta in deltas:
        state = strategy.step(state, {"delta": delta}, 1.0)
    return state


def by_torch(kind: type[torch.optim.Optimizer], **settings: Any) -> Tensor:
    """The same, by an optimiser of torch's whose gradient is the update, the other way."""
    w = torch.nn.Parameter(START.clone())
    optimizer = kind([w], **settings)
    for delta in DELTAS:
        w.grad = -delta
        optimizer.step()
    return w.detach()


def test_fedavgm_is_torchs_sgd_with_momentum() -> None:
    expected = by_torch(torch.optim.SGD, lr=0.7, momentum=0.8)
    torch.testing.assert_close(after(FedAvgM(server_lr=0.7, momentum=0.8), START, DELTAS, 3).params, expected)


def test_fedadagrad_is_torchs_adagrad() -> None:
    """It too adds eps outside of the root; its accumulator is made to start at tau^2."""
    expected = by_torch(torch.optim.Adagrad, lr=0.3, initial_accumulator_value=0.05**2, eps=0.05)
    torch.testing.assert_close(after(FedAdagrad(server_lr=0.3, tau=0.05), START, DELTAS, 3).params, expected)


def test_fedadam_is_torchs_adam_without_its_bias_correction() -> None:
    """Adam's lr and eps, changed from step to step by its correction, take it out again (Kingma and Ba, section 2).

    v starts at tau^2, which here is too small to matter.
    """
    w = torch.nn.Parameter(START.clone())
    optimizer = torch.optim.Adam([w], betas=(0.9, 0.99))
    for t, delta in enumerate(DELTAS + 0.5, 1):
        root = math.sqrt(1 - 0.99**t)
        optimizer.param_groups[0].update(lr=0.2 * (1 - 0.9**t) / root, eps=1e-7 / root)
        w.grad = -delta
        optimizer.step()
    found = after(FedAdam(server_lr=0.2, tau=1e-7), START, DELTAS + 0.5, 3).params
    torch.testing.assert_close(found, w.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [FedAdam, FedYogi])
def test_fedadam_and_fedyogi_by_hand(kind: type[FedAdam | FedYogi]) -> None:
    """Algorithm 2 in float64, a number at a time; v of the last number grows and then shrinks."""
    beta1, beta2, tau, lr = 0.8, 0.9, 0.01, 0.3
    expected = []
    for number, start in enumerate(START.tolist()):
        x, m, v = start, 0.0, tau**2
        for delta in DELTAS[:, number].double().tolist():
            m = beta1 * m + (1 - beta1) * delta
            square = delta**2
            if kind is FedAdam:
                v = beta2 * v + (1 - beta2) * square
            else:
                v = v - (1 - beta2) * square * ((v > square) - (v < square))
            x += lr * m / (v**0.5 + tau)
        expected.append(x)
    found = after(kind(server_lr=lr, beta1=beta1, beta2=beta2, tau=tau), START, DELTAS, 3).params
    assert found.tolist() == pytest.approx(expected, rel=1e-5)


def test_the_first_step_of_fedadam_by_hand() -> None:
    """m = 0.1 * 0.3, v = 0.99 * 1e-6 + 0.01 * 0.09; with a bias correction it would be ten times as large."""
    moved = after(FedAdam(), torch.zeros(1), torch.tensor([[0.3]]), 1).params
    assert float(moved) == pytest.approx(0.01 * 0.03 / (math.sqrt(0.99e-6 + 0.9e-3) + 0.001), rel=1e-6)


def test_momentum_zero_is_fedavg_bit_for_bit() -> None:
    plain: Mapping[str, Tensor] = {"delta": DELTAS[0]}
    expected = Strategy().step(ServerState(START, NONE), plain, 1.0).params
    assert torch.equal(after(FedAvgM(momentum=0.0), START, DELTAS[:1], 3).params, expected)


@pytest.mark.parametrize("strategy", EVERY)
def test_buffers_get_the_mean_and_no_moments(strategy: Strategy) -> None:
    """A running variance of which an optimiser takes too much is negative: its root is NaN."""
    state = after(strategy, START, DELTAS, 2)
    assert float(state.params[2]) == pytest.approx(float(START[2] + DELTAS[:, 2].sum()), rel=1e-6)
    assert {len(vector) for vector in state.own.values()} == {2}
    torch.testing.assert_close(state.params[:2], after(strategy, START[:2], DELTAS[:, :2], 2).params)


@pytest.mark.parametrize("strategy", EVERY)
def test_a_step_leaves_the_state_before_it_alone(strategy: Strategy) -> None:
    """A round that turns out not to count goes back to it."""
    before = strategy.start(START.clone(), NONE, 2)
    kept = {name: vector.clone() for name, vector in before.own.items()}
    strategy.step(before, {"delta": DELTAS[0]}, 1.0)
    assert torch.equal(before.params, START)
    assert all(torch.equal(before.own[name], vector) for name, vector in kept.items())
