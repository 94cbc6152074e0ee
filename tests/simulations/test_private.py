"""A run under differential privacy: what leaves a site, how much noise there is, what is promised, what is refused."""

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from clients.split import Rows
from hansa.errors import UserError
from hansa.task import Dataset, Site, Task
from privacy.dp.accounting import epsilon
from privacy.dp.mechanism import Event
from server.checkpoint import Checkpoints
from server.config import RoundsTable
from server.events import Event as Told
from server.events import RoundEnded
from simulations.api import simulate
from simulations.stragglers import Stragglers
from strategies.ditto import Ditto
from strategies.fedprox import FedProx
from strategies.scaffold import Scaffold

ROWS, WIDE = 40, 6
RECORD: dict[str, Any] = {"unit": "record", "noise_multiplier": 1.0, "delta": 1e-3, "clip": 1.0}
SITE: dict[str, Any] = {"unit": "site", "noise_multiplier": 0.5, "delta": 1e-3, "clip": 0.3}
SECURE: dict[str, Any] = {"secure": True, "clip": 0.5}


class Rings(Task):
    """Two classes apart along one axis; patients of four rows each, if there are ids."""

    valid_fraction = 0.0

    def __init__(self, width: int = WIDE, ids: bool = False) -> None:
        self.width, self.ids = width, ids

    def model(self) -> nn.Module:
        return nn.Linear(self.width, 1)

    def train_data(self, site: Site) -> Dataset:
        generator = torch.Generator().manual_seed(sum(map(ord, site.name)))
        y = torch.arange(ROWS) % 2
        x = torch.randn(ROWS, self.width, generator=generator)
        x[:, 0] += 2.0 * y - 1
        return Rows(x, y, groups=torch.arange(ROWS) // 4 if self.ids else None)

    def test_data(self, site: Site) -> Dataset | None:
        return self.train_data(site)


class Counting(Rings):
    """A model with an integer buffer and a float buffer that move while it trains."""

    def model(self) -> nn.Module:
        return Moving(self.width)


class Moving(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(width))
        self.seen: Tensor
        self.mean: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += 1
            self.mean += 1
        y: Tensor = self.linear(x)
        return y


def run(task: Task | None = None, dp: Any = None, sites: int = 4, rounds: Any = 3, **more: Any) -> Any:
    training = more.pop("training", {"steps": 4, "batch_size": 10, "lr": 0.5})
    names = [f"site-{number}" for number in range(sites)]
    return simulate(task or Rings(), sites=names, dp=dp or RECORD, training=training, rounds=rounds, **more)


def params(history: Any) -> Tensor:
    found: Tensor = history.state.params
    return found


def test_the_same_seed_draws_the_same_noise_and_another_seed_other() -> None:
    assert torch.equal(params(run()), params(run()))
    assert not torch.equal(params(run()), params(run(seed=1)))


@pytest.mark.parametrize("strategy", [FedProx(mu=0.1), Scaffold()])
def test_under_secure_aggregation_the_model_is_the_same_but_for_the_rounding(strategy: Any) -> None:
    clip = {"delta": 1.5, "control": 3.0} if isinstance(strategy, Scaffold) else 1.5
    masked = run(strategy=strategy, privacy={"secure": True, "clip": clip})
    torch.testing.assert_close(params(masked), params(run(strategy=strategy)), atol=1e-5, rtol=0)


@pytest.mark.parametrize("dp", [RECORD, SITE])
@pytest.mark.parametrize("privacy", [None, SECURE])
def test_no_metric_leaves_and_no_number_of_rows(dp: Any, privacy: Any) -> None:
    told: list[Told] = []
    history = run(dp=dp, privacy=privacy, listeners=[told.append])
    ended = [one for one in told if isinstance(one, RoundEnded)]
    assert {one.plan.kind for one in ended} == {"train", "evaluate"}
    for one in ended:
        assert one.aggregate.sums == {}
        assert one.aggregate.examples == len(one.aggregate.sites)  # which have 40 rows each
    assert set(history.frame()["scope"]) == set(history.test)  # a site's own numbers stay in its own report


def test_public_weights_weigh(tmp_path: Path) -> None:
    """With all the weight at one site, and no noise to speak of, the mean is that site's update."""
    quiet = {"unit": "site", "noise_multiplier": 1e-2, "delta": 1e-3, "clip": 1e-4}
    heavy = {"site-0": 10**6, "site-1": 1, "site-2": 1, "site-3": 1}
    alone = run(dp=quiet, sites=1, rounds=1)
    together = run(dp={**quiet, "weights": heavy}, rounds=1)
    start = run(dp=quiet, sites=1, rounds=1, training={"steps": 1, "batch_size": 1, "lr": 1e-30})
    moved, expected = params(together) - params(start), params(alone) - params(start)
    torch.testing.assert_close(moved, expected, atol=2e-5, rtol=0)


def test_buffers_neither_move_nor_are_counted() -> None:
    history = run(Counting())
    assert history.state.counters.tolist() == [0]
    assert history.model().mean.tolist() == [0.0] * WIDE


@pytest.mark.parametrize("privacy", [None, SECURE])
def test_the_noise_on_a_sum_of_updates_is_what_is_accounted(privacy: Any) -> None:
    """Sites that send nothing to speak of: what moves the model is noise of z C / n on each coordinate."""
    still = {"steps": 1, "batch_size": 1, "lr": 1e-30}
    noisy = run(Rings(width=20_000), SITE, rounds=1, training=still, privacy=privacy)
    calm = run(Rings(width=20_000), {**SITE, "noise_multiplier": 1e-2, "clip": 1e-10}, rounds=1, training=still)
    moved = (params(noisy) - params(calm)).double().numpy()
    std = SITE["noise_multiplier"] * SITE["clip"] / 4
    assert moved.std() == pytest.approx(std, rel=0.03)
    assert stats.kstest(moved / moved.std(), "norm").pvalue > 1e-3


def test_a_clip_that_adapts_follows_the_updates_and_is_the_same_after_a_resume(tmp_path: Path) -> None:
    """Norms are far below C, so C shrinks by exp(-0.2 * 0.5) a round, but for the noise on the share (1/20)."""
    dp = {**SITE, "noise_multiplier": 1e-2, "clip": 100.0, "adaptive": {}}
    seen: list[float] = []

    def listen(event: Told) -> None:
        if isinstance(event, RoundEnded) and event.plan.kind == "train":
            seen.append(event.plan.hyper["dp"]["clip"])
            assert event.aggregate.sums == {}
            if len(seen) == 3:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(dp=dp, sites=24, rounds=6, runs=tmp_path, run="one", listeners=[listen])
    ratios = [b / a for a, b in pairwise(seen)]
    assert all(abs(math.log(ratio) + 0.1) < 0.2 * 5 / 20 for ratio in ratios)
    resumed = run(dp=dp, sites=24, rounds=6, runs=tmp_path, run="one", resume=True)
    assert torch.equal(params(resumed), params(run(dp=dp, sites=24, rounds=6)))
    found = Checkpoints(tmp_path / "one" / "checkpoints").load()
    assert found is not None
    assert (found[1].clip or math.inf) < seen[-1]


def test_what_is_promised_is_what_the_accountant_says_of_what_was_done(tmp_path: Path) -> None:
    history = run(runs=tmp_path, run="one")
    event = Event(1.0, 10 / ROWS, 4 * 3)
    for site in history.test:
        assert history.privacy[site].events == (event,)
        assert history.privacy[site].cost == epsilon([event], 1e-3)
    kept = json.loads((tmp_path / "one" / "privacy.json").read_text())
    assert kept["site-0"]["epsilon"] == history.privacy["site-0"].cost.epsilon


def test_a_target_is_met_from_below_and_not_by_much() -> None:
    history = run(dp={"unit": "record", "epsilon": 3.0, "delta": 1e-3, "clip": 1.0})
    assert all(2.97 < one.cost.epsilon <= 3.0 for one in history.privacy.values())


def test_sites_that_the_server_draws_gain_nothing_by_it() -> None:
    history = run(dp=SITE, sites=8, rounds=RoundsTable(rounds=3, sites_per_round=4))
    assert history.privacy["all"].events == (Event(0.5, 1.0, 3),)
    assert "the server draws who is asked" in history.privacy["all"].sampling


def test_patients_are_drawn_and_clipped_as_one() -> None:
    dp = {"unit": "group", "group_column": "patient", "noise_multiplier": 1.0, "delta": 1e-3, "clip": 1.0}
    history = run(Rings(ids=True), dp)
    assert history.privacy["site-0"].events == (Event(1.0, 1.0, 12),)  # 10 patients a site, batches of 10


class Streaming(Rings):
    def batches(self, site: Site, dataset: Any, seed: int) -> Any:
        return iter([(dataset.tensors[0][:4], dataset.tensors[1][:4])] * 99)


class Normed(Rings):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(self.width, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))


