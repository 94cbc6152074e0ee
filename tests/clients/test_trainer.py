"""The local step: what happens in which order, and what is counted."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import LRScheduler, StepLR
from torch.utils.data import TensorDataset

from clients.batches import Batches, OwnStream
from clients.config import TrainingTable
from clients.trainer import Trainer
from hansa.errors import UserError
from hansa.evaluate import evaluate
from hansa.layout import Layout
from hansa.records import LocalRun, Vectors
from hansa.task import Dataset, Site, Task
from strategies.base import Memory, Step, Strategy
from strategies.fedavg import FedAvg

CPU = torch.device("cpu")


class Line(Task):
    """y = w * x by squared error, one weight."""

    kind = "regression"

    def model(self) -> nn.Module:
        return nn.Linear(1, 1, bias=False)


def fit(
    strategy: Strategy, x: list[float], task: Task | None = None, start: float = 1.0, **training: Any
) -> tuple[float, LocalRun]:
    """The weight after training on rows (x, 0), and what is reported."""
    task = task or Line()
    model = task.model()
    nn.init.constant_(next(model.parameters()), start)
    layout, rows = Layout.of(model), torch.tensor(x).view(-1, 1)
    hyper = TrainingTable(**{"steps": 1, "batch_size": len(x), "lr": 0.1, **training}).hyper(1)
    data = TensorDataset(rows, torch.zeros_like(rows))
    batches = Batches(task, data, hyper, (0, 1, "a"), CPU)
    trainer = Trainer(task, strategy, layout, layout.read(model), {}, {}, hyper, CPU, len(x))
    run = trainer.fit(model, batches)
    return float(next(model.parameters()).detach()), run


class Ordered(Strategy):
    """Adds 10 to the gradient, then halves the parameter."""

    def correct_grad(self, grad: Tensor, w: Tensor, anchor: Tensor, shared: Vectors, memory: Memory, step: Step) -> Any:
        return grad + 10

    def after_step(self, w: Tensor, anchor: Tensor, shared: Vectors, memory: Memory, step: Step) -> Tensor:
        return w / 2


def test_a_step_corrects_clips_moves_and_follows_in_that_order() -> None:
    """Gradient of w^2 at 1 is 2; corrected 12; clipped to 3; moved to 1 - 0.1 * 3 = 0.7; halved 0.35."""
    weight, run = fit(Ordered(), [1.0], clip_norm=3.0)
    assert weight == pytest.approx(0.35)
    assert float(run.delta) == pytest.approx(0.35 - 1)


@given(
    st.floats(0, 0.95),
    st.floats(0, 0.5),
    st.booleans(),
    st.integers(1, 12),
    st.floats(0.01, 1),
)
def test_lr_sum_is_how_far_a_constant_gradient_of_one_moves(
    momentum: float, dampening: float, nesterov: bool, steps: int, lr: float
) -> None:
    """By torch's own SGD on the loss w, whose gradient is 1."""
    nesterov = nesterov and momentum > 0
    dampening = 0.0 if nesterov else dampening

    class Slope(Task):
        def model(self) -> nn.Module:
            return nn.Linear(1, 1, bias=False)

        def loss(self, output: Tensor, target: Tensor) -> Tensor:
            return output.sum()

        def optimizer(self, params: Any, hyper: Mapping[str, Any]) -> Optimizer:
            return SGD(params, lr=lr, momentum=momentum, dampening=dampening, nesterov=nesterov)

        def scheduler(self, optimizer: Optimizer, steps: int) -> LRScheduler:
            return StepLR(optimizer, 3, 0.5)

    weight, run = fit(FedAvg(), [1.0], Slope(), steps=steps)
    assert run.lr_sum == pytest.approx(1 - weight, rel=1e-4, abs=1e-6)
    assert run.steps == steps


def test_the_last_smaller_batch_counts_as_a_step_unless_left_out() -> None:
    assert fit(FedAvg(), [1.0, 2.0, 3.0], epochs=2, steps=None, batch_size=2)[1].steps == 4
    assert fit(FedAvg(), [1.0, 2.0, 3.0], epochs=2, steps=None, batch_size=2, drop_last=True)[1].steps == 2
    assert fit(FedAvg(), [1.0], epochs=2, steps=None, batch_size=2, drop_last=True)[1].steps == 2


