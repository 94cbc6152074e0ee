"""DP-SGD at a site: what a step adds up, against one row at a time, against Opacus, and against the definition of DP.

With all units drawn (rate 1) and no noise, the gradient that the optimiser got, times the number of units, is the sum
of clipped gradients. It stays in the parameters' `.grad` after the last step.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from clients import layers
from clients.config import TrainingTable
from clients.dpsgd import DpTrainer, Seen
from clients.poisson import PoissonBatches, Rows, rows_of_units
from hansa.errors import UserError
from hansa.layout import Layout
from hansa.records import LocalRun, Vectors
from hansa.task import Task
from privacy.dp.mechanism import DpSgd
from privacy.dp.randomness import Stream
from strategies.base import Memory, Strategy
from strategies.fedavg import FedAvg
from strategies.fedprox import FedProx
from strategies.scaffold import Scaffold

CPU = torch.device("cpu")
KEY = bytes(range(32))


class Sorting(Task):
    """Three classes, by a given model."""

    def __init__(self, model: nn.Module) -> None:
        self.start = model

    def model(self) -> nn.Module:
        return copy.deepcopy(self.start)


@dataclass
class Done:
    """What a plan left behind."""

    model: nn.Module
    run: LocalRun
    seen: Seen
    units: int

    @property
    def gradient(self) -> Tensor:
        """[N], of the last step."""
        return torch.cat([p.grad.flatten() for p in self.model.parameters() if p.grad is not None])

    @property
    def sum(self) -> Tensor:
        """[N], of clipped gradients, if all units were drawn."""
        return self.gradient.double() * self.units


@dataclass
class Site:
    """A site with rows; `train` does one plan."""

    task: Task
    data: TensorDataset
    units: Sequence[Rows] | None = None
    clip: float = 1.0
    noise: float = 0.0
    rate: float = 1.0
    key: bytes = KEY
    strategy: Strategy = field(default_factory=FedAvg)
    shared: Vectors = field(default_factory=dict)
    memory: Memory = field(default_factory=dict)
    chunk_bytes: int = 1 << 26
    workers: int = 0
    training: Mapping[str, Any] = field(default_factory=dict)

    def train(self, **more: Any) -> Done:
        model = self.task.model()
        layout = Layout.of(model)
        hyper = TrainingTable(**{"steps": 1, "lr": 0.1, **self.training}).hyper(1)
        units = len(self.data) if self.units is None else len(self.units)
        unit: Any = "record" if self.units is None else "group"
        mechanism, stream = DpSgd(unit, units, self.rate, self.noise, self.clip, hyper["steps"]), Stream(self.key)
        batches = PoissonBatches(self.task, self.data, mechanism, stream, CPU, self.units, self.workers)
        fields = (self.task, self.strategy, layout, layout.read(model), self.shared, self.memory, hyper, CPU)
        trainer = DpTrainer(*fields, len(self.data), mechanism, stream, self.chunk_bytes)
        return Done(model, trainer.fit(model, batches, **more), trainer.seen, units)


def single(site: Site) -> Tensor:
    """The sum of clipped gradients by the definition: each unit alone, each row alone, autograd, float64."""
    model = site.task.model().double()
    total = torch.zeros(sum(p.numel() for p in model.parameters() if p.requires_grad), dtype=torch.float64)
    moving = [p for p in model.parameters() if p.requires_grad]
    for unit in site.units if site.units is not None else np.arange(len(site.data)).reshape(-1, 1):
        rows = [tuple(one[None] for one in site.data[int(row)]) for row in unit]
        rows = [tuple(one.double() if one.is_floating_point() else one for one in row) for row in rows]
        losses = [site.task.loss(*site.task.forward(model, row)) for row in rows]
        grads = torch.autograd.grad(torch.stack(losses).mean(), moving, allow_unused=True)
        both = zip(grads, moving, strict=True)
        gradient = torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in both])
        total += gradient * min(1.0, site.clip / float(gradient.norm())) if gradient.any() else 0
    return total


class Words(nn.Module):
    """Tokens -> mean of what `within` makes of their vectors -> classes."""

    def __init__(self, within: nn.Module, padding: int | None = None) -> None:
        super().__init__()
        self.words, self.within, self.head = nn.Embedding(9, 4, padding), within, nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out = self.within(self.words(x))
        return self.head((out[0] if isinstance(out, tuple) else out).mean(1))  # type: ignore[no-any-return]


class Tied(nn.Module):
    """The vectors of words are the weights that tell words, too."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.words(x)).mean(1))[:, :3]  # type: ignore[no-any-return]


