"""What DP-SGD does not take, each with a line that says what and the mend; and what looks like it, and is taken."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import TensorDataset

from clients.config import TrainingTable
from clients.dpsgd import DpTrainer
from clients.poisson import PoissonBatches
from hansa.errors import UserError
from hansa.layout import Layout
from hansa.records import LocalRun
from hansa.task import Task
from privacy.dp.mechanism import DpSgd
from privacy.dp.randomness import Stream
from strategies.fedavg import FedAvg

CPU = torch.device("cpu")
INPUTS = torch.randn(20, 6, generator=torch.Generator().manual_seed(0))
DATA = TensorDataset(INPUTS, torch.arange(20) % 3)


class Sorting(Task):
    def __init__(self, *layers: nn.Module) -> None:
        self.layers = layers or (nn.Linear(6, 3),)

    def model(self) -> nn.Module:
        return nn.Sequential(*self.layers)


def train(task: Task, data: TensorDataset = DATA, **more: Any) -> LocalRun:
    model, hyper = task.model(), TrainingTable(steps=2, lr=0.1).hyper(1)
    layout, stream, mechanism = Layout.of(model), Stream(bytes(32)), DpSgd("record", len(data), 0.5, 1.0, 1.0, 2)
    fields: Any = (task, FedAvg(), layout, layout.read(model), {}, {}, hyper, CPU, len(data), mechanism, stream)
    trainer = DpTrainer(*fields)
    return trainer.fit(model, PoissonBatches(task, data, mechanism, stream, CPU), **more)


class Mixing(nn.Module):
    """Subtracts the mean of what is in the batch; only in training, if so wanted."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always = always

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0) if self.always or self.training else x


