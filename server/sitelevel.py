"""Site-level differential privacy at the server, which adds the noise: it holds only if the server is honest."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hansa.errors import UserError
from hansa.records import Aggregate, Part, Plan
from privacy.dp.adaptive import BIT, Adaptive
from privacy.dp.config import DpTable
from privacy.dp.mechanism import Event
from privacy.dp.randomness import Stream
from privacy.dp.sitewise import PLAIN_STEPS, Grid, SiteSum
from privacy.dp.terms import HYPER, DpTerms, site_noise, weight_of
from privacy.secagg.quantise import weight_level
from privacy.secagg.ring import WEIGHT_LEVELS
from privacy.secure import Secure
from server.config import RoundsTable
from server.securerules import asked_of

Key = Callable[[int], bytes]  # by round


def _fresh(round: int) -> bytes:
    return os.urandom(32)


@dataclass(frozen=True)
class SiteLevel:
    """The noise of a run's rounds.

    Args:
        table: [dp], with unit "site".
        rounds: of the run.
        sites: asked in a round.
        federation: all sites.
        parts: what the strategy uploads.
        secure: how updates are summed; None: without secure aggregation.
        key: 32 bytes for the noise of a round, never twice the same where a model leaves.

    Raises:
        UserError: what [dp] says cannot be held in this run.
    """

    table: DpTable
    rounds: int
    sites: int
    federation: int
    parts: Mapping[str, Part]
    secure: Secure | None = None
    key: Key = _fresh

    def __post_init__(self) -> None:
        if self.table.delta * self.federation >= 1:
            raise UserError(
                f"[dp] delta = {self.table.delta:g} is not below 1 / {self.federation}, with so many sites: it "
                "would allow to give one of them away; choose a smaller one"
            )
        if any(part.each for part in self.parts.values()):
            raise UserError(
                '[dp] unit = "site": the noise is on the mean over sites, and the strategy must see each update; '
                'choose another strategy, or unit = "record"'
            )
        unweighted = [repr(name) for name, part in self.parts.items() if part.weight == "uniform"]
        if unweighted and self.table.weights != "uniform":
            raise UserError(f'[dp] weights: the strategy weighs {" and ".join(unweighted)} uniformly; set "uniform"')
        _ = self.multiplier

    @property
    def multiplier(self) -> float:
        """Noise multiplier of the updates in a round."""
        total = self._total
        return total if self.table.adaptive is None else self._adaptive(total).update_multiplier

    @property
    def draws(self) -> bool:
        """Whether the server asks only some of the sites."""
        return self.sites < self.federation

    @property
    def event(self) -> Event:
        """What the run costs, the bits included."""
        return Event(self._total, 1.0, self.rounds)

    def hyper(self, clip: float | None) -> dict[str, Any]:
        """The terms as they ride in a plan, with the clip that has come of the rounds before, if one has."""
        said = self.table.hyper(self.rounds)
        return {HYPER: said if clip is None else {**said, "clip": clip}}

    def noised(self, plan: Plan, asked: Sequence[str], aggregate: Aggregate) -> tuple[Aggregate, float | None]:
        """What a round of training may say: means with noise, no bits; and the next clip, where it adapts."""
        terms, stream = DpTerms.of(plan.hyper[HYPER]), Stream(self.key(plan.round))
        total = SiteSum(terms.clip, self.multiplier, self._weights(aggregate.sites), self._grids(plan, asked))
        mean, sums = total.noised(aggregate.mean, stream), dict(aggregate.sums)
        clip = None
        if terms.adaptive is not None and BIT in sums:
            there = len(aggregate.sites)  # one that gave nothing gave a bit of 0
            adaptive, share = self._adaptive(site_noise(terms)), np.array([float(sums.pop(BIT)[0]) / there])
            stream.normal(share, adaptive.mean_bit_std(there))
            clip = adaptive.after(terms.clip, float(share[0]))
        return replace(aggregate, mean=mean, sums=sums), clip

    @property
    def _total(self) -> float:
        """Noise multiplier of a round in all."""
        return site_noise(DpTerms.of(self.table.hyper(self.rounds)))

    def _adaptive(self, multiplier: float) -> Adaptive:
        said = self.table.adaptive
        assert said is not None
        return Adaptive(self.sites, multiplier, said.quantile, said.learning_rate, said.bit_noise)

    def _weights(self, sites: Sequence[str]) -> dict[str, int]:
        """As they count in the sum."""
        weights = {site: weight_of(self.table, site) for site in sites}
        if self.secure is None or self.table.weights == "uniform":
            return weights
        return {site: weight_level(weight, self.table.most_weight) for site, weight in weights.items()}

    def _grids(self, plan: Plan, asked: Sequence[str]) -> tuple[Grid, ...]:
        if self.secure is None:
            return tuple(Grid(part.size, PLAIN_STEPS[part.weight]) for part in self.parts.values())
        whole = WEIGHT_LEVELS if self.table.weights == "uniform" else 1  # all weigh alike: 255 levels are one
        parts = self.secure.terms(plan, asked, ()).parts
        return tuple(Grid.of(part, whole if part.weight == "examples" else 1) for part in parts)


def level_of(
    dp: DpTable | None,
    rounds: RoundsTable,
    federation: int,
    parts: Mapping[str, Part],
    secure: Secure | None,
    key: Key = _fresh,
) -> SiteLevel | None:
    """The noise of a run that protects whole sites; None: of any other.

    Args:
        dp: [dp], if there is one.
        rounds: [rounds].
        federation: see SiteLevel.
        parts: see SiteLevel.
        secure: see SiteLevel.
        key: see SiteLevel.

    Raises:
        UserError: what [dp] says cannot be held in this run.
    """
    if dp is None or dp.unit != "site":
        return None
    return SiteLevel(dp, rounds.rounds, asked_of(rounds, federation), federation, parts, secure, key)