class Twice(nn.Module):
    """One layer, used two times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))  # type: ignore[no-any-return]


class Own(nn.Module):
    """Parameters outside of any layer, one of them unused."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(6, 3)), nn.Parameter(torch.tensor(0.7))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * torch.tanh(x @ self.weight)


class Placed(nn.Module):
    """Vectors of places, which all rows of a batch share: layer by layer, whose gradient it is cannot be told."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.head = nn.Embedding(9, 4), nn.Embedding(5, 4), nn.Linear(4, 3)
        nn.init.zeros_(self.head.weight)  # so that at the start no gradient shows it either

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.words(x) + self.places(torch.arange(5))).mean(1))  # type: ignore[no-any-return]


def images(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3))


MODELS: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "dense": ("numbers", lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3, bias=False))),
    "twice": ("numbers", Twice),
    "own parameters": ("numbers", Own),
    "convolutions": (
        "images",
        lambda: images(
            nn.Conv2d(2, 4, 3, 2, 1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, (2, 1), dilation=(1, 2))
        ),
    ),
    "grouped": ("images", lambda: images(nn.Conv2d(2, 4, 3, groups=2), nn.InstanceNorm2d(4, affine=True), nn.PReLU())),
    "circular": ("images", lambda: images(nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"))),
    "transposed": ("images", lambda: images(nn.ConvTranspose2d(2, 3, 2), nn.Conv2d(3, 3, 3, padding="same"))),
    "words": ("words", lambda: Words(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), padding=0)),
    "recurrent": ("words", lambda: Words(nn.LSTM(4, 4, batch_first=True))),
    "attention": ("words", lambda: Words(nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True))),
    "tied": ("words", Tied),
    "places": ("words", Placed),
}


def rows(kind: str, n: int, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randint(0, 3, (n,), generator=generator)
    if kind == "words":
        return TensorDataset(torch.randint(0, 9, (n, 5), generator=generator), target)
    shape = (n, 6) if kind == "numbers" else (n, 2, 6, 6)
    return TensorDataset(torch.randn(shape, generator=generator) * 2, target)


def made(name: str, n: int, seed: int = 0, **more: Any) -> Site:
    kind, make = MODELS[name]
    torch.manual_seed(seed)
    model, data = make(), rows(kind, n, seed)
    model(data.tensors[0][:2])  # lazy layers take their sizes
    return Site(Sorting(model), data, **more)


def groups(sizes: Sequence[int]) -> list[Rows]:
    """Units of so many rows, which do not lie together in the data."""
    ids = np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return rows_of_units(ids.tolist())


@pytest.mark.parametrize("sizes", [None, [3, 1, 4, 1, 2], [2, 2, 2]])
@pytest.mark.parametrize("name", MODELS)
def test_a_step_adds_up_clipped_gradients_of_units_taken_one_by_one(name: str, sizes: list[int] | None) -> None:
    """Half of them are clipped, about."""
    site = made(name, 11 if sizes is None else sum(sizes), units=None if sizes is None else groups(sizes))
    site.clip = float(single(site).norm()) / len(sizes or range(11))
    expected = single(site)
    assert site.train().sum == pytest.approx(expected, rel=1e-4, abs=2e-5 * float(expected.abs().max()))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["dense", "twice", "convolutions", "words", "tied"]),
    st.lists(st.integers(1, 6), min_size=1, max_size=6),
    st.booleans(),
    st.floats(-3, 2),
    st.integers(0, 10**6),
)
def test_any_units_any_clip(name: str, sizes: list[int], grouped: bool, clip: float, seed: int) -> None:
    site = made(name, sum(sizes), seed, units=groups(sizes) if grouped else None, clip=10.0**clip)
    expected = single(site)
    assert site.train().sum == pytest.approx(expected, rel=1e-4, abs=2e-5 * float(expected.abs().max()))


@pytest.mark.parametrize("name", ["dense", "convolutions", "words", "own parameters", "recurrent"])
@pytest.mark.parametrize("sizes", [None, [7, 1, 3, 9]])
def test_the_sum_does_not_depend_on_how_many_rows_go_together(name: str, sizes: list[int] | None) -> None:
    """One row at a time (a group then goes through in parts), some, all."""
    site = made(name, 20, units=None if sizes is None else groups(sizes), clip=0.3)
    site.train()
    sums = []
    for site.chunk_bytes in (1, 1 << 11, 1 << 13, 1 << 26):
        sums.append(site.train().sum)
    for other in sums[1:]:
        assert other == pytest.approx(sums[0], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("few", "cached"), [(0, 1), (0, 300), (64, 1), (64, 300)])
@pytest.mark.parametrize("name", ["convolutions", "words"])
def test_the_sum_does_not_depend_on_what_is_kept(
    name: str, few: int, cached: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients are kept (no layer sees few places) or made twice, one row or some rows at a time."""
    site = made(name, 11, clip=0.3)
    expected = site.train().sum
    monkeypatch.setattr(layers, "FEW", few)
    monkeypatch.setattr(layers, "CACHED", cached)
    done = site.train()
    assert done.seen.notes == ()
    assert done.sum == pytest.approx(expected, rel=1e-5, abs=1e-6)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing", "ignore:Secure RNG turned off")
