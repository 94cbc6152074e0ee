"""A simulation under secure aggregation: the protocol's own whole numbers, and what may be lost by them."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from clients.config import TrainingTable
from hansa.errors import UserError
from hansa.layout import Layout
from hansa.metrics import ratio
from hansa.records import Aggregate, Broadcast, Part, Plan, Refusal, Reply
from hansa.seeds import coins
from hansa.task import Task
from privacy.config import PrivacyTable
from privacy.fixed_point import to_fixed
from privacy.secagg.keystream import Keystream
from privacy.secagg.quantise import quantise
from privacy.secagg.rehearsal import Rehearsal, founded
from privacy.secagg.ring import RINGS
from privacy.secagg.terms import Scalars, roster_digest
from privacy.secure import COUNTERS, Secure
from server.cohort import Rule
from server.config import RoundsTable
from server.events import Event, Note
from server.securesum import aggregate_of
from simulations.api import simulate
from simulations.datasets.breast_cancer import BreastCancer
from simulations.engines.siteloop import SiteLoop
from simulations.federation import Federation, Simulation
from simulations.securesum import SecureCollector
from strategies.fedavg import FedAvg
from strategies.scaffold import Scaffold

MODEL = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
LAYOUT = Layout.of(MODEL)  # 6 floats, 1 counter
WIDE = Layout.of(nn.Linear(599, 1))
SECURE = Secure(PrivacyTable(clip=2.0, max_weight=100), {"delta": Part(6, "examples")}, 1)
PLAN = Plan("run", 0, 1, "train", "valid", Broadcast(torch.zeros(6), torch.zeros(1, dtype=torch.int64)), {})
SITES = ("a", "b", "c", "d")


class Normed(Task):
    """Integer buffers, and a test split."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(30, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def reply(site: str, value: float = 1.0, examples: int = 10, counter: int = 0, **sums: torch.Tensor) -> Reply:
    return Reply(site, examples, {"delta": torch.full((6,), value)}, torch.tensor([counter]), sums)


def collect(*answers: Reply | Refusal, plan: Plan = PLAN, secure: Secure = SECURE, quorum: int = 1) -> Aggregate:
    collector = SecureCollector(plan, SITES, secure, LAYOUT, 8)
    for answer in answers:
        collector.add(answer)
    return collector.aggregate(Rule(quorum))


def test_the_mean_is_weighted_by_levels_of_the_largest_weight() -> None:
    """By hand: 50 and 100 rows of 100 are ceil(127.5) = 128 and 255 levels: (128 * 1 + 255 * -1 + 255 * -1) / 638."""
    result = collect(reply("a", 1.0, 50), reply("b", -1.0, 100), reply("c", -1.0, 100))
    assert result.mean["delta"].tolist() == pytest.approx([(128 - 255 - 255) / 638] * 6, abs=1e-6)
    assert (result.examples, result.share, result.sites) == (250, 3 / 8, ("a", "b", "c"))
    assert dict(result.dropped) == {"d": "no answer"}


def test_of_counters_it_gives_the_mean_rounded_up() -> None:
    result = collect(*(reply(site, counter=count) for site, count in zip("abc", (8, 9, 9), strict=True)))
    assert result.counters is not None
    assert result.counters.tolist() == [9]  # of 26 / 3


def test_below_the_threshold_nothing_is_learnt() -> None:
    """The quorum of 1 is met, the threshold of 3 is not."""
    result = collect(reply("a", loss=ratio(1, 2)), reply("b", loss=ratio(1, 2)), Refusal("c", "too slow", late=True))
    assert result.void == "2 of 4 sites took part, and no sum over fewer than 3 is opened"
    assert (result.mean, result.sums, result.sites, result.examples) == ({}, {}, (), 0)
    assert dict(result.dropped) == {"c": "too slow", "d": "no answer"}


def test_a_test_of_too_few_sites_says_so() -> None:
    test = replace(PLAN, kind="evaluate", split="test")
    result = collect(Reply("a", 3, sums={"test/loss": ratio(1, 3)}), plan=test)
    assert result.sums == {}
    assert any("the test rows do not count: 1 of 4 sites" in warning for warning in result.warnings)


