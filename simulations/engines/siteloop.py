"""The plain loop over some of a round's sites: what every engine's worker does, or is held against."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from clients.private import released
from hansa.records import Plan, Refusal, Reply
from hansa.seeds import numpy_generator
from server.cohort import Collector
from simulations.engines.setting import Setting, Sites

Report = Callable[[Plan, Reply], None]  # gets each site's own answer, as a site keeps it for its own report


class SiteLoop:
    """One site after another, on one bench.

    Args:
        setting: what is simulated.
        sites: of this process.
        report: gets each site's own answer.
    """

    def __init__(self, setting: Setting, sites: Sites, report: Report = lambda plan, reply: None) -> None:
        self.setting, self.sites, self.report = setting, sites, report

    def work(self, plan: Plan, asked: Sequence[str], mine: Sequence[str]) -> Collector:
        """Lets each of some sites work, and adds its answer up at once: one update is in memory at a time.

        Args:
            plan: of the round.
            asked: all sites that got it.
            mine: those that work here.
        """
        collector = self.setting.collector(plan, asked, self.sites.bench.shared)
        for answer in self.answers(plan, asked, mine):
            if isinstance(answer, Reply):
                self.report(plan, answer)
                answer = released(plan, answer)
            self._keep(plan, answer)
            collector.add(answer)
        return collector

    def answers(self, plan: Plan, asked: Sequence[str], mine: Sequence[str]) -> Iterator[Reply | Refusal]:
        """The sites' answers as they come."""
        slow = self._slow(plan, asked)
        for site in mine:
            yield self._answer(site, plan, slow.get(site))

    def _keep(self, plan: Plan, answer: Reply | Refusal) -> None:
        """A site that staged nothing starts from what it had, by the name from which all others start."""
        secure, late = self.setting.secure, isinstance(answer, Refusal) and answer.late
        if secure is None or not secure.remembers or plan.kind != "train" or late:
            return
        if isinstance(answer, Refusal) or answer.memory is None:
            memory, base = self.sites[answer.site].memory, plan.memory.get(answer.site)
            memory.stage(plan.version, memory.load(base), base)

    def _answer(self, site: str, plan: Plan, part_of: int | None) -> Reply | Refusal:
        own = self._own_plan(site, plan, part_of)
        return own if isinstance(own, Refusal) else self.sites[site].handle(own)

    def _own_plan(self, site: str, plan: Plan, part_of: int | None) -> Plan | Refusal:
        """The plan as a site gets through it, which is in part for a straggler."""
        if part_of is None:
            return plan
        if self.setting.stragglers is not None and not self.setting.stragglers.keep:
            return Refusal(site, "too slow (a simulated straggler)", late=True)
        unit = "steps" if "steps" in plan.hyper else "epochs"
        return replace(plan, hyper={**plan.hyper, unit: part_of})

    def _slow(self, plan: Plan, asked: Sequence[str]) -> dict[str, int]:
        """The stragglers of a round, and how many of their epochs (or steps) they get through, at least one."""
        stragglers = self.setting.stragglers
        if stragglers is None or plan.kind != "train":
            return {}
        work = int(plan.hyper["steps"] if "steps" in plan.hyper else plan.hyper["epochs"])
        random = numpy_generator(plan.seed, plan.round, "stragglers")
        chosen = random.permutation(sorted(asked))[: round(stragglers.fraction * len(asked))]
        return {str(site): int(random.integers(1, max(2, work))) for site in chosen}
