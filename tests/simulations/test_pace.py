"""Virtual time: what a round would have taken on sites that are slow, far or away."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from clients.config import TrainingTable
from hansa.records import Broadcast, Plan
from server.config import RoundsTable
from simulations.federation import Federation
from simulations.pace import Clock, Pace
from simulations.partition import numbered
from strategies.fedavg import FedAvg
from tests.simulations.engines.zoo import Mlp

SITES = [f"s{number}" for number in range(400)]


def plan(number: int = 1, **hyper: int) -> Plan:
    sent = Broadcast(torch.zeros(1), torch.zeros(0, dtype=torch.int64))
    return Plan("run", 0, number, "train", "valid", sent, {"batch_size": 10, **(hyper or {"epochs": 2})})


def clock(pace: Pace, rows: int = 300) -> Clock:
    return Clock(pace, 7, lambda site: rows, 6_000_000, 4_000_000)


def test_a_site_s_time_is_its_rows_and_its_bytes() -> None:
    """By hand: 2 passes over 300 rows at 100 a second, and 10 MB at 5 MB a second; 4 steps of 10 rows take 0.4 s."""
    one = clock(Pace(rows_per_second=100, megabytes_per_second=5))
    assert one.seconds(plan(), "a") == pytest.approx(6 + 2)
    assert one.seconds(plan(steps=4), "a") == pytest.approx(0.4 + 2)


def test_the_median_site_is_as_fast_as_it_says_and_others_spread_as_a_log_normal() -> None:
    """exp(sigma z) has median 1, and its logarithm the standard deviation sigma."""
    one = clock(Pace(rows_per_second=600, megabytes_per_second=1e9, spread=0.5))
    logs = np.log([one.seconds(plan(), site) for site in SITES])
    assert np.median(logs) == pytest.approx(0.0, abs=3 * 1.25 * 0.5 / math.sqrt(len(SITES)))
    assert logs.std() == pytest.approx(0.5, abs=3 * 0.5 / math.sqrt(2 * len(SITES)))


def test_a_round_ends_with_its_last_site_or_at_the_deadline() -> None:
    pace = Pace(rows_per_second=600, spread=1.0)
    every, (absent, seconds) = [clock(pace).seconds(plan(), site) for site in SITES], clock(pace).round(plan(), SITES)
    assert not absent
    assert seconds == max(every)
    deadline = float(np.median(every))
    absent, seconds = clock(pace.model_copy(update={"deadline": deadline})).round(plan(), SITES)
    assert seconds == deadline
    assert len(absent) == len(SITES) // 2
    assert all("virtual seconds, and the deadline is" in reason for reason in absent.values())


def test_who_is_there_is_drawn_anew_each_round_and_is_the_same_every_time() -> None:
    """400 draws with chance 0.8: the count is within four standard deviations of 320."""
    one = clock(Pace(availability=0.8))
    first, again, second = (set(one.round(plan(number), SITES)[0]) for number in (1, 1, 2))
    assert first == again != second
    assert len(first) == pytest.approx(80, abs=4 * math.sqrt(400 * 0.8 * 0.2))


@pytest.mark.parametrize("engine", ["loop", "processes", "threads"])
def test_a_run_counts_who_was_in_time_and_tells_each_round_s_seconds(engine: str, tmp_path: Path) -> None:
    """Two of five sites have so many rows that they miss the deadline: their rows are not in the mean."""
    work, rounds = TrainingTable(epochs=1, batch_size=4, lr=0.1), RoundsTable(rounds=2, quorum=1)
    pace = Pace(rows_per_second=1, megabytes_per_second=1e9, deadline=27.5)  # sites have 16, 21, 26, 31, 36 rows
    what = Federation(Mlp(), FedAvg(), dict.fromkeys(numbered(5)), work, rounds, pace=pace, engine=engine, workers=2)
    history = what.run(tmp_path, "one")
    assert history.curve("virtual_seconds", "train").tolist() == [27.5, 27.5]
    few = replace(what, sources=dict.fromkeys(numbered(5)[:3]), pace=None, engine="loop")
    assert torch.equal(history.state.params, few.try_out().state.params)