REFUSED: Sequence[tuple[str, Any, dict[str, Any]]] = [
    ("batches of its own", Streaming(), {}),
    ("GroupNorm", Normed(), {}),
    ("trains in its own way", Rings(), {"strategy": Ditto()}),
    ("who has several is protected less", Rings(ids=True), {}),
    ("nothing says whose a row is", Rings(), {"dp": {**RECORD, "unit": "group", "group_column": "patient"}}),
    ("not below 1 / 40", Rings(), {"dp": {**RECORD, "delta": 0.03}}),
    ("with so many sites", Rings(), {"dp": {**SITE, "delta": 0.3}}),
    ("too few", Rings(), {"dp": {**SITE, "adaptive": {}}}),
    ("no number for site 'site-3'", Rings(), {"dp": {**RECORD, "weights": {f"site-{n}": 1 for n in range(3)}}}),
    ("and 'control' uniformly", Rings(), {"dp": {**SITE, "weights": {"site-0": 1}}, "strategy": Scaffold()}),
    ("clip_norm", Rings(), {"training": {"steps": 1, "clip_norm": 1.0}}),
    ("float32", Rings(), {"training": {"steps": 1, "precision": "bfloat16"}}),
]


@pytest.mark.parametrize(("why", "task", "more"), REFUSED, ids=[why for why, _, _ in REFUSED])
def test_what_would_make_the_promise_untrue_is_refused_in_a_line(why: str, task: Task, more: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=why) as refused:
        run(task, **more)
    assert len(str(refused.value).splitlines()) == 1


def test_early_stopping_and_a_choice_by_validation_are_refused() -> None:
    with pytest.raises(UserError, match="patience"):
        run(rounds=RoundsTable(rounds=3, patience=1))


def test_work_that_stragglers_leave_undone_is_not_what_noise_is_solved_for() -> None:
    dp = {"unit": "record", "epsilon": 3.0, "delta": 1e-3, "clip": 1.0}
    with pytest.raises(UserError, match="stragglers"):
        run(dp=dp, stragglers=Stragglers(fraction=0.5))
