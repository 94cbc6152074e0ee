"""The plain loop: one site after another, in one process."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from clients.private import released
from clients.site import SiteHalf
from hansa.layout import Layout
from hansa.records import Aggregate, Part, Plan, Refusal, Reply
from hansa.seeds import numpy_generator
from privacy.secure import Secure
from server.cohort import Collector, Rule
from simulations.config import Stragglers
from simulations.securesum import SecureCollector


class LoopEngine:
    """A cohort of simulated sites.

    Args:
        halves: the sites, by name.
        parts: what the strategy uploads.
        layout: of the shared model.
        stragglers: sites that get through a part of their work only.
        report: gets each site's own answer, as a site keeps it for its own report.
        secure: how updates are summed; None: without secure aggregation.
    """

    def __init__(
        self,
        halves: Mapping[str, SiteHalf],
        parts: Mapping[str, Part],
        layout: Layout,
        stragglers: Stragglers | None = None,
        report: Callable[[Plan, Reply], None] = lambda plan, reply: None,
        secure: Secure | None = None,
    ) -> None:
        self.halves, self.parts, self.layout, self.stragglers, self.report = halves, parts, layout, stragglers, report
        self.secure = secure
        self._asked: tuple[Plan, Sequence[str]] | None = None

    @property
    def sites(self) -> Sequence[str]:
        """All sites."""
        return list(self.halves)

    def ask(self, plan: Plan, sites: Sequence[str]) -> None:
        """Notes the plan; the sites work when their answers are collected."""
        self._asked = plan, sites

    def collect(self, rule: Rule) -> Aggregate:
        """Lets each site work, and adds its answer up at once: one update is in memory at a time."""
        assert self._asked is not None
        plan, sites = self._asked
        collector = self._collector(plan, sites)
        for answer in self.answers(plan, sites):
            if isinstance(answer, Reply):
                self.report(plan, answer)
                answer = released(plan, answer)
            self._keep(plan, answer)
            collector.add(answer)
        return collector.aggregate(rule)

    def _keep(self, plan: Plan, answer: Reply | Refusal) -> None:
        """A site that staged nothing starts from what it had, by the name from which all others start."""
        late = isinstance(answer, Refusal) and answer.late
        if self.secure is None or not self.secure.remembers or plan.kind != "train" or late:
            return
        if isinstance(answer, Refusal) or answer.memory is None:
            memory, base = self.halves[answer.site].memory, plan.memory.get(answer.site)
            memory.stage(plan.version, memory.load(base), base)

    def _collector(self, plan: Plan, sites: Sequence[str]) -> Collector:
        if self.secure is None:
            return Collector(plan, sites, self.parts, self.layout, len(self.halves))
        return SecureCollector(plan, sites, self.secure, self.layout, len(self.halves))

    def answers(self, plan: Plan, sites: Sequence[str]) -> Iterator[Reply | Refusal]:
        """The sites' answers as they come."""
        slow = self._slow(plan, sites)
        for site in sites:
            yield self._answer(site, plan, slow.get(site))

    def _answer(self, site: str, plan: Plan, part_of: int | None) -> Reply | Refusal:
        if part_of is None:
            return self.halves[site].handle(plan)
        if self.stragglers is not None and not self.stragglers.keep:
            return Refusal(site, "too slow (a simulated straggler)", late=True)
        unit = "steps" if "steps" in plan.hyper else "epochs"
        return self.halves[site].handle(replace(plan, hyper={**plan.hyper, unit: part_of}))

    def _slow(self, plan: Plan, sites: Sequence[str]) -> dict[str, int]:
        """The stragglers of a round, and how many of their epochs (or steps) they get through, at least one."""
        if self.stragglers is None or plan.kind != "train":
            return {}
        work = int(plan.hyper["steps"] if "steps" in plan.hyper else plan.hyper["epochs"])
        random = numpy_generator(plan.seed, plan.round, "stragglers")
        chosen = random.permutation(sorted(sites))[: round(self.stragglers.fraction * len(sites))]
        return {str(site): int(random.integers(1, max(2, work))) for site in chosen}