@pytest.mark.parametrize("name", ["dense", "convolutions", "words"])  # it can neither padding nor change in place
def test_the_gradient_is_that_of_opacus(name: str) -> None:
    """Opacus' own hooks and optimiser, without noise, all rows drawn: the same clipped mean, to 1e-6."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    site = made(name, 16, clip=0.5)
    for layer in site.task.start.modules():  # type: ignore[attr-defined]
        layer.inplace, layer.padding_idx = False, None
    model = GradSampleModule(site.task.model())
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = DPOptimizer(inner, noise_multiplier=0.0, max_grad_norm=0.5, expected_batch_size=16)
    inputs, target = next(iter(DataLoader(site.data, batch_size=16)))
    torch.autograd.backward(site.task.loss(model(inputs), target))
    optimizer.step()
    expected = torch.cat([p.grad.flatten() for p in model.parameters()])
    assert (site.train().gradient - expected).abs().max() < 1e-6


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(["dense", "words"]),
    st.lists(st.integers(1, 5), min_size=2, max_size=5),
    st.floats(-2, 1),
    st.floats(-3, 6),
    st.integers(0, 10**6),
)
def test_a_unit_moves_the_sum_by_no_more_than_its_clip(
    name: str, sizes: list[int], clip: float, size: float, seed: int
) -> None:
    """All rows of a unit exchanged for any others: twice the clip norm; the unit taken out: once. Rows are the
    smallest units; whatever their number and size, and however large their gradients.
    """
    site = made(name, sum(sizes), seed, units=groups(sizes), clip=10.0**clip)
    before, slack = site.train().sum, 1e-5 * 10.0**clip * len(sizes)  # of float32
    kind, unit = MODELS[name][0], site.units[0]  # type: ignore[index]
    inputs, target = (one.clone() for one in site.data.tensors)
    other_inputs, other_target = rows(kind, len(unit), seed + 1).tensors
    inputs[unit] = other_inputs if kind == "words" else other_inputs * 10.0**size
    target[unit] = other_target
    other = Site(site.task, TensorDataset(inputs, target), site.units, site.clip)
    assert float((other.train().sum - before).norm()) <= 2 * site.clip + slack
    less = Site(site.task, site.data, site.units[1:], site.clip)  # type: ignore[index]
    assert float((less.train().sum - before).norm()) <= site.clip + slack


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 12), st.floats(-2, 1), st.floats(-3, 6), st.integers(0, 10**6))
def test_a_row_moves_the_sum_by_no_more_than_its_clip(n: int, clip: float, size: float, seed: int) -> None:
    site = made("dense", n + 1, seed, clip=10.0**clip)
    inputs, target = site.data.tensors
    inputs[n] *= 10.0**size
    less = Site(site.task, TensorDataset(inputs[:n], target[:n]), None, site.clip)
    assert float((less.train().sum - site.train().sum).norm()) <= site.clip * (1 + 1e-5 * n)


def test_groups_are_clipped_as_one_and_not_row_by_row() -> None:
    """Four rows alike in one group give what one of them gives, at most the clip norm; as records four times that."""
    site = made("dense", 1, clip=0.01)
    site.data = TensorDataset(*(one.repeat_interleave(4, 0) for one in site.data.tensors))
    assert float(site.train().sum.norm()) == pytest.approx(0.04, rel=1e-4)
    site.units = [np.arange(4)]
    assert float(site.train().sum.norm()) == pytest.approx(0.01, rel=1e-4)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["dense", "convolutions", "own parameters", "recurrent"])
@pytest.mark.parametrize("sizes", [None, [3, 1, 4, 4]])
def test_a_gradient_that_is_not_finite_counts_as_zero(name: str, sizes: list[int] | None, bad: float) -> None:
    """The unit's, and no other's: the rest of the sum is as if it were not there."""
    site = made("words" if name == "recurrent" else name, 12, units=None if sizes is None else groups(sizes))
    if name == "recurrent":
        site = made(name, 12, units=site.units)
        site.task = Poisoned(site.task.model(), bad)
        site.data.tensors[0][:, 0] = torch.where(site.data.tensors[0][:, 0] == 8, 7, site.data.tensors[0][:, 0])
        site.data.tensors[0][6, 0] = 8
    else:
        site.data.tensors[0][6] = bad
    done = site.train()
    units = site.units if site.units is not None else [np.array([row]) for row in range(12)]
    rest = Site(site.task, site.data, [unit for unit in units if 6 not in unit])
    assert done.seen.invalid == 1
    assert done.sum == pytest.approx(rest.train().sum, rel=1e-4, abs=1e-5)


class Poisoned(Sorting):
    """Rows that begin with word 8 have no finite loss."""

    def __init__(self, model: nn.Module, bad: float) -> None:
        super().__init__(model)
        self.bad = bad

    def forward(self, model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        inputs, target = batch
        factor = torch.where(inputs[:, :1] == 8, self.bad, 1.0)
        return model(inputs) * factor, target


def test_a_gradient_of_zero_stays_zero() -> None:
    """Logits from zero weights and zero inputs: only the bias has a gradient, and without it there is none."""
    model = nn.Linear(6, 3, bias=False)
    site = Site(Sorting(model), TensorDataset(torch.zeros(4, 6), torch.zeros(4, dtype=torch.long)))
    assert not site.train().sum.any()


def test_a_step_is_the_noisy_sum_over_the_units_expected() -> None:
    """w - lr * (sum + z) / (rate * units), z the stream's noise of standard deviation noise * clip."""
    site = made("dense", 12, clip=0.5, noise=2.0, training={"lr": 1.0})
    z = torch.zeros_like(single(site))
    Stream(KEY).normal(z, 2.0 * 0.5)
    start = Layout.of(site.task.model()).read(site.task.model())
    done = site.train()
    assert done.sum == pytest.approx(single(site) + z, rel=1e-4, abs=1e-4)
    assert torch.equal(start - done.gradient - start, done.run.delta)


