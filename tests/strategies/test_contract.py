"""What every built-in strategy holds to. The folder is listed: a new file is tested as soon as it is there.

The sites' losses are those of linear regression on a common line, with different inputs and rows: what all of them fit
best is the same, so that its optimum is known whatever the weights.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import strategies
from clients.memory import MemoryOnDisk
from hansa.choose import choose
from hansa.errors import UserError
from hansa.records import ServerState, Vectors
from hansa.task import Dataset, Site, Task
from privacy.config import PrivacyTable
from server.checkpoint import Checkpoints, Progress
from server.config import RoundsTable
from server.events import Event, RoundCommitted
from simulations.api import simulate
from simulations.history import History
from strategies.base import Strategy

SITES = ("amber", "beryl", "coral", "dolomite")
BESIDE = {"base", "fedopt"}  # files that hold no strategy
NAMES = sorted({module.name for module in iter_modules(strategies.__path__)} - BESIDE)
OPTIMUM = torch.tensor([2.0, -1.0, 0.5])
WORK: Mapping[str, Any] = {"epochs": 2, "batch_size": 8, "lr": 0.1}
# Keys for which a small problem is solved in few rounds; the others stand at their defaults.
KEYS: Mapping[str, Mapping[str, Any]] = {
    "fedadagrad": {"server_lr": 0.5},
    "fedadam": {"server_lr": 0.1, "beta1": 0.5, "tau": 0.1},
    "fedavgm": {"momentum": 0.5},
    "feddyn": {"alpha": 0.3},
    "fedyogi": {"server_lr": 0.1, "beta1": 0.5, "tau": 0.1},
}


class Line(Task):
    """y = x . OPTIMUM, where each site has inputs and rows of its own."""

    kind = "regression"

    def __init__(self, norm: bool = False, rows: Callable[[int], int] = lambda number: 8 * (number + 1)) -> None:
        self.norm, self.rows = norm, rows

    def model(self) -> nn.Module:
        layers = [nn.BatchNorm1d(3)] if self.norm else []
        return nn.Sequential(*layers, nn.Linear(3, 1, bias=False), nn.Flatten(0))

    def train_data(self, site: Site) -> Dataset:
        number = SITES.index(site.name)
        x = torch.randn(self.rows(number), 3, generator=torch.Generator().manual_seed(number))
        return TensorDataset(x, x @ OPTIMUM)

    def valid_data(self, site: Site) -> Dataset:
        return self.train_data(site)

    def test_data(self, site: Site) -> Dataset:
        return self.train_data(site)


class Alike(Line):
    """All sites have the same rows, and one batch holds them all."""

    def train_data(self, site: Site) -> Dataset:
        return super().train_data(Site("dolomite", site.seed))


def made(name: str) -> Strategy:
    """The strategy, at defaults or at KEYS."""
    return choose("strategies", name, Strategy)(**KEYS.get(name, {}))


def task(name: str) -> Line:
    """One for which the strategy is meant."""
    return Line(norm=name == "fedbn")


def run(name: str, rounds: int | RoundsTable = 3, **how: Any) -> History:
    how = {"training": WORK, "sites": SITES, "device": "cpu", **how}
    return simulate(how.pop("task", task(name)), strategy=how.pop("strategy", made(name)), rounds=rounds, **how)


@cache
def plain(name: str) -> History:
    """Three rounds, uninterrupted."""
    return run(name)


def same(one: ServerState, two: ServerState) -> bool:
    """Bit for bit."""
    return all(_tensors(one)[key].equal(tensor) for key, tensor in _tensors(two).items()) and (
        _tensors(one).keys() == _tensors(two).keys()
    )


def _tensors(state: ServerState) -> dict[str, Tensor]:
    own = {f"own.{key}": tensor for key, tensor in state.own.items()}
    return {"params": state.params, "counters": state.counters, **state.shared, **own}


def at_sites(folder: Path) -> dict[str, dict[str, Tensor]]:
    """The sites' memory as the newest checkpoint names it."""
    found = Checkpoints(folder / "checkpoints").load()
    assert found is not None
    return {
        site: dict(MemoryOnDisk(folder / "memory" / site).load(version)) for site, version in found[1].memory.items()
    }


def test_the_folder_has_what_the_page_says() -> None:
    page = (Path(strategies.__path__[0]).parent / "docs" / "strategies.md").read_text()
    assert [name for name in NAMES if f"| `{name}`" not in page and f", `{name}`" not in page] == []


