"""Sites trained in a stack give what the plain loop gives, up to the rounding of float32 in another order."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LRScheduler
from torch.utils.data import TensorDataset

from clients.config import TrainingTable
from hansa.errors import UserError
from hansa.task import Site, Task
from privacy.config import PrivacyTable
from privacy.dp.config import DpTable
from server.config import RoundsTable
from server.events import ALL, Event, Note
from simulations.federation import Federation
from simulations.history import History
from simulations.stragglers import Stragglers
from strategies.base import Strategy
from strategies.ditto import Ditto
from strategies.fedavg import FedAvg
from strategies.fedprox import FedProx
from strategies.scaffold import Scaffold

SIZES = [1, 3, 8, 9, 16, 21, 40]  # rows of the sites: fewer than a batch, whole batches, and a rest


class Rows(Task):
    """Three classes of rows of shape [6], seeded by the site."""

    shape: tuple[int, ...] = (6,)
    valid_fraction = 0.2

    def train_data(self, site: Site) -> TensorDataset:
        number = int(site.name)
        generator = torch.Generator().manual_seed(number)
        y = torch.randint(0, 3, (SIZES[number],), generator=generator)
        return TensorDataset(
            torch.randn(SIZES[number], *self.shape, generator=generator) + y.float().view(-1, *[1] * len(self.shape)), y
        )

    def test_data(self, site: Site) -> None:
        return None


class Chain(Rows):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 5, bias=False), nn.Tanh(), nn.Linear(5, 3))


class Deep(Rows):
    """The other activations, nested, on rows that are flattened."""

    shape = (2, 3)

    def model(self) -> nn.Module:
        inner = nn.Sequential(nn.Linear(6, 8), nn.SiLU(), nn.Identity(), nn.Linear(8, 8), nn.Sigmoid())
        return nn.Sequential(nn.Flatten(), inner, nn.Linear(8, 3))


class Binary(Rows):
    """One logit."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1))

    def train_data(self, site: Site) -> TensorDataset:
        x, y = super().train_data(site).tensors
        return TensorDataset(x, (y > 0).long())


class Regression(Rows):
    kind = "regression"

    def model(self) -> nn.Module:
        return nn.Linear(6, 2)

    def train_data(self, site: Site) -> TensorDataset:
        x, y = super().train_data(site).tensors
        return TensorDataset(x, torch.stack([y, y.square()], 1))


class Scheduled(Chain):
    """A rate that depends on how many steps there are."""

    def scheduler(self, optimizer: Any, steps: int) -> LRScheduler:
        return CosineAnnealingLR(optimizer, steps)


class Images(Rows):
    shape = (1, 8, 8)


class Cnn(Images):
    def model(self) -> nn.Module:
        layers = [nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)]
        return nn.Sequential(*layers)


class GroupNormed(Images):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


class BatchNormed(Images):
    """Statistics over a batch, which padding would enter; running ones, which are shared; and a counter.

    In one of one row BatchNorm has no variance: the sites' rows leave none.
    """

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


class Sequences(Rows):
    shape = (5, 6)


class Recurrent(Sequences):
    kind_of: type[nn.Module] = nn.LSTM

    def model(self) -> nn.Module:
        return Last(self.kind_of(6, 4, batch_first=True))


class Gated(Recurrent):
    kind_of = nn.GRU


class Last(nn.Module):
    def __init__(self, recurrent: nn.Module) -> None:
        super().__init__()
        self.recurrent, self.head = recurrent, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        head: Tensor = self.head(self.recurrent(x)[0][:, -1])
        return head


class Attention(Sequences):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True), nn.Flatten(), nn.Linear(30, 3))


class Tied(Sequences):
    """One tensor under two names."""

    def model(self) -> nn.Module:
        return Twice()


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        head: Tensor = self.head(self.two(torch.relu(self.one(x))).mean(1))
        return head


class OwnLoss(Chain):
    """A loss of the task's own, and draws of the task's own on each batch."""

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, target, label_smoothing=0.1)

    def batch_transform(self, batch: Any) -> Any:
        return batch[0] + 0.1 * torch.randn_like(batch[0]), batch[1]


class Branching(Chain):
    """What it computes depends on what it sees, which a stack cannot do."""

    def model(self) -> nn.Module:
        return Branch()


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.head(x)
        return 2 * y if y.mean() > 0 else y


