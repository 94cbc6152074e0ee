"""Rows under DP-SGD see no other row's loss, and nothing that they do is said: not even that training failed."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from clients.config import TrainingTable
from clients.memory import MemoryInRam
from clients.poisson import PoissonBatches
from clients.rowloss import RowLoss
from clients.rowwise import tried
from clients.site import SiteHalf
from hansa.errors import UserError
from hansa.records import Broadcast, Plan, Reply
from hansa.task import Site as Place
from hansa.task import Task
from hansa.workbench import Workbench
from privacy.dp.mechanism import DpSgd
from privacy.dp.randomness import Stream
from strategies.fedavg import FedAvg
from tests.clients.test_dpsgd import CPU, KEY, Site, Sorting

N, ODD = 200, 37  # rows, and one that is not among the five that are tried
INPUTS = torch.randn(N, 4, generator=torch.Generator().manual_seed(1)) * 0.05


class Lost(Sorting):
    """With a loss of its own."""

    def __init__(self, model: nn.Module, of: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__(model)
        self.of = of

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self.of(output, target)


def weights_of_rows(output: Tensor, target: Tensor) -> Tensor:
    weights = 1 + 99.0 * (target == 1)
    return (weights * F.cross_entropy(output, target, reduction="none")).sum() / weights.sum()


def cox(output: Tensor, target: Tensor) -> Tensor:
    """Negative log partial likelihood; the five that are tried had no event."""
    risk = output[:, 0]
    return ((risk.logcumsumexp(0) - risk) * target).sum() / target.sum().clamp(min=1)


def flooded(output: Tensor, target: Tensor) -> Tensor:
    """Ishida et al. 2020."""
    return (F.cross_entropy(output, target) - 1).abs() + 1


COUPLED = {
    "weights of classes": lambda output, target: F.cross_entropy(output, target, torch.tensor([1.0, 50.0])),
    "weights of rows": weights_of_rows,
    "Cox": cox,
    "flooding": flooded,
}


@pytest.mark.parametrize("name", COUPLED)
def test_a_loss_that_couples_rows_moves_the_sum_by_no_more_than_a_clip(name: str) -> None:
    """It passes where five rows are tried; without the odd row all others would change."""
    torch.manual_seed(0)
    inputs, target = INPUTS.clone(), torch.zeros(N, dtype=torch.long)
    inputs[ODD], target[ODD] = 300.0 if name == "flooding" else inputs[ODD], 1
    rest = torch.arange(N) != ODD
    task = Lost(nn.Linear(4, 2), COUPLED[name])
    whole = Site(task, TensorDataset(inputs, target)).train().sum
    less = Site(task, TensorDataset(inputs[rest], target[rest])).train().sum
    assert float((whole - less).norm()) <= 1 + 1e-4


def test_a_loss_that_asks_what_numbers_are_is_asked_row_by_row() -> None:
    """torch cannot map it over rows."""

    def asking(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target) * (2.0 if float(target.sum()) else 1.0)

    batch = INPUTS[:6], torch.tensor([0, 1, 0, 0, 1, 1])
    model = nn.Linear(4, 2)
    loss = RowLoss(Lost(model, asking))
    each = F.cross_entropy(model(batch[0]), batch[1], reduction="none") * (1 + batch[1])
    assert float(loss(model, batch, 6).detach()) == pytest.approx(float(each.sum().detach()), rel=1e-6)
    assert not loss.mapped


class Breaking(Sorting):
    """Fails where a score is above a bound, as a task that checks its numbers does."""

    def forward(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        output = model(batch[0])
        if (output > 1e3).any():
            raise ValueError("too sure")
        return output, batch[1]


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("chunk_bytes", [1, 1 << 26])
def test_a_row_at_which_the_task_fails_counts_as_zero(grouped: bool, chunk_bytes: int) -> None:
    """The unit's, and no other's."""
    torch.manual_seed(0)
    inputs, target = INPUTS[:20].clone(), torch.arange(20) % 2
    inputs[7] = 1e6
    units = list(torch.arange(20).view(10, 2).numpy()) if grouped else None
    rest = [unit for unit in torch.arange(20).view(-1, 2 if grouped else 1).numpy() if 7 not in unit]
    site = Site(Breaking(nn.Linear(4, 2)), TensorDataset(inputs, target), units, chunk_bytes=chunk_bytes)
    done = site.train()
    assert done.seen.invalid == 1
    assert done.seen.units == len(rest) + 1
    site.units = rest
    assert done.sum == pytest.approx(site.train().sum, rel=1e-4, abs=1e-6)


class Regressing(Task):
    kind = "regression"

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def model(self) -> nn.Module:
        return nn.Linear(4, 1)

    def train_data(self, site: Place) -> TensorDataset:
        return self.data

    def valid_data(self, site: Place) -> None:
        return None


@pytest.fixture
def half() -> SiteHalf:
    task = Regressing(TensorDataset(INPUTS * 20, torch.zeros(N)))
    return SiteHalf(task, FedAvg(), Place("s", 0), Workbench(task, (), 0, CPU), MemoryInRam())


def plan(params: Tensor) -> Plan:
    dp = {"unit": "record", "noise_multiplier": 2.0, "delta": 1e-5, "clip": 1.0, "rounds": 1}
    hyper = TrainingTable(steps=1, batch_size=N, lr=1.0).hyper(1) | {"dp": dp}
    return Plan("r", 0, 1, "train", "valid", Broadcast(params, torch.zeros(0, dtype=torch.int64), {}), hyper, {})


@pytest.mark.parametrize("scale", [0.0, 1e-40, 1e17, 3e18, 1e19, 3e38, math.inf, math.nan])
def test_no_model_of_the_server_s_makes_training_fail(scale: float, half: SiteHalf) -> None:
    """Squares of scores overflow for some rows and not for others; all that leaves is noise of the same size."""
    params = torch.zeros(5)
    params[0] = scale
    reply = half.handle(plan(params))
    assert isinstance(reply, Reply)
    noise = reply.upload["delta"][1:] if scale > 1 or math.isnan(scale) else reply.upload["delta"]
    assert noise.isfinite().all()
    assert noise.all()


def test_the_task_is_tried_once_on_the_model_that_the_run_starts_with(
    half: SiteHalf, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def watched(task: Task, model: nn.Module, *rest: Any) -> Any:
        found.append(half.bench.shared.read(model))
        return tried(task, model, *rest)

    monkeypatch.setattr("clients.site.tried", watched)
    for scale in (5.0, -3.0):
        params = torch.full((5,), scale)
        reply = half.handle(plan(params))
        assert isinstance(reply, Reply)
        assert float(reply.upload["delta"].norm()) < 2  # from the plan's model, not from the first
    (once,) = found
    assert torch.equal(once, half.bench.start[0])


def test_a_task_that_is_refused_is_refused_before_it_trains(half: SiteHalf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Regressing, "loss", lambda self, output, target: F.mse_loss(output[:, 0], target) * len(target))
    with pytest.raises(UserError, match="return the mean over rows"):
        half.handle(plan(torch.zeros(5)))


def test_draws_are_made_as_they_are_gone_over() -> None:
    """A plan may have a million million steps."""
    mechanism = DpSgd("record", N, 0.5, 1.0, 1.0, 1 << 40)
    batches = PoissonBatches(Sorting(nn.Linear(4, 2)), TensorDataset(INPUTS), mechanism, Stream(KEY), CPU)
    for draw in itertools.islice(batches.draws(64), 3):
        assert sum(len(piece.rows) for piece, _ in draw) > 50