def test_a_metric_that_a_site_has_not_counts_as_nothing_there() -> None:
    more: dict[str, Any] = {"train/loss": ratio(1, 4), "train/f1": ratio(1, 2)}
    one: dict[str, Any] = {"train/loss": ratio(2, 4)}
    result = collect(reply("a", **more), reply("b", **one), reply("c", **more), reply("d", **more))
    assert result.sums["train/loss"].tolist() == [5, 16]
    assert result.sums["train/f1"].tolist() == [3, 6]
    assert "metric 'train/f1' is missing from b" in result.warnings


def test_a_metric_of_fewer_sites_than_the_threshold_is_not_summed() -> None:
    """The sum would be these sites' own, which the server is not to learn; so would their number of test rows."""
    loss: dict[str, Any] = {"train/loss": ratio(1, 4)}
    both: dict[str, Any] = {**loss, "train/own": ratio(1, 2)}
    result = collect(reply("a", **both), reply("b", **both), reply("c", **loss))
    assert result.sums.keys() == {"train/loss"}
    line = "metric 'train/own' is of 2 of the sites only, and no sum over fewer than 3 is opened; left out"
    assert line in result.warnings
    test = replace(PLAN, kind="evaluate", split="test")
    two = [Reply(site, 3, sums={"test/loss": ratio(1, 3)}) for site in "ab"]
    result = collect(*two, *(Refusal(site, "no test rows") for site in "cd"), plan=test)
    assert (result.sums, result.examples) == ({}, 0)
    assert result.void == ("2 of 4 sites gave something, which ones is not known, and no sum over fewer than 3 counts")


def test_clipped_values_are_told_and_many_of_them_are_a_warning() -> None:
    """All six of one site in three: 6 of 18 values. Of 3 x 600, six are a note."""
    result = collect(reply("a", 2.5), reply("b"), reply("c"))
    assert result.warnings == ("33.33% of the values of 'delta' were beyond its [privacy] clip",)
    assert result.mean["delta"].tolist() == pytest.approx([4 / 3] * 6, abs=1e-6)
    wide = SecureCollector(PLAN, SITES, replace(SECURE, parts={"delta": Part(600, "examples")}, counters=0), WIDE, 4)
    for site in "abc":
        vector = torch.ones(600)
        vector[:6] = 2.5 if site == "a" else 1.0
        wide.add(Reply(site, 100, {"delta": vector}, torch.zeros(0, dtype=torch.int64)))
    result = wide.aggregate(Rule(1))
    assert (result.warnings, result.notes) == ((), ("0.33% of the values of 'delta' were beyond its [privacy] clip",))


def test_weights_that_are_off_are_told() -> None:
    """120 rows count as 100: together 300 of 320, 6.25% less; 10 of 100 are 26 levels: 26 / 255 * 100 = 10.2 rows."""
    said = "[privacy] max_weight: the sites' weights are"
    result = collect(reply("a", examples=120), reply("b", examples=100), reply("c", examples=100))
    assert result.notes == (f"{said} -6.2% off their rows in all: 1 of 3 sites have more rows than that",)
    result = collect(reply("a"), reply("b"), reply("c"))
    assert result.notes == (f"{said} +2.0% off their rows in all: they are rounded up to 255ths of it",)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_gives_nothing(bad: float) -> None:
    result = collect(reply("a", bad, 90), reply("b"), reply("c"), reply("d", 4.0, 20))
    assert result.sites == SITES
    assert (dict(result.dropped), result.examples, result.share) == ({}, 40, 3 / 8)
    assert result.mean["delta"].tolist() == pytest.approx([(26 + 26 + 2 * 51) / 103] * 6, abs=1e-6)
    assert result.warnings[0] == "1 of 4 sites gave nothing, which ones is not known; their logs say why"


def test_a_site_without_rows_is_in_the_sum_and_too_many_of_them_are_told() -> None:
    """Who has none is not for the server to know."""
    none = [Refusal(site, "no training rows") for site in "cd"]
    result = collect(reply("a"), reply("b"), none[0], reply("d"))
    assert (result.sites, result.void, dict(result.dropped)) == (SITES, None, {})
    result = collect(reply("a"), reply("b"), *none)
    assert result.void == "2 of 4 sites gave something, which ones is not known, and no sum over fewer than 3 counts"
    assert (result.mean, result.sites, dict(result.dropped)) == ({}, (), {})