@pytest.mark.parametrize("rate", [0.05, 0.3])
def test_noise_does_not_depend_on_who_was_drawn(rate: float) -> None:
    """Steps of clip 1e-6 are noise and nothing else: N(0, (noise * clip / (rate * units))^2) in each coordinate."""
    site = made("dense", 20, clip=1e-6, noise=1e6, rate=rate, training={"steps": 40, "lr": 1e-3})
    delta = site.train().run.delta.double().numpy()
    assert stats.kstest(delta / (1e-3 * 40**0.5 / (rate * 20)), "norm").pvalue > 1e-3


def test_an_empty_draw_is_a_step_of_noise() -> None:
    """Of 60 draws of 2 units at 0.1, 48.6 are empty, give or take 3 times 3.0; all count, and all are noised."""
    site = made("dense", 2, clip=1.0, noise=0.5, rate=0.1, training={"steps": 60})
    done = site.train()
    assert done.run.steps == 60
    assert abs(done.seen.empty - 60 * 0.81) < 9.1
    quiet = made("dense", 2, clip=1.0, noise=0.5, rate=0.0001, training={"steps": 1}).train()
    assert quiet.seen.empty == 1
    z = torch.zeros(8 * 6 + 8 + 24)
    Stream(KEY).normal(z, 0.5)
    assert torch.equal(quiet.gradient, z / (0.0001 * 2))


