"""FedNova and FedDyn: against their papers, by hand, and the optimum that uneven local work must not move."""

import pytest
import torch
from torch import Tensor

from hansa.records import LocalRun, ServerState
from strategies.base import Strategy
from strategies.fedavg import FedAvg
from strategies.feddyn import FedDyn
from strategies.fednova import FedNova
from strategies.scaffold import Scaffold
from tests.strategies.quadratics import OPTIMUM, TWO_SIDED, Quadratics, final

NONE = torch.zeros(0, dtype=torch.int64)
UNEVEN = Quadratics({"a": (2, 1.0, 10.0), "b": (8, 1.0, -5.0)}, start=3.0)  # one epoch: 1 step at a, 4 at b


def local(delta: list[float], lr_sum: float, n_parameters: int = 1, steps: int = 2) -> LocalRun:
    return LocalRun(torch.tensor(delta), NONE, steps, lr_sum, examples=1, n_parameters=n_parameters)


# FedNova


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_by_hand(momentum: float) -> None:
    """Eq. 6 in float64: ||a||_1 is 1 + (1 + rho) + (1 + rho + rho^2) + ...; a makes one step, b four.

    Seen elsewhere: the number of steps in its place, which is wrong under momentum.
    """
    lr, x = 0.05, 3.0
    norms = [sum(sum(momentum**j for j in range(k + 1)) for k in range(steps)) for steps in (1, 4)]
    shares, optima = (0.2, 0.8), (10.0, -5.0)
    for _ in range(2):
        directions = []
        for steps, norm, optimum in zip((1, 4), norms, optima, strict=True):
            y, velocity = x, 0.0
            for _ in range(steps):
                velocity = momentum * velocity + (y - optimum)
                y -= lr * velocity
            directions.append((x - y) / (lr * norm))
        tau = sum(p * norm for p, norm in zip(shares, norms, strict=True))
        x -= tau * lr * sum(p * d for p, d in zip(shares, directions, strict=True))
    found = final(UNEVEN, FedNova(), 2, epochs=1, batch_size=2, lr=lr, momentum=momentum)
    assert found == pytest.approx(x, rel=1e-5)


def test_fednova_is_fedavg_where_all_sites_do_the_same_work() -> None:
    """Then tau_eff * lr is each site's lr * ||a_i||_1, and cancels."""
    work = {"steps": 3, "lr": 0.1, "momentum": 0.5}
    assert final(TWO_SIDED, FedNova(), 4, **work) == pytest.approx(final(TWO_SIDED, FedAvg(), 4, **work), rel=1e-5)


def test_fednova_ends_nearer_to_the_optimum_than_fedavg_where_work_is_uneven() -> None:
    """FedAvg's fixed point weights sites by p_i times their pull 1 - (1 - lr)^steps_i, FedNova's by that a step."""
    work, pulls = {"epochs": 1, "batch_size": 2, "lr": 0.05}, {steps: 1 - 0.95**steps for steps in (1, 4)}

    def fixed(a: float, b: float) -> float:
        return (0.2 * a * 10.0 + 0.8 * b * -5.0) / (0.2 * a + 0.8 * b)

    assert final(UNEVEN, FedAvg(), 60, **work) == pytest.approx(fixed(pulls[1], pulls[4]), abs=1e-3)
    assert final(UNEVEN, FedNova(), 60, **work) == pytest.approx(fixed(pulls[1], pulls[4] / 4), abs=1e-3)
    optimum = 0.2 * 10.0 + 0.8 * -5.0
    assert abs(fixed(pulls[1], pulls[4] / 4) - optimum) < 0.2 < 1.5 < abs(fixed(pulls[1], pulls[4]) - optimum)


def test_fednova_leaves_buffers_to_the_mean() -> None:
    upload, _ = FedNova().finish(local([0.4, 0.6, 7.0], 0.2, n_parameters=2), {}, {})
    assert upload["direction"].tolist() == pytest.approx([2.0, 3.0])
    assert upload["buffers"].tolist() == [7.0]
    assert {name: len(vector) for name, vector in upload.items()} == {
        n: p.size for n, p in FedNova().parts(3, 2).items()
    }
    mean: dict[str, Tensor] = {"direction": torch.tensor([2.0, 3.0]), "moved": torch.tensor([0.3])}
    after = FedNova().step(ServerState(torch.ones(3), NONE), {**mean, "buffers": torch.tensor([7.0])}, 1.0)
    assert after.params.tolist() == pytest.approx([1.6, 1.9, 8.0])


# FedDyn


def test_feddyn_by_hand() -> None:
    """Algorithm 1 in float64 for three rounds of two steps."""
    alpha, lr, x, h, own = 0.5, 0.05, 3.0, 0.0, {"a": 0.0, "b": 0.0}
    sites = {"a": (1.0, 10.0), "b": (4.0, -5.0)}
    for _ in range(3):
        ends = {}
        for name, (curvature, optimum) in sites.items():
            y = x
            for _ in range(2):
                y -= lr * (curvature * (y - optimum) - own[name] + alpha * (y - x))
            own[name] -= alpha * (y - x)
            ends[name] = y
        h -= alpha * sum(y - x for y in ends.values()) / 2
        x = sum(ends.values()) / 2 - h / alpha
    assert final(TWO_SIDED, FedDyn(alpha=alpha), 3, steps=2, lr=lr) == pytest.approx(x, rel=1e-5)


@pytest.mark.parametrize(("strategy", "near"), [(FedDyn(alpha=1.0), True), (Scaffold(), True), (FedAvg(), False)])
def test_feddyn_reaches_the_optimum_of_the_whole(strategy: Strategy, near: bool) -> None:
    """Its fixed point has a mean gradient of zero (section 3), however much the sites work; FedAvg's has not."""
    found = final(TWO_SIDED, strategy, 60, steps=10, lr=0.05)
    assert (abs(found - OPTIMUM) < 1e-2) is near


def test_the_server_moves_h_by_the_share_of_sites_that_took_part() -> None:
    """H is the mean of g_k over all sites, and the g_k of the others stay: 0 - 0.5 * 1/4 * 2; x = 2 + 0.25 / 0.5."""
    start = FedDyn(alpha=0.5).start(torch.zeros(1), NONE, 1)
    after = FedDyn(alpha=0.5).step(start, {"delta": torch.tensor([2.0])}, 0.25)
    assert (float(after.own["h"]), float(after.params)) == (-0.25, 2.5)


def test_feddyns_memory_concerns_parameters_only() -> None:
    _, memory = FedDyn(alpha=0.1).finish(local([-0.2, 7.0], 0.2), {}, {"gradient": torch.tensor([1.0])})
    assert memory["gradient"].tolist() == pytest.approx([1.02])