def test_every_epoch_goes_over_every_row_once_in_another_order() -> None:
    data = TensorDataset(torch.arange(10.0).view(-1, 1), torch.zeros(10))
    hyper = TrainingTable(epochs=2, batch_size=3).hyper(1)
    rows = torch.cat([x for x, _ in Batches(Line(), data, hyper, (0, 1, "a"), CPU)]).view(2, 10)
    assert rows.sort(1).values.tolist() == [list(range(10))] * 2
    assert rows[0].tolist() != rows[1].tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_do_not_depend_on_worker_processes_nor_draw_globally(workers: int) -> None:
    data = TensorDataset(torch.arange(10.0).view(-1, 1), torch.zeros(10))
    hyper = TrainingTable(epochs=1, batch_size=4).hyper(1)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    seen = [x.view(-1).tolist() for x, _ in Batches(Line(), data, hyper, (0, 1, "a"), CPU, workers)]
    assert torch.equal(torch.get_rng_state(), before)
    assert seen == [x.view(-1).tolist() for x, _ in Batches(Line(), data, hyper, (0, 1, "a"), CPU)]


def test_evaluation_does_not_draw_from_the_global_generator() -> None:
    """Iterating a DataLoader would: it draws a base seed."""
    model, rows = nn.Sequential(nn.Linear(1, 1), nn.Dropout(0.5)), TensorDataset(torch.rand(5, 1), torch.rand(5, 1))
    before = torch.get_rng_state()
    evaluate(Line(), model, rows, 2, CPU)
    assert torch.equal(torch.get_rng_state(), before)


def test_evaluation_is_the_mean_over_rows_not_over_batches() -> None:
    """Batches of 2 and 1: squared errors 1, 4 and 9 average to 14/3, not to (2.5 + 9) / 2."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    sums = evaluate(Line(), model, TensorDataset(torch.tensor([[1.0], [2.0], [3.0]]), torch.zeros(3, 1)), 2, CPU)
    assert float(sums["loss"][0] / sums["loss"][1]) == pytest.approx(14 / 3)


def test_bfloat16_autocast_is_near_float32_and_not_equal() -> None:
    x = torch.rand(8, generator=torch.Generator().manual_seed(0)).tolist()
    full, half = fit(FedAvg(), x)[0], fit(FedAvg(), x, precision="bfloat16")[0]
    assert half == pytest.approx(full, rel=2e-2)
    assert half != full


def test_steps_that_the_loss_scaler_skips_do_not_count() -> None:
    """The gradient is 2 * 2^2 = 8; float16 ends at 65504, so the scales 65536 to 8192 overflow: 4 of 6 steps."""
    weight, run = fit(FedAvg(), [2.0], steps=6, precision="float16", lr=1e-5)
    assert run.steps == 2
    assert run.lr_sum == pytest.approx(2e-5)
    assert weight < 1


class Frozen(Line):
    """Nothing to train."""

    def model(self) -> nn.Module:
        return nn.Linear(1, 1).requires_grad_(False)


class Vectorial(Line):
    """A loss that was not averaged."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return (output - target).square()


@pytest.mark.parametrize(
    ("task", "says"), [(Frozen(), "no parameter to train"), (Vectorial(), "the loss must be one number")]
)
def test_a_task_that_cannot_train_is_told_why(task: Task, says: str) -> None:
    with pytest.raises(UserError, match=says):
        fit(FedAvg(), [1.0], task)


class Streaming(Line):
    """Brings its own endless batches."""

    def batches(self, site: Site, dataset: Dataset, seed: int) -> Iterator[Any]:
        for number in range(5):
            yield torch.tensor([[float(number)]]), torch.zeros(1, 1)


def test_an_own_stream_goes_on_through_the_rounds_and_opens_again_at_its_end() -> None:
    stream = OwnStream(Streaming(), Site("a", 0), TensorDataset(torch.zeros(1)))
    hyper = TrainingTable(steps=4).hyper(1)
    rounds = [[float(x) for x, _ in stream.round(hyper, CPU)] for _ in range(3)]
    assert rounds == [[0, 1, 2, 3], [4, 0, 1, 2], [3, 4, 0, 1]]


def test_an_own_stream_needs_a_number_of_steps() -> None:
    stream = OwnStream(Streaming(), Site("a", 0), TensorDataset(torch.zeros(1)))
    with pytest.raises(UserError, match="task Streaming has its own batches; set steps"):
        stream.round(TrainingTable(epochs=1).hyper(1), CPU)


def test_training_leaves_the_anchor_alone() -> None:
    model = Line().model()
    layout = Layout.of(model)
    anchor = layout.read(model)
    before = copy.deepcopy(anchor)
    hyper = TrainingTable(steps=2, lr=0.5).hyper(1)
    data = TensorDataset(torch.ones(4, 1), torch.zeros(4, 1))
    trainer = Trainer(Line(), FedAvg(), layout, anchor, {}, {}, hyper, CPU, 4)
    run = trainer.fit(model, Batches(Line(), data, hyper, (0, 1, "a"), CPU))
    assert torch.equal(anchor, before)
    assert torch.equal(anchor + run.delta, layout.read(model))