def test_draws_are_binomial() -> None:
    """Units a step: chi-square of 400 draws of 30 units at 0.2; each unit as often as any other."""
    data, task = rows("numbers", 30), Sorting(nn.Linear(6, 3))
    mechanism = DpSgd("record", 30, 0.2, 1.0, 1.0, 400)
    drawn = np.zeros((400, 30), int)
    for step, draw in enumerate(PoissonBatches(task, data, mechanism, Stream(KEY), CPU).draws(7)):
        for piece, (inputs, _) in draw:
            assert len(piece.rows) <= 7
            assert torch.equal(inputs, data.tensors[0][piece.rows])
            drawn[step, piece.rows] += 1
    assert drawn.max() == 1
    cells = np.bincount(np.clip(drawn.sum(1), 2, 10), minlength=11)[2:]
    cdf = stats.binom.cdf(np.arange(2, 10), 30, 0.2)
    assert stats.chisquare(cells, 400 * np.diff([0, *cdf, 1])).pvalue > 1e-3
    assert stats.chisquare(drawn.sum(0)).pvalue > 1e-3


def test_pieces_hold_whole_groups_or_parts_of_one() -> None:
    units, data = groups([5, 1, 2, 9, 1, 3]), rows("numbers", 21)
    mechanism = DpSgd("group", 6, 1.0, 1.0, 1.0, 1)
    batches = PoissonBatches(Sorting(nn.Linear(6, 3)), data, mechanism, Stream(KEY), CPU, units)
    pieces = [piece for draw in batches.draws(4) for piece, _ in draw]
    assert sorted(np.concatenate([piece.rows for piece in pieces])) == list(range(21))
    assert all(piece.sizes.sum() == len(piece.rows) <= 4 for piece in pieces)
    parts = [piece for piece in pieces if not piece.whole]
    assert [len(piece.rows) for piece in parts] == [4, 1, 4, 4, 1]
    assert [piece.last for piece in parts] == [False, True, False, False, True]


def test_worker_processes_load_the_same_rows() -> None:
    site = made("dense", 30, rate=0.3, training={"steps": 4})
    here = site.train()
    site.workers = 2
    assert torch.equal(site.train().run.delta, here.run.delta)


def test_one_key_gives_one_result_and_another_key_another() -> None:
    site = made("dense", 12, noise=1.0, rate=0.5, training={"steps": 3})
    first, again = site.train(), site.train()
    site.key = bytes(32)
    other = site.train()
    assert torch.equal(first.run.delta, again.run.delta)
    assert not torch.equal(first.run.delta, other.run.delta)


def test_the_run_s_seed_moves_nothing() -> None:
    """Whoever sent it knows it: dropout's masks are secret too, or a row would move those of the rows after it."""
    site = made("dense", 12, rate=0.5, training={"steps": 3})
    site.task = Sorting(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)))
    deltas = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        deltas.append(site.train().run.delta)
        assert torch.equal(torch.random.get_rng_state(), torch.manual_seed(seed).get_state())
    assert torch.equal(*deltas)
    site.key = bytes(32)
    assert not torch.equal(site.train().run.delta, deltas[0])


def test_fedprox_acts_after_the_noise_was_added() -> None:
    """Two steps of w <- w - lr * (g + mu * (w - anchor)), g the clipped sum over the units: mu is not clipped."""
    site = made("dense", 8, clip=0.01, strategy=FedProx(mu=3.0), training={"lr": 0.1})
    one = site.train()
    site.training = {"steps": 2, "lr": 0.1}
    two = site.train()
    moved = Site(Sorting(one.model), site.data, None, 0.01)
    expected = one.run.delta - 0.1 * (moved.train().gradient + 3.0 * one.run.delta)
    assert two.run.delta == pytest.approx(expected, abs=1e-6)
    assert one.run.delta == pytest.approx(-0.1 * single(site).float() / 8, abs=1e-6)


