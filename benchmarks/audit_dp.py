"""Attacks DP-SGD as it is, and says what epsilon it cannot have: an audit in one training run.

Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run" (NeurIPS 2023, arXiv 2305.08846): m canaries
are each trained on or not by a coin of their own, once; the attacker sees the trained model, and guesses the coins that
he is most certain of. If training is (epsilon, delta)-private he is seldom right too often, which gives a lower bound
on epsilon at 95 % confidence. A bound above the epsilon that is claimed says that something is broken.

The canaries are made for it: each moves one weight of the model that no other row moves, by a gradient longer than the
clip. The score is how far that weight has gone. Other rows train beside them.

    honest        a row is a person; sampled, clipped and noised as claimed
    honest-group  a person has 8 rows, clipped as one
    noise         no noise
    clip          the clip is far beyond the gradients; the noise is as claimed
    group         a person has 8 rows, each clipped by itself, and groups are claimed

The last three must be found out. They are made by telling the trainer one mechanism and the accountant another.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import binom
from torch import nn
from torch.utils.data import TensorDataset

import hansa
from clients.config import TrainingTable
from clients.dpsgd import DpTrainer
from clients.poisson import PoissonBatches, rows_of_units
from hansa.layout import Layout
from hansa.seeds import derive, numpy_generator
from privacy.dp.accounting import epsilon, noise_multiplier_for
from privacy.dp.mechanism import DpSgd
from privacy.dp.randomness import Stream
from strategies.fedavg import FedAvg

CONFIDENCE = 0.95
SHARES = (1 / 16, 1 / 8, 1 / 4, 1 / 2)  # of the canaries, that are guessed at
OTHERS, FEATURES = 200, 16  # rows that are no canaries
ROWS = 8  # of a person in a group
LONG = 20.0  # of a canary; its gradient is half of that, while the weight is small
CLIP, STEPS, RATE, LR = 1.0, 8, 0.5, 0.001
HONEST, BROKEN = ("honest", "honest-group"), ("noise", "clip", "group")


def p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """How likely so many right guesses are at most, if training is (epsilon, delta)-private.

    Their theorem 5.2 and corollary 5.4. Under pure privacy a guess is right with the chance of randomised response at
    most, 1 / (1 + exp(-epsilon)), whatever the other coins: P[right >= v] <= P[B >= v], B binomial. With delta it is

        P[right >= v] <= P[B >= v] + 2 m delta max_i P[v - i <= B < v] / i,    i = 1 .. v.
    """
    chance = 1 / (1 + math.exp(-epsilon))
    below = binom.cdf(np.arange(-1, right), guesses, chance)  # [v + 1]: P[B <= k], k = -1 .. v - 1
    fewer = np.arange(1, right + 1)
    most = float(((below[-1] - below[-1 - fewer]) / fewer).max()) if right else 0.0
    return min(1.0, float(binom.sf(right - 1, guesses, chance)) + 2 * canaries * delta * most)


@cache
def lower_bound(canaries: int, guesses: int, right: int, delta: float, error: float) -> float:
    """The largest epsilon that so many right guesses refute, but for a chance of `error`; 0 if there is none."""
    low, high = 0.0, 1.0
    while p_value(canaries, guesses, right, high, delta) < error:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if p_value(canaries, guesses, right, middle, delta) < error else (low, middle)
    return low


def audited(scores: NDArray[np.float64], coins: NDArray[np.bool_], delta: float, shares: Sequence[float]) -> float:
    """The bound, from a score and a coin for each canary: the highest are guessed to be in, as many lowest to be out.

    The best of several numbers of guesses is taken: each gets its part of the chance to err (Bonferroni).
    """
    order, m, bounds = np.argsort(scores, kind="stable"), len(scores), []
    for share in shares:
        half = max(1, round(m * share / 2))
        right = int(coins[order[-half:]].sum() + (~coins[order[:half]]).sum())
        bounds.append(lower_bound(m, 2 * half, right, delta, (1 - CONFIDENCE) / len(shares)))
    return max(bounds)


@dataclass(frozen=True)
class Trial:
    """One audit.

    Args:
        claimed: what the accountant is told.
        used: what the trainer is told.
        rows: of a person.
    """

    claimed: DpSgd
    used: DpSgd
    rows: int


def trial(case: str, people: int, noise_multiplier: float) -> Trial:
    """What is claimed and what is done, for so many people."""
    rows = ROWS if case in ("honest-group", "group") else 1
    claimed = DpSgd("group" if rows > 1 else "record", people, RATE, noise_multiplier, CLIP, STEPS)
    match case:
        case "noise":
            used = replace(claimed, noise_multiplier=0.0)
        case "clip":
            used = replace(claimed, clip=10 * LONG, noise_multiplier=noise_multiplier * CLIP / (10 * LONG))
        case "group":
            used = replace(claimed, unit="record", units=people * rows)
        case _:
            used = claimed
    return Trial(claimed, used, rows)


class Attacked(hansa.Task):
    """Logistic regression on a column for each canary, and on some that the other rows have."""

    def __init__(self, canaries: int) -> None:
        self.canaries = canaries

    def model(self) -> nn.Module:
        model = nn.Linear(self.canaries + FEATURES, 1, bias=False)
        nn.init.zeros_(model.weight)
        return model


def people(coins: NDArray[np.bool_], seed: int) -> TensorDataset:
    """A row for each canary that is in, and for each of the others."""
    x = torch.zeros(int(coins.sum()) + OTHERS, len(coins) + FEATURES)
    x[np.arange(coins.sum()), np.flatnonzero(coins)] = LONG
    x[-OTHERS:, len(coins) :] = torch.from_numpy(numpy_generator(seed, "others").standard_normal((OTHERS, FEATURES)))
    y = torch.ones(len(x), dtype=torch.int64)
    y[-OTHERS:] = (x[-OTHERS:, -1] > 0).long()
    return TensorDataset(x, y)


def scores(one: Trial, coins: NDArray[np.bool_], seed: int) -> NDArray[np.float64]:
    """Trains once, by the code that a site runs; how far each canary's weight has gone."""
    task, device, rows = Attacked(len(coins)), torch.device("cpu"), people(coins, seed)
    data = TensorDataset(*(tensor.repeat_interleave(one.rows, 0) for tensor in rows.tensors))
    ids = np.repeat(np.arange(len(rows)), one.rows).tolist()
    units = rows_of_units(ids) if one.used.unit == "group" else None
    hyper = TrainingTable(steps=STEPS, batch_size=len(data), lr=LR * one.used.units).hyper(1)
    model, stream = task.model(), Stream(derive(seed, "stream").to_bytes(32))
    layout = Layout.of(model)
    trainer = DpTrainer(
        task, FedAvg(), layout, layout.read(model), {}, {}, hyper, device, len(data), mechanism=one.used, stream=stream
    )
    run = trainer.fit(model, PoissonBatches(task, data, one.used, stream, device, units))
    return run.delta[: len(coins)].double().numpy()