class Doubled(torch.autograd.Function):
    """Without a rule for vmap."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return 2 * grads[0]


class OwnFunction(Chain):
    def forward(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        doubled: Tensor = Doubled.apply(model(batch[0]))  # type: ignore[no-untyped-call]
        return doubled, batch[1]


class Dropping(Chain):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def run(task: Task, engine: str, strategy: Strategy | None = None, **facts: Any) -> tuple[History, list[str]]:
    training = {"epochs": 2, "batch_size": 8, "lr": 0.1} | facts.pop("training", {})
    if "steps" in training:
        del training["epochs"]
    told: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, Note):
            told.append(event.text)

    rounds = facts.pop("rounds", RoundsTable(rounds=3, keep="last", quorum=1))
    sources = {str(number): None for number in range(len(SIZES))}
    what = Federation(task, strategy or FedAvg(), sources, TrainingTable(**training), rounds, engine=engine, **facts)
    return what.try_out([hear]), told


def assert_near(task: Task, strategy: Strategy | None = None, tolerance: float = 2e-5, **facts: Any) -> list[str]:
    """Compares parameters, counters and all metrics; gives what the run has to tell."""
    (loop, _), (batched, told) = (run(task, engine, strategy, **facts) for engine in ("loop", "batched"))
    torch.testing.assert_close(batched.state.params, loop.state.params, rtol=tolerance, atol=tolerance)
    assert torch.equal(batched.state.counters, loop.state.counters)
    for name, vector in loop.state.shared.items():
        torch.testing.assert_close(batched.state.shared[name], vector, rtol=tolerance, atol=10 * tolerance)
    order = ["round", "split", "scope", "name"]
    left, right = (h.frame().sort_values(order).reset_index(drop=True) for h in (loop, batched))
    assert left[order].equals(right[order])
    values = [torch.tensor(frame["value"].to_numpy(dtype=float, na_value=0.0)) for frame in (left, right)]
    torch.testing.assert_close(values[1], values[0], rtol=1e-3, atol=1e-3)
    return [line for line in told if "batched" in line]


ZOO = [Chain, Deep, Binary, Regression, Scheduled, Cnn, GroupNormed, Recurrent, Gated, Attention, Tied, OwnLoss]


@pytest.mark.parametrize("kind", ZOO)
def test_a_stack_gives_what_the_loop_gives(kind: type[Task]) -> None:
    assert assert_near(kind()) == []


SETTINGS: Mapping[str, tuple[Strategy, dict[str, Any]]] = {
    "momentum": (FedAvg(), {"training": {"momentum": 0.9}}),
    "weight decay": (FedAvg(), {"training": {"weight_decay": 0.1}}),
    "adam": (FedAvg(), {"training": {"optimizer": "adam", "lr": 0.01}, "tolerance": 2e-4}),
    "adamw": (FedAvg(), {"training": {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.1}, "tolerance": 2e-4}),
    "clipping": (FedAvg(), {"training": {"clip_norm": 0.2}}),
    "steps": (FedAvg(), {"training": {"steps": 7}}),
    "drop last": (FedAvg(), {"training": {"drop_last": True}}),
    "fedprox": (FedProx(mu=0.5), {}),
    "scaffold": (Scaffold(), {}),
    "scaffold under momentum, some sites": (
        Scaffold(),
        {"training": {"momentum": 0.9}, "rounds": RoundsTable(rounds=4, sites_per_round=4, keep="last", quorum=1)},
    ),
    "stragglers": (FedAvg(), {"stragglers": Stragglers(fraction=0.5, keep=True)}),
}


@pytest.mark.parametrize("kind", [Chain, OwnLoss])
@pytest.mark.parametrize("name", SETTINGS)
def test_optimisers_strategies_and_amounts_of_work(kind: type[Task], name: str) -> None:
    """In the lowered chain and under vmap."""
    strategy, facts = SETTINGS[name]
    assert assert_near(kind(), strategy, **facts) == []


def test_no_padding_enters_the_statistics_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Running means, variances and counters are shared too; a padded row would move them."""
    monkeypatch.setitem(globals(), "SIZES", [5, 8, 13, 20, 45])
    assert assert_near(BatchNormed()) == []


@pytest.mark.parametrize(("kind", "reason"), [(Branching, "vmap"), (OwnFunction, "vmap")])
def test_what_cannot_be_stacked_is_left_to_the_loop_and_said_once(kind: type[Task], reason: str) -> None:
    (loop, _), (batched, told) = (run(kind(), engine) for engine in ("loop", "batched"))
    assert torch.equal(batched.state.params, loop.state.params)
    left = [line for line in told if "leaves all sites to the plain loop" in line]
    assert len(left) == 1
    assert reason in left[0]


def test_record_level_privacy_is_left_to_the_loop() -> None:
    dp = DpTable(unit="record", noise_multiplier=1.0, clip=1.0, delta=1e-3)
    (loop, _), (batched, told) = (run(Chain(), engine, dp=dp) for engine in ("loop", "batched"))
    assert torch.equal(batched.state.params, loop.state.params)
    assert any("DP-SGD is not stacked" in line for line in told)


def test_sums_in_a_ring_and_clipped_updates_are_the_same_on_top() -> None:
    """Rounding to b bits moves a mean by a step of the scale where floats differ in their last bit."""
    assert_near(Chain(), privacy=PrivacyTable(clip=1.0, max_weight=200), rounds=RoundsTable(rounds=3), tolerance=1e-4)
    assert_near(Chain(), dp=DpTable(unit="site", noise_multiplier=1.0, clip=0.5, delta=1e-3), tolerance=1e-4)


def test_dropout_draws_the_same_when_run_again_and_trains() -> None:
    """It is another stream than the loop's, of one distribution: half of the outputs are dropped, the rest doubled."""
    (one, told), (two, _) = (run(Dropping(), "batched", training={"epochs": 4}) for _ in range(2))
    assert not any("batched" in line for line in told)
    assert torch.equal(one.state.params, two.state.params)
    frame = one.frame()
    mine = (frame["split"] == "train") & (frame["name"] == "loss") & (frame["scope"] == ALL)
    losses = frame[mine].sort_values("round")["value"]
    assert losses.iloc[-1] < losses.iloc[0]


def test_no_bit_depends_on_the_number_of_workers() -> None:
    """Chunks are cut without regard to who trains them."""
    first, *others = (run(Chain(), "batched", workers=workers)[0] for workers in (1, 2, 3))
    assert all(torch.equal(first.state.params, other.state.params) for other in others)


def test_a_smaller_chunk_gives_the_same_up_to_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, _ = run(Cnn(), "batched")
    monkeypatch.setattr("simulations.cohort.loop.MOST", 2)
    parts, _ = run(Cnn(), "batched")
    torch.testing.assert_close(parts.state.params, whole.state.params, rtol=1e-5, atol=1e-6)


def test_an_algorithm_with_local_work_of_its_own_is_refused_in_words() -> None:
    with pytest.raises(UserError, match=r'engine: "batched" cannot compute this run: strategy Ditto trains in a way'):
        run(Chain(), "batched", Ditto())