def test_who_starts_otherwise_than_the_others_gives_nothing() -> None:
    """Two of four start from another version: either pair would be alone in what the other cannot hide."""
    odd = replace(PLAN, memory={"a": "1-a", "b": "1-a"})
    assert collect(*(reply(site) for site in SITES), plan=odd).void is not None
    one = collect(
        *(reply(site, examples=50 if site == "d" else 10) for site in SITES),
        plan=replace(PLAN, memory=dict.fromkeys("abc", "1-a")),
    )
    assert (one.void, one.examples, one.sites) == (None, 30, SITES)


class Recording(SiteLoop):
    """Keeps the answers of a round."""

    heard: list[Reply | Refusal]

    def answers(self, plan: Plan, asked: Any, mine: Any) -> Iterator[Reply | Refusal]:
        self.heard = list(super().answers(plan, asked, mine))
        yield from self.heard


def rehearsed(secure: Secure, plan: Plan, replies: list[Reply], seed: int) -> Aggregate:
    """The whole protocol, masks and all, over the same updates with the same coins."""
    roster, keys = founded([reply.site for reply in replies], random.Random(seed).randbytes)
    shapes: Mapping[str, tuple[int, ...]] = {name: tuple(one.shape) for name, one in replies[0].sums.items()}
    scalars = [Scalars(name, replies[0].sums[name].numel()) for name in sorted(shapes)]
    asked = [reply.site for reply in replies]
    terms = secure.terms(plan, asked, scalars, epoch=1, attempt=1, roster=roster_digest(roster, asked))
    stream, updates = Keystream(), {}
    for one in replies:
        sums = {name: to_fixed(x, len(asked)).flatten().numpy() for name, x in one.sums.items()}
        if one.counters is not None:
            sums[COUNTERS] = one.counters.numpy()
        vectors = {name: x.numpy() for name, x in one.upload.items()}
        own = coins(plan.seed, plan.round, one.site)
        updates[one.site] = quantise(terms, vectors, one.examples, sums, own, stream)
    total = Rehearsal(terms, roster, keys, random.Random(seed).randbytes, stream).run(updates)
    return aggregate_of(total, plan, secure, shapes, len(replies), {})


@pytest.mark.parametrize("bits", RINGS)
@pytest.mark.parametrize("strategy", [FedAvg(), Scaffold()], ids=["fedavg", "scaffold"])
def test_a_simulation_s_sums_are_bit_for_bit_those_of_the_protocol(strategy: Any, bits: int) -> None:
    """Each round of a whole run, training and scoring, against all messages between four sites and a server."""
    sources = {site: BreastCancer().source(site) for site in BreastCancer().sites()}
    table = PrivacyTable(clip=1.0, max_weight=200, ring_bits=bits)
    work = TrainingTable(epochs=1, batch_size=16, lr=0.05)
    what = Federation(Normed(), strategy, sources, work, RoundsTable(rounds=2), privacy=table)
    simulation = Simulation(what, None, [])
    assert simulation.secure is not None
    loop, layout, asked = Recording(simulation.setting, simulation.halves), simulation.bench.shared, list(sources)
    memory: Mapping[str, str] = {}
    state = strategy.start(*simulation.bench.start, layout.n_parameters)
    for number, kind in ((1, "train"), (2, "train"), (3, "evaluate")):
        hyper = work.hyper(number)
        plan = Plan("run", 0, number, kind, "test", strategy.broadcast(state), hyper, memory)  # type: ignore[arg-type]
        result = loop.work(plan, asked, asked).aggregate(Rule(4))
        memory = result.memory if number == 1 else {}
        replies = [one for one in loop.heard if isinstance(one, Reply)]
        wanted = rehearsed(simulation.secure, plan, replies, seed=number)
        assert len(replies) == 4
        assert result.void is None
        assert result.mean.keys() == wanted.mean.keys()
        assert all(torch.equal(result.mean[name], wanted.mean[name]) for name in result.mean)
        assert all(torch.equal(result.sums[name], wanted.sums[name]) for name in wanted.sums)
        assert result.sums.keys() == wanted.sums.keys()
        assert (result.examples, result.warnings) == (wanted.examples, wanted.warnings)
        if kind == "train":
            assert result.counters is not None
            assert wanted.counters is not None
            assert torch.equal(result.counters, wanted.counters)
            state = replace(strategy.step(state, result.mean, result.share), counters=result.counters)