def bound_of(case: str, canaries: int, target: float, delta: float, seed: int) -> tuple[float, float]:
    """The epsilon that is claimed in a case, and the bound that the audit gives."""
    coins = numpy_generator(seed, case, "coins").random(canaries) < 0.5
    one = trial(case, int(coins.sum()) + OTHERS, noise_multiplier_for(target, delta, RATE, STEPS))
    found = audited(scores(one, coins, derive(seed, case)), coins, delta, SHARES)
    return epsilon([one.claimed.event], delta).epsilon, found


def main() -> int:
    """Prints a line for each case. Returns 1 if an honest one is above its epsilon, or a broken one is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--break", dest="broken", choices=BROKEN, help="this alone, in place of all")
    parser.add_argument("--canaries", type=int, default=2000)
    parser.add_argument("--epsilon", type=float, default=2.0, help="that is claimed")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    claimed, bounds, wrong = 0.0, {}, []
    for case in [args.broken] if args.broken else [*HONEST, *BROKEN]:
        start = time.perf_counter()
        claimed, bounds[case] = bound_of(case, args.canaries, args.epsilon, args.delta, args.seed)
        above = bounds[case] > claimed
        wrong += [case] * (above != (case in BROKEN))
        verdict = "broken" if above else "nothing found"
        seconds = time.perf_counter() - start
        print(f"{case:13} claims epsilon {claimed:.3f}, has at least {bounds[case]:.3f}: {verdict} ({seconds:.0f} s)")
    found = {"claimed_eps": claimed, "lower_bound": bounds, "m": args.canaries, "confidence": CONFIDENCE}
    print(f"RESULT {json.dumps({**found, 'delta': args.delta, 'wrong': wrong})}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
