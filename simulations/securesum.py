"""A round's answers, summed as under secure aggregation: the same whole numbers, without the masks that cancel."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hansa.layout import Layout
from hansa.records import Aggregate, Part, Plan, Refusal, Reply
from hansa.seeds import coins
from privacy.dp.terms import public_weight
from privacy.fixed_point import Overflow
from privacy.secagg.keystream import Keystream
from privacy.secagg.packing import word
from privacy.secagg.quantise import NotSummable, Update, nothing, quantise
from privacy.secagg.terms import LEAST_SITES, Scalars
from privacy.secagg.total import Total
from privacy.secure import COUNTERS, Secure
from server.cohort import Collector, Rule
from server.securesum import aggregate_of, of_few, too_few, unopened

STREAM = Keystream()


class SecureCollector(Collector):
    """Rounds each update at its site's place, by coins of the run's seed, and adds in the ring.

    Args:
        plan: that was asked.
        asked: the sites that got it.
        secure: how they are summed.
        layout: of the shared model.
        federation: the number of all sites.
    """

    def __init__(self, plan: Plan, asked: Sequence[str], secure: Secure, layout: Layout, federation: int) -> None:
        super().__init__(plan, asked, {}, layout, federation)
        self.parts: Mapping[str, Part] = secure.parts if plan.kind == "train" else {}
        self.secure, self.terms = secure, secure.terms(plan, asked, ())
        self.words = np.zeros(self.terms.size, word(self.terms.bits))
        size = max(place.stop for place in self.terms.scalar_places.values())
        self.scalars = np.zeros(size, np.uint64)

    def add(self, answer: Reply | Refusal) -> None:
        """One site's answer; one that has nothing to give adds zeros, as it does deployed."""
        if isinstance(answer, Refusal) and answer.late:
            return super().add(answer)
        alike = len(self.terms.alike(answer.site))
        if isinstance(answer, Refusal) or alike < min(LEAST_SITES, len(self.asked)) or self._add(answer) is not None:
            self._sum(nothing(self.terms, public_weight(self.plan.hyper, answer.site)))
            self.examples[answer.site] = 0

    def _add_vectors(self, reply: Reply) -> None:
        vectors = {name: reply.upload[name].numpy() for name in self.parts}
        counters = {} if reply.counters is None else {COUNTERS: reply.counters.numpy()}
        one = coins(self.plan.seed, self.plan.round, reply.site)
        try:
            update = quantise(self.terms, vectors, reply.examples, counters, one, STREAM)
        except NotSummable as error:
            raise Overflow(str(error)) from error
        self._sum(update)

    def _sum(self, update: Update) -> None:
        self.words += update.words
        self.scalars += update.scalars

    @property
    def vectors(self) -> dict[str, npt.NDArray[Any]]:
        """The running sums, in the ring."""
        return {"words": self.words, "scalars": self.scalars}

    def aggregate(self, rule: Rule) -> Aggregate:
        """Means and sums over the sites that took part, from the whole numbers; nothing, if they are too few."""
        sites, least = tuple(sorted(self.examples)), max(rule.quorum, self.terms.threshold)
        if len(sites) < least:
            return unopened(self.plan, too_few(len(sites), len(self.asked), least), self.left_out, self.warnings)
        for name, there in [(name, len(by_site)) for name, by_site in self.metrics.items()]:
            if there < self.terms.threshold:
                del self.metrics[name]
                self.warnings.append(of_few(name, there, self.terms.threshold))
        metrics = self.metric_totals(sites)
        terms = self.secure.terms(self.plan, self.asked, [Scalars(name, one.numel()) for name, one in metrics.items()])
        sums = [one.flatten().numpy().view(np.uint64) for one in metrics.values()]
        total = Total(terms, sites, self.words, np.concatenate([self.scalars, *sums]))
        shapes = {name: tuple(one.shape) for name, one in metrics.items()}
        dropped = self.left_out
        said = aggregate_of(total, self.plan, self.secure, shapes, self.federation, dropped, self.warnings, least)
        # If none has such rows, there is nothing to tell.
        return replace(said, warnings=()) if self.plan.kind == "evaluate" and not total.present else said