class Keeping(nn.Module):
    """Keeps a running mean."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        self.mean += 0.1 * (x.detach().mean(0) - self.mean)
        return x


class Wide(nn.Module):
    """[B, 6] -> [B, C, 6]"""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Tensor) -> Tensor:
        return x.unsqueeze(1).expand(-1, self.channels, -1)


def zeroed(layer: nn.Linear) -> nn.Module:
    nn.init.zeros_(layer.weight)
    return layer


def normalised(norm: nn.Module) -> Task:
    return Sorting(Wide(12), norm, nn.Flatten(), nn.Linear(72, 3))


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (normalised(nn.BatchNorm1d(12)), r"BatchNorm1d \(1\), which mixes rows; use torch.nn.GroupNorm\(4, 12\)"),
        (Sorting(Mixing(True), nn.Linear(6, 3)), "depends on the other rows of its batch; take a layer"),
        (Sorting(Mixing(False), nn.Dropout(), nn.Linear(6, 3)), "depends on the other rows of its batch"),
        (Sorting(Mixing(False), zeroed(nn.Linear(6, 3))), "depends on the other rows"),
        (
            Sorting(Keeping(), nn.Linear(6, 3)),
            r"buffer '0.mean' keeps something of the rows.* track_running_stats=False",
        ),
        (
            normalised(nn.InstanceNorm1d(12, affine=True, track_running_stats=True)),
            "buffer '1.running_mean' keeps something of the rows",
        ),
    ],
    ids=["BatchNorm", "mean", "mean in training", "mean behind zeros", "buffer", "InstanceNorm"],
)
def test_a_model_that_mixes_rows_is_refused(task: Task, says: str) -> None:
    with pytest.raises(UserError, match=says):
        train(task)


class Lost(Sorting):
    """With a loss of its own."""

    def __init__(self, of: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.of = of

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return self.of(output, target)


def cox(output: Tensor, time: Tensor) -> Tensor:
    """Negative log partial likelihood, all of whom had the event (Cox 1972)."""
    order = time.argsort(descending=True)
    risk = output[order, 0]
    return (risk.logcumsumexp(0) - risk).mean()


@pytest.mark.parametrize(
    "of",
    [
        lambda output, target: F.cross_entropy(output, target, reduction="sum"),
        lambda output, target: F.cross_entropy(output, target, torch.tensor([1.0, 5.0, 20.0])),
        lambda output, target: F.cross_entropy(output, target) + output.std(0, correction=0).mean(),
        cox,
    ],
    ids=["sum", "weights over the batch", "spread", "Cox"],
)
def test_a_loss_that_is_not_the_mean_over_rows_is_refused(of: Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.raises(UserError, match=r"the loss of 5 rows is .*, and the mean of their losses .*; return the mean"):
        train(Lost(of))


def test_weights_of_classes_are_taken_where_the_mean_is_over_rows() -> None:
    weights = torch.tensor([1.0, 5.0, 20.0])
    assert train(Lost(lambda output, target: (F.cross_entropy(output, target, weights, reduction="none")).mean())).steps


def test_a_strategy_s_own_loss_is_refused() -> None:
    """Nothing tells what it makes of many rows."""
    with pytest.raises(UserError, match="a loss of its own, which is not of single rows"):
        train(Sorting(), loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_parameters_of_another_precision_are_refused(dtype: torch.dtype) -> None:
    """Their norms and sums are not those that are accounted for."""
    with pytest.raises(UserError, match=rf"the model's 0.weight is {dtype}, .*; call model.float\(\)"):
        train(Sorting(nn.Linear(6, 3, dtype=dtype)))


class Squeezing(Sorting):
    """Loses the dimension of rows when there is one."""

    def forward(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        return model(batch[0]).squeeze(), batch[1]


def test_a_task_that_cannot_take_one_row_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"cannot take a row by itself \(.*\); keep the dimension of rows, e.g. squeeze"
    ):
        train(Squeezing())


class Changing(Sorting):
    """With a batch_transform."""

    def __init__(self, of: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.of = of

    def batch_transform(self, batch: Any) -> Any:
        return self.of(batch[0]), batch[1]


def mixup(x: Tensor) -> Tensor:
    """Zhang et al. 2018, with one weight."""
    return 0.6 * x + 0.4 * x[torch.randperm(len(x))]


@pytest.mark.parametrize(
    ("of", "says"),
    [
        (mixup, r"batch_transform mixes rows \(as mixup does\); leave it out"),
        (lambda x: mixup(x) if torch.rand(()) < 0.25 else x, "batch_transform mixes rows"),
        (lambda x: x.sub_(x.mean(0)), "batch_transform mixes rows"),
        (lambda x: torch.cat([x, x]), "batch_transform makes 10 rows of 5"),
    ],
    ids=["mixup", "mixup now and then", "mean", "two views"],
)
def test_a_transform_that_mixes_rows_is_refused(of: Callable[[Tensor], Tensor], says: str) -> None:
    with pytest.raises(UserError, match=says):
        train(Changing(of))


def test_a_transform_that_changes_each_row_is_taken() -> None:
    assert train(Changing(lambda x: x + 0.1 * torch.randn(x.shape))).steps == 2


class Quasi(Sorting):
    def optimizer(self, params: Any, hyper: Mapping[str, Any]) -> Optimizer:
        return torch.optim.LBFGS(params)


def test_an_optimiser_that_asks_many_times_a_step_is_refused() -> None:
    with pytest.raises(UserError, match="LBFGS"):
        train(Quasi())


def test_a_model_without_a_parameter_to_train_is_refused() -> None:
    with pytest.raises(UserError, match="no parameter to train"):
        train(Sorting(nn.Linear(6, 3).requires_grad_(False)))


class Detached(Sorting):
    def forward(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        return model(batch[0]).detach(), batch[1]


def test_a_loss_without_a_gradient_is_refused() -> None:
    with pytest.raises(UserError, match="the loss has no gradient"):
        train(Detached())


class Frozen(nn.BatchNorm1d):
    """Statistics from elsewhere, which stay."""

    def train(self, mode: bool = True) -> "Frozen":
        return super().train(False)


@pytest.mark.parametrize(
    "task",
    [
        normalised(nn.GroupNorm(4, 12)),
        normalised(nn.InstanceNorm1d(12, affine=True)),
        normalised(Frozen(12)),
        Sorting(nn.Dropout(), nn.Linear(6, 3)),
        Sorting(nn.Linear(6, 6), nn.LayerNorm(6, bias=False), nn.Linear(6, 3)),
        Sorting(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3))),
        Sorting(nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))),
    ],
    ids=["GroupNorm", "InstanceNorm", "frozen BatchNorm", "Dropout", "LayerNorm", "spectral_norm", "weight_norm"],
)
def test_what_treats_rows_apart_is_taken(task: Task) -> None:
    assert train(task).steps == 2


@pytest.mark.parametrize("rows", [1, 2])
def test_a_site_of_few_rows_is_taken(rows: int) -> None:
    assert train(Sorting(), TensorDataset(INPUTS[:rows], torch.arange(rows))).steps == 2


def test_parameters_are_as_sent_when_the_task_is_refused() -> None:
    task = Sorting(Keeping(), nn.Linear(6, 3))
    before = [one.clone() for one in (*task.model().parameters(), *task.model().buffers())]
    with pytest.raises(UserError):
        train(task)
    after = (*task.model().parameters(), *task.model().buffers())
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
