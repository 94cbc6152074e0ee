"""The sites of a round, as `run_round` sees them, and the sum that each kind of cohort fills."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt
import torch
from torch import Tensor

from hansa.layout import Layout
from hansa.metrics import is_sums
from hansa.records import Aggregate, Part, Plan, Refusal, Reply
from hansa.seeds import numpy_generator
from privacy.fixed_point import FixedPointSum, Overflow, from_fixed, to_fixed
from server.firewall import refusal


@dataclass(frozen=True)
class Rule:
    """When a round counts."""

    quorum: int  # sites


class InOrder(list[str]):
    """Names in alphabetical order, which need not be put into it again."""

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(sorted(names))


class Cohort(Protocol):
    """Sites that may be asked: an engine in simulation, connections in deployment."""

    @property
    def sites(self) -> Sequence[str]:
        """All sites of the federation."""
        ...

    def ask(self, plan: Plan, sites: Sequence[str]) -> None:
        """Gives the plan to some sites."""
        ...

    def collect(self, rule: Rule) -> Aggregate:
        """Waits for the answers and adds them up."""
        ...


def draw(sites: Iterable[str], number: int, seed: int, round: int) -> list[str]:
    """The sites asked in a round: drawn without replacement, by the run's seed, whatever the order they come in."""
    known = sites if isinstance(sites, InOrder) else sorted(sites)
    if number >= len(known):
        return known
    chosen = numpy_generator(seed, round, "cohort").choice(len(known), number, replace=False)
    return [known[i] for i in sorted(chosen)]


class Collector:
    """Adds up the answers to one plan as they arrive; the order of arrival changes nothing.

    Args:
        plan: that was asked.
        asked: the sites that got it.
        parts: the vectors of a train plan's uploads, as the strategy declares them.
        layout: of the shared model.
        federation: the number of all sites.
    """

    def __init__(
        self, plan: Plan, asked: Sequence[str], parts: Mapping[str, Part], layout: Layout, federation: int
    ) -> None:
        self.plan, self.asked, self.layout, self.federation = plan, tuple(asked), layout, federation
        self.parts = parts if plan.kind == "train" else {}
        self.totals = {n: FixedPointSum(p.size, p.weight, len(self.asked)) for n, p in self.parts.items()}
        self.counters: Tensor | None = None
        self.examples: dict[str, int] = {}  # of the sites that took part
        self.memory: dict[str, str] = {}
        self.dropped: dict[str, str] = {}
        self.metrics: dict[str, dict[str, Tensor]] = {}  # name -> site -> sums in fixed point
        self.warnings: list[str] = []

    def add(self, answer: Reply | Refusal) -> None:
        """One site's answer, checked and added, or its reason for taking no part."""
        reason = answer.reason if isinstance(answer, Refusal) else self._add(answer)
        if reason is not None:
            self.dropped[answer.site] = reason

    def _add(self, reply: Reply) -> str | None:
        if reply.site in self.examples:
            return "answered twice"
        if self.plan.kind == "train":
            if reason := refusal(reply, self.parts, self.layout):
                return reason
            if not reply.examples:
                return "no training rows"
        try:
            self._add_vectors(reply)
        except Overflow as error:
            return str(error)
        self.examples[reply.site] = reply.examples
        if reply.memory is not None:
            self.memory[reply.site] = reply.memory
        self._add_metrics(reply)
        return None

    def _add_vectors(self, reply: Reply) -> None:
        weights = {n: reply.examples if part.weight == "examples" else 1 for n, part in self.parts.items()}
        for name, total in self.totals.items():
            total.check(reply.upload[name], weights[name])
        for name, total in self.totals.items():
            total.add(reply.upload[name], weights[name])
        if reply.counters is not None:
            mine = self.counters
            self.counters = reply.counters.clone() if mine is None else torch.maximum(mine, reply.counters)

    def _add_metrics(self, reply: Reply) -> None:
        for name, sums in reply.sums.items():
            if not is_sums(sums.shape):
                self.warnings.append(f"{reply.site}: metric {name!r} is of shape {list(sums.shape)}; left out")
                continue
            try:
                self.metrics.setdefault(name, {})[reply.site] = to_fixed(sums, len(self.asked))
            except Overflow as error:
                self.warnings.append(f"{reply.site}: metric {name!r} is {error}; left out")

    @property
    def vectors(self) -> dict[str, npt.NDArray[Any]]:
        """The running sums: whole numbers, so that those of other sites may be added to them in any order."""
        return {name: total.total.numpy() for name, total in self.totals.items()}

    def aggregate(self, rule: Rule) -> Aggregate:
        """Means and sums over the sites that took part; a round that does not count says why."""
        sites = tuple(sorted(self.examples))
        weight, void = sum(self.examples.values()), None
        if len(sites) < rule.quorum:
            void = f"{len(sites)} of {len(self.asked)} sites took part; the quorum is {rule.quorum}"
        weights = {n: weight if part.weight == "examples" else len(sites) for n, part in self.parts.items()}
        mean = {} if void else {n: total.mean(weights[n]) for n, total in self.totals.items()}
        return Aggregate(
            mean=mean,
            counters=self.counters,
            sums=self._metric_sums(sites),
            examples=weight,
            share=len(sites) / self.federation,
            sites=sites,
            dropped=self.left_out,
            memory=self.memory,
            warnings=tuple(sorted(self.warnings)),
            void=void,
        )

    @property
    def left_out(self) -> dict[str, str]:
        """The sites that took no part, and why."""
        why = {site: self.dropped.get(site, "no answer") for site in sorted({*self.asked, *self.dropped})}
        return {site: reason for site, reason in why.items() if site not in self.examples}

    def _metric_sums(self, sites: tuple[str, ...]) -> dict[str, Tensor]:
        return {name: from_fixed(total) for name, total in self.metric_totals(sites).items()}

    def metric_totals(self, sites: tuple[str, ...]) -> dict[str, Tensor]:
        """Metric sums over the sites in fixed point; what does not add up is left out, with a warning."""
        totals = {}
        for name, by_site in sorted(self.metrics.items()):
            shapes = {tuple(one.shape) for one in by_site.values()}
            if len(shapes) > 1:
                self.warnings.append(f"metric {name!r} has shapes {sorted(shapes)} at different sites; left out")
            elif by_site:
                totals[name] = torch.stack(list(by_site.values())).sum(0)
                if missing := sorted(set(sites) - set(by_site)):
                    self.warnings.append(f"metric {name!r} is missing from {', '.join(missing)}")
        return totals