@pytest.mark.parametrize("name", NAMES)
def test_parts_and_state_have_the_shapes_that_are_declared(name: str) -> None:
    """What a strategy sends beside the model, and what stays, is of length N or P, or one number."""
    strategy = made(name)
    parts = strategy.parts(7, 5)
    state = strategy.start(torch.zeros(7), torch.zeros(1, dtype=torch.int64), 5)
    assert {len(vector) for vector in (*state.shared.values(), *state.own.values())} <= {5, 7}
    assert sum(part.size for part in parts.values()) >= 7
    mean: Vectors = {n: torch.ones(*((3,) if p.each else ()), p.size) for n, p in parts.items()}
    after = strategy.step(state, mean, 1.0)
    assert (after.params.shape, after.params.dtype) == (state.params.shape, torch.float32)
    assert {n: v.shape for n, v in after.own.items()} == {n: v.shape for n, v in state.own.items()}
    assert {n: v.shape for n, v in after.shared.items()} == {n: v.shape for n, v in state.shared.items()}
    assert torch.isfinite(after.params).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_bits(name: str) -> None:
    assert same(run(name).state, plain(name).state)


@pytest.mark.parametrize("name", NAMES)
def test_a_state_comes_back_from_a_checkpoint(name: str, tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(plain(name).state, Progress(round=3))
    found = Checkpoints(tmp_path).load()
    assert found is not None
    assert same(found[0], plain(name).state)


class Killed(BaseException):
    """As if the process had died."""


def killed_after(number: int) -> Callable[[Event], None]:
    def listen(event: Event) -> None:
        if isinstance(event, RoundCommitted) and event.round == number:
            raise Killed

    return listen


@pytest.mark.parametrize("name", NAMES)
def test_resumed_equals_uninterrupted_with_a_site_left_out(name: str, tmp_path: Path) -> None:
    """Of four sites three are asked in each round; what they keep survives the restart, and the rounds without them."""
    rounds = RoundsTable(rounds=6) if name == "cyclic" else RoundsTable(rounds=6, sites_per_round=3)
    run(name, rounds, runs=tmp_path, run="whole")
    with pytest.raises(Killed):
        run(name, rounds, runs=tmp_path, run="cut", listeners=[killed_after(3)])
    run(name, rounds, runs=tmp_path, run="cut", resume=True)
    one, two = (Checkpoints(tmp_path / name / "checkpoints").load() for name in ("whole", "cut"))
    assert one is not None
    assert two is not None
    assert same(one[0], two[0])
    assert one[1] == two[1]
    mine, theirs = at_sites(tmp_path / "whole"), at_sites(tmp_path / "cut")
    assert mine.keys() == theirs.keys()
    for site, memory in mine.items():
        assert {n: v.tolist() for n, v in memory.items()} == {n: v.tolist() for n, v in theirs[site].items()}


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_sites_changes_nothing(name: str) -> None:
    """Sums are of whole numbers; what is seen one by one is in the order of names."""
    assert same(run(name, sites=tuple(reversed(SITES))).state, plain(name).state)


@pytest.mark.parametrize("name", NAMES)
def test_equal_sites_are_one_site(name: str) -> None:
    """With the same rows in one batch at all sites their mean, median or turn is what one site does by itself."""
    work = {"steps": 3, "batch_size": 64, "lr": 0.05}
    where = Alike(norm=name == "fedbn")
    one = run(name, 4, task=where, sites=SITES[:1], training=work)
    four = run(name, 4, task=where, training=work)
    torch.testing.assert_close(four.state.params, one.state.params, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_what_all_sites_fit_best_is_found(name: str) -> None:
    """The loss is 0 at OPTIMUM for every site; under FedBN scale and shift come on top, and the loss is small."""
    history = run(name, 40)
    loss = history.curve("loss").iloc[-1]
    assert loss < 0.1 * history.curve("loss").iloc[0]
    if name != "fedbn":
        assert history.state.params.tolist() == pytest.approx(OPTIMUM.tolist(), abs=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_under_secure_aggregation_it_is_the_same_within_the_rounding_or_refused(name: str) -> None:
    """A part's values are rounded to clip / levels; three rounds of such errors, through the strategy's step."""
    strategy = made(name)
    parts = strategy.parts(3, 3)
    privacy = PrivacyTable(secure=True, clip=dict.fromkeys(parts, 128.0), max_weight=32, ring_bits=32)
    rounds = RoundsTable(rounds=3, quorum=1.0)
    if strategy.needs == "each":
        with pytest.raises(UserError, match="must see each site's update"):
            run(name, rounds, privacy=privacy)
        return
    found = run(name, rounds, privacy=privacy)
    torch.testing.assert_close(found.state.params, plain(name).state.params, rtol=0.02, atol=0.02)


@pytest.mark.parametrize("name", NAMES)
def test_no_hook_changes_what_it_was_given(name: str) -> None:
    """A round that does not count goes back to the state before it."""
    strategy = made(name)
    state = strategy.start(torch.ones(7), torch.zeros(1, dtype=torch.int64), 5)
    kept = replace(state, params=state.params.clone(), own={n: v.clone() for n, v in state.own.items()})
    parts = strategy.parts(7, 5)
    strategy.step(state, {n: torch.ones(*((3,) if p.each else ()), p.size) for n, p in parts.items()}, 0.5)
    assert same(state, kept)