def test_scaffold_acts_after_the_noise_was_added() -> None:
    """One step of w <- w - lr * (g + c - c_i), with control variates far above the clip norm."""
    site = made("dense", 8, clip=0.01, strategy=Scaffold(), training={"lr": 0.1})
    n = len(single(site))
    site.shared, site.memory = {"control": torch.full((n,), 5.0)}, {"control": torch.full((n,), 2.0)}
    expected = -0.1 * (single(site).float() / 8 + 5.0 - 2.0)
    assert site.train().run.delta == pytest.approx(expected, abs=1e-5)


def test_momentum_and_schedules_act_on_noisy_gradients() -> None:
    """`lr_sum` as Trainer counts it: momentum 0.5 over 3 steps of 0.1 moves 0.1 * (1 + 1.5 + 1.75)."""
    done = made("dense", 8, training={"steps": 3, "momentum": 0.5, "lr": 0.1}).train()
    assert done.run.lr_sum == pytest.approx(0.1 * 4.25)
    assert done.run.steps == 3


def test_a_site_of_one_row_trains() -> None:
    site = made("dense", 1, clip=0.01)
    assert float(site.train().sum.norm()) == pytest.approx(0.01, rel=1e-4)


def test_no_metric_leaves() -> None:
    done = made("dense", 5, noise=1.0).train()
    assert done.run.sums == {}
    assert done.run.examples == 5


class Counting(nn.Module):
    """A float and a whole number that count batches, whatever is in them."""

    batches: Tensor
    decayed: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.register_buffer("batches", torch.tensor(7))
        self.register_buffer("decayed", torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.batches += 1
            self.decayed *= 0.9
        return self.layer(x)  # type: ignore[no-any-return]


def test_buffers_come_back_as_they_were_sent() -> None:
    """The float's part of the update is zero to the bit; the parameters moved."""
    site = made("dense", 6, training={"steps": 3})
    site.task = Sorting(Counting())
    run = site.train().run
    assert run.counters.tolist() == [7]
    assert float(run.delta[-1]) == 0.0
    assert run.delta[:-1].any()


def test_frozen_parameters_stay_and_do_not_count_in_the_norm() -> None:
    site = made("dense", 6, clip=0.05)
    for p in site.task.start[0].parameters():  # type: ignore[attr-defined]
        p.requires_grad_(False)
    done = site.train()
    assert not done.run.delta[: 6 * 8 + 8].any()
    assert done.sum == pytest.approx(single(site), rel=1e-4, abs=1e-5)


def test_a_way_that_does_not_tell_rows_apart_is_not_taken() -> None:
    """Vectors of places get one gradient for all rows, which shows only when the weights behind them are not zero."""
    assert made("places", 12).train().seen.notes == ("Layers: not the gradients of single rows",)
    assert made("words", 12).train().seen.notes == ()


def test_only_named_parameters_move_and_are_clipped() -> None:
    """As if the others were frozen."""
    site = made("dense", 6, clip=0.05)
    some = site.train(only=["2.*"])
    for p in site.task.start[0].parameters():  # type: ignore[attr-defined]
        p.requires_grad_(False)
    assert torch.equal(some.run.delta, site.train().run.delta)


def test_what_is_accounted_for_is_one_pass() -> None:
    class Greedy(FedAvg):
        def local_update(self, model: nn.Module, batches: Any, ctx: Any) -> tuple[LocalRun, Memory]:
            ctx.fit(model, batches)
            return ctx.fit(model, batches), {}

    data, task, mechanism = rows("numbers", 4), Sorting(nn.Linear(6, 3)), DpSgd("record", 4, 1.0, 1.0, 1.0, 1)
    model, stream = task.model(), Stream(KEY)
    layout = Layout.of(model)
    hyper = TrainingTable(steps=1).hyper(1)
    trainer = DpTrainer(task, Greedy(), layout, layout.read(model), {}, {}, hyper, CPU, 4, mechanism, stream)
    batches = PoissonBatches(task, data, mechanism, stream, CPU)
    with pytest.raises(UserError, match="trains twice in a round"):
        trainer.strategy.local_update(model, batches, trainer)
    with pytest.raises(UserError, match="goes over the batches itself"):
        iter(batches)
    with pytest.raises(UserError, match="batches of its own"):
        trainer.fit(model, [next(iter(DataLoader(data)))])
