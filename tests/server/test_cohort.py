"""What gets into a round's sum, and what a round may say."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from hansa.layout import Layout
from hansa.metrics import ratio, values
from hansa.records import Aggregate, Broadcast, Part, Plan, Refusal, Reply
from server.cohort import Collector, Rule, draw

MODEL = nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))
LAYOUT = Layout.of(MODEL)  # 6 floats, 1 counter
PARTS = {"delta": Part(6, "examples")}
PLAN = Plan("run", 0, 1, "train", "valid", Broadcast(torch.zeros(6), torch.zeros(1, dtype=torch.int64)), {})


def reply(site: str, values: list[float], examples: int = 1, counter: int = 0, **sums: torch.Tensor) -> Reply:
    return Reply(site, examples, {"delta": torch.tensor(values)}, torch.tensor([counter]), sums)


def collect(*answers: Reply | Refusal, quorum: int = 1) -> Aggregate:
    collector = Collector(PLAN, ["a", "b", "c"], PARTS, LAYOUT, 4)
    for answer in answers:
        collector.add(answer)
    return collector.aggregate(Rule(quorum))


def test_the_mean_is_weighted_by_rows() -> None:
    """By hand: (1 * 3 + 4 * 1) / 4 = 1.75."""
    result = collect(reply("a", [1.0] * 6, 3), reply("b", [4.0] * 6, 1))
    assert result.mean["delta"].tolist() == [1.75] * 6
    assert (result.examples, result.share, result.sites) == (4, 0.5, ("a", "b"))


def test_any_order_of_arrival_gives_the_same_bits() -> None:
    answers = [
        reply("a", torch.rand(6).tolist(), 7, 3, loss=ratio(0.1, 1)),
        reply("b", torch.rand(6).tolist(), 11, 5, loss=ratio(0.7, 3)),
        reply("c", torch.rand(6).tolist(), 13, 4, loss=ratio(1e-3, 9)),
    ]
    results = [collect(*order) for order in itertools.permutations(answers)]
    for result in results[1:]:
        assert torch.equal(result.mean["delta"], results[0].mean["delta"])
        assert torch.equal(result.sums["loss"], results[0].sums["loss"])
        assert replace(result, mean={}, sums={}, counters=None) == replace(results[0], mean={}, sums={}, counters=None)


def test_of_counters_the_largest_wins() -> None:
    """Seen elsewhere: BatchNorm counters averaged to 8.5."""
    result = collect(reply("a", [0.0] * 6, counter=8), reply("b", [0.0] * 6, counter=9))
    assert result.counters is not None
    assert result.counters.tolist() == [9]


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (reply("b", [0, 0, math.nan, 0, 0, 0]), "part 'delta' has nan at 1.weight[0]"),
        (reply("b", [0, -math.inf, 0, 0, 0, 0]), "part 'delta' has -inf at 0.bias[0]"),
        (reply("b", [1.0]), "part 'delta' is (1,) torch.float32 where (6,) torch.float32 is declared"),
        (replace(reply("b", [0.0] * 6), upload={"delta": torch.zeros(6).half()}), "(6,) torch.float16 where"),
        (replace(reply("b", [0.0] * 6), upload={}), "parts [] where the strategy has ['delta']"),
        (replace(reply("b", [0.0] * 6), counters=torch.zeros(1)), "counters are not 1 integers"),
        (reply("b", [0.0] * 6, -1), "a weight of -1"),
        (replace(reply("b", [0.0] * 6), examples=1.5), "a weight of 1.5"),  # type: ignore[arg-type]
        (reply("b", [0.0] * 6, 0), "no training rows"),
        (reply("b", [1e30] * 6), "too large to be summed"),
    ],
)
def test_a_bad_update_is_refused_with_its_reason_and_the_round_goes_on(bad: Reply, says: str) -> None:
    result = collect(reply("a", [1.0] * 6), bad)
    assert says in result.dropped["b"]
    assert result.mean["delta"].tolist() == [1.0] * 6
    assert result.void is None


def test_below_the_quorum_a_round_does_not_count() -> None:
    result = collect(reply("a", [1.0] * 6), Refusal("b", "too slow"), quorum=2)
    assert result.void == "1 of 3 sites took part; the quorum is 2"
    assert result.mean == {}
    assert dict(result.dropped) == {"b": "too slow", "c": "no answer"}


def test_no_update_at_all_is_a_void_round_not_the_old_model() -> None:
    assert collect().void == "0 of 3 sites took part; the quorum is 1"


def test_all_weights_zero_is_a_void_round() -> None:
    assert collect(reply("a", [0.0] * 6, 0), reply("b", [0.0] * 6, 0)).void is not None


def test_a_second_answer_of_one_site_is_not_added() -> None:
    result = collect(reply("a", [1.0] * 6), reply("a", [9.0] * 6))
    assert result.mean["delta"].tolist() == [1.0] * 6


def test_other_metric_keys_at_one_site_are_named_and_the_round_goes_on() -> None:
    result = collect(reply("a", [0.0] * 6, loss=ratio(2, 4), f1=ratio(1, 2)), reply("b", [0.0] * 6, loss=ratio(1, 4)))
    assert result.sums["loss"].tolist() == [3, 8]
    assert result.warnings == ("metric 'f1' is missing from b",)


def test_a_metric_that_is_not_finite_is_left_out_and_named() -> None:
    result = collect(reply("a", [0.0] * 6, loss=ratio(math.nan, 4)), reply("b", [0.0] * 6, loss=ratio(1, 4)))
    assert result.sums["loss"].tolist() == [1, 4]
    assert any("a: metric 'loss' is not finite" in warning for warning in result.warnings)


def test_memory_counts_only_for_sites_that_took_part() -> None:
    """A site that was dropped does not commit what it staged."""
    good, bad = replace(reply("a", [0.0] * 6), memory="1-x"), replace(reply("b", [math.nan] * 6), memory="1-x")
    assert collect(good, bad).memory == {"a": "1-x"}


def test_a_cohort_depends_on_seed_and_round_not_on_the_order_of_sites() -> None:
    sites = [f"s{i}" for i in range(20)]
    assert draw(sites, 5, 1, 3) == draw(reversed(sites), 5, 1, 3)
    assert draw(sites, 5, 1, 3) != draw(sites, 5, 1, 4)
    assert draw(sites, 5, 1, 3) != draw(sites, 5, 2, 3)
    assert len(set(draw(sites, 5, 1, 3))) == 5
    assert draw(sites, 99, 1, 3) == sorted(sites)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 3), (0, 2)])
def test_a_metric_of_another_form_than_a_metric_s_is_left_out_and_named(shape: tuple[int, ...]) -> None:
    """A site chooses what it sends: what cannot be a ratio or a ROC must not reach whoever computes its value."""
    result = collect(reply("a", [1.0] * 6, loss=torch.ones(shape)), reply("b", [1.0] * 6, loss=ratio(1, 2)))
    assert values(result.sums) == {"loss": 0.5}
    assert any(f"a: metric 'loss' is of shape {list(shape)}" in warning for warning in result.warnings)