def run(seed: int = 0, **privacy: Any) -> Any:
    return simulate(
        Normed(), dataset=BreastCancer(), training={"lr": 0.05, "epochs": 2}, rounds=5, seed=seed, privacy=privacy
    )


def test_the_same_seed_gives_the_same_bits() -> None:
    tuned: dict[str, Any] = {"clip": 1.0, "max_weight": 200, "ring_bits": 16}
    one, two, other = run(**tuned), run(**tuned), run(1, **tuned)
    assert torch.equal(one.state.params, two.state.params)
    assert not torch.equal(one.state.params, other.state.params)


def test_with_32_bits_a_run_is_as_good_as_without() -> None:
    """Values are off by up to 1 of 2,105,376 levels at full weight 255: far less than a float's training noise."""
    plain, secure = run(secure=False), run(clip=4.0, max_weight=200)
    assert torch.allclose(plain.state.params, secure.state.params, atol=2e-2)
    assert secure.curve("loss").iloc[-1] == pytest.approx(plain.curve("loss").iloc[-1], abs=2e-3)


def test_untuned_a_simulation_goes_without_and_true_is_taken_at_its_word() -> None:
    assert torch.equal(run().state.params, run(secure=False).state.params)
    with pytest.raises(UserError, match="hansa tune clip"):
        run(secure=True)


def test_what_it_costs_is_among_a_run_s_events() -> None:
    events: list[Event] = []
    simulate(
        Normed(),
        dataset=BreastCancer(),
        training={"lr": 0.05},
        rounds=1,
        privacy={"clip": 1e-3, "max_weight": 200},
        listeners=[events.append],
    )
    assert [e for e in events if isinstance(e, Note) and e.level == "warning" and "beyond its [privacy] clip" in e.text]


def test_rows_and_words_of_a_round_stay_within_the_ring() -> None:
    """At its bounds and the largest weights, the sum of all sites does not wrap."""
    result = collect(*(reply(site, 2.0, 100) for site in SITES))
    assert result.mean["delta"].tolist() == pytest.approx([2.0] * 6, rel=1e-6)
    assert np.isfinite(result.mean["delta"].numpy()).all()


@pytest.mark.parametrize("missed", [False, True])
def test_a_site_that_staged_nothing_starts_from_what_it_had_by_the_round_s_name(tmp_path: Path, missed: bool) -> None:
    """One that was late does not, and gives nothing in the next round."""
    sources = {site: BreastCancer().source(site) for site in BreastCancer().sites()}
    table, work = PrivacyTable(clip=1.0), TrainingTable(epochs=1, batch_size=16, lr=0.05)
    what = Federation(Normed(), Scaffold(), sources, work, RoundsTable(rounds=3), privacy=table)
    simulation, first = Simulation(what, tmp_path, []), next(iter(sources))

    class Once(SiteLoop):
        def _answer(self, site: str, plan: Plan, part_of: int | None) -> Reply | Refusal:
            nothing = site == first and plan.round == 2
            return Refusal(site, "none", late=missed) if nothing else super()._answer(site, plan, part_of)

    loop, layout = Once(simulation.setting, simulation.halves), simulation.bench.shared
    state = what.strategy.start(*simulation.bench.start, layout.n_parameters)
    memory: dict[str, str] = {}
    absent, store = [], simulation.halves[first].memory
    for number in (1, 2, 3):
        plan = Plan("run", 0, number, "train", "valid", what.strategy.broadcast(state), work.hyper(number), memory)
        result = loop.work(plan, list(sources), list(sources)).aggregate(Rule(3))
        assert result.void is None
        before, memory = memory.get(first), {**memory, **result.memory}
        absent += [line for line in result.warnings if "gave nothing" in line]
        if number == 2:
            assert (memory[first] == before) == missed
            kept, old = store.load(memory[first]), store.load(before)
            assert all(torch.equal(kept[name], old[name]) for name in old)
    assert len(absent) == 1
