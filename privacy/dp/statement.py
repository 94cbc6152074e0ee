"""What a report says of differential privacy: who is protected, how well, by what argument, and from what not."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import inf
from typing import Any

from privacy.dp.cost import Cost
from privacy.dp.mechanism import DpSgd, Event, Unit

WHO = {
    "record": "one training row of a site",
    "group": "all training rows of a site that share one {column}",
    "site": "all that one site has",
}
RELATION = {
    "record": "with the row, or without it",
    "group": "with these rows, or without them",
    "site": "with the site's update, or with zeros in its place",
}
HONEST = "holds only if the server is honest: it adds the noise"  # what is said of whole sites
ACCOUNTANTS = {
    "PLD": "privacy loss distributions (PLD), rounded so that epsilon can only come out higher, below the bound by RDP",
    "RDP": "Renyi divergences (RDP)",
}


@dataclass(frozen=True)
class Statement:
    """A statement of privacy.

    Args:
        unit: who is protected.
        cost: by the accountant.
        events: that were accounted for.
        column: whose value names a group; with unit "group" only.
        mechanism: of a plan, where the unit is the record or the group.
        repeats: whether rows of one person were acknowledged, with unit "record".
        drawn: whether the server asks only some of the sites in a round.
    """

    unit: Unit
    cost: Cost
    events: tuple[Event, ...]
    column: str | None = None
    mechanism: DpSgd | None = None
    repeats: bool = False
    drawn: bool = False

    @property
    def who(self) -> str:
        """Who is protected."""
        return WHO[self.unit].format(column=self.column)

    @property
    def sampling(self) -> str:
        """What is assumed of who is in a sum, which the platform sees to."""
        if self.unit == "site":
            return "none: every site counts as asked in every round" + (
                ", since the server draws who is asked, and knows it" if self.drawn else ""
            )
        return "a secret coin of the site draws each unit for each step (Poisson sampling); no batch is cut or padded"

    @property
    def uncovered(self) -> list[str]:
        """What the statement does not cover."""
        return uncovered(self.unit, self.repeats)

    @property
    def lines(self) -> list[str]:
        """For a report."""
        cost, method = self.cost, ACCOUNTANTS[self.cost.accountant]
        spent = "no noise: nobody is protected" if cost.epsilon == inf else f"epsilon = {cost.shown}"
        return [
            f"protected: {self.who} (unit: {self.unit})",
            f"{spent}, delta = {cost.delta:g}",
            f"relation: {RELATION[self.unit]}",
            f"accountant: {method}" + (f"; {cost.remark}" if cost.remark else ""),
            *(f"accounted: {_said(event)}" for event in self.events),
            *([f"clip: L2 norm {self.mechanism.clip:g} of each unit's gradient"] if self.mechanism else []),
            f"sampling: {self.sampling}",
            *(f"not covered: {line}" for line in self.uncovered),
        ]

    def to_dict(self) -> dict[str, Any]:
        """For JSON; without noise, epsilon is null."""
        finite = self.cost.epsilon < inf
        return {
            "unit": self.unit,
            "protected": self.who,
            "relation": RELATION[self.unit],
            **asdict(self.cost),
            "epsilon": self.cost.epsilon if finite else None,
            "events": [asdict(event) for event in self.events],
            "mechanism": _or_none(self.mechanism),
            "sampling": self.sampling,
            "not_covered": self.uncovered,
        }


def uncovered(unit: Unit, repeats: bool) -> list[str]:
    """What a statement does not cover.

    Args:
        unit: who is protected.
        repeats: whether rows of one person were acknowledged, with unit "record".
    """
    if unit == "site":
        return [
            "which sites take part, and their weights, are public",
            "the noise is added to the sum by the server, which is trusted to do so; it sees no more than the sum "
            "under secure aggregation, and each update without it",
            "what a site does outside this run",
        ]
    lines = [
        f"how many {unit}s a site trains on: it is in the size of its steps",
        f"a person who is at several sites: what they spend adds up{' over all rows' * (unit == 'record')}",
        "other uses of the same rows, outside this ledger",
        "test and validation rows, which train nothing and of which no metric leaves; which these are is fixed",
        "what prepares rows by the site's own values before training, such as means and deviations",
    ]
    if repeats:
        lines.insert(0, "a person with several rows, who is protected less than one row is (acknowledge_repeats)")
    return lines


def _said(event: Event) -> str:
    sums = "sum" if event.count == 1 else "sums"
    over = "all units" if event.sample_rate == 1 else f"a draw of {event.sample_rate:.4g} of the units"
    return f"{event.count:,} {sums} over {over}, noise multiplier {event.noise_multiplier:.4g}"


def _or_none(mechanism: DpSgd | None) -> Mapping[str, Any] | None:
    return None if mechanism is None else asdict(mechanism)
