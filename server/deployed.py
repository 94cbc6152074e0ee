"""The deployed sites of a run as a cohort: plans go out over their sessions, answers are added as they come."""

import queue
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import assert_never

from hansa.codec import from_refused, from_result, locate, plan_vectors, to_plan, upload_numbers
from hansa.errors import UserError
from hansa.layout import Layout
from hansa.records import Aggregate, Part, Plan, Refusal, Reply
from hansa.wire.link_pb2 import Committed, Result, ServerFrame
from hansa.wire.link_pb2 import Plan as PlanFrame
from server.arrivals import Answered, Arrival, Declined, Joined, Left, Said, Spoiled
from server.cohort import Collector, Rule
from server.events import Event, RoundCommitted
from server.link import Links

LOOK = 0.2  # seconds between two looks at who waits for machines
REJOIN = 10.0  # seconds that a round waits for a site that is gone, where the quorum is met without it


class LinkedCohort:
    """Sites over the link.

    A round ends when every site asked has answered; when those that have not are gone for `rejoin` seconds and the
    quorum is met; or at the deadline. For a site that waits for its own machines, the time until it has them does not
    count: no plan goes out meanwhile, and the deadline of one that is out begins anew.

    Args:
        links: the sessions.
        sites: all sites of the federation.
        parts: what the strategy uploads.
        layout: of the shared model.
        deadline: seconds from the plan to the end of the round.
        rejoin: seconds.
        say: gets a line about a site that left or came, or waits.
        machines: seconds that a round waits for a site that waits for its own machines.
    """

    def __init__(
        self,
        links: Links,
        sites: Sequence[str],
        parts: Mapping[str, Part],
        layout: Layout,
        deadline: float,
        rejoin: float = REJOIN,
        say: Callable[[str], None] = print,
        machines: float = 0.0,
    ) -> None:
        self.links, self._sites, self.parts, self.layout = links, tuple(sites), parts, layout
        self.deadline, self.rejoin, self.say, self.machines = deadline, rejoin, say, machines
        self.told_waiting: dict[str, str] = {}  # site -> what was said of its wait
        # Site -> since when. Through all rounds: for one that stays away no further round waits.
        self.gone = dict.fromkeys(self._sites, time.monotonic())

    @property
    def sites(self) -> Sequence[str]:
        """All sites of the federation."""
        return self._sites

    def ask(self, plan: Plan, sites: Sequence[str]) -> None:
        """Gives the plan to the sites that are here; the others get it when they come."""
        while self._unready(sites):
            time.sleep(LOOK)
        self.plan, self.id = plan, f"{plan.round}-{plan.kind}-{plan.split}"
        self.ends = time.monotonic() + self.deadline
        self.waiting = dict.fromkeys(sites, "not connected")  # -> why it has not answered
        self._open(PlanFrame(vectors=self.links.offer(self.id, plan_vectors(plan.broadcast))))

    def _unready(self, sites: Collection[str]) -> bool:
        """Whether to go on waiting, since some of these sites wait for their own machines; says so where it is news."""
        waits = {site: wait for site, wait in self.links.waiting().items() if site in sites}
        for site, wait in waits.items():
            if self.told_waiting.get(site) != wait.line:
                self.say(f"{site} {wait.line}")
        self.told_waiting = {site: wait.line for site, wait in waits.items()}
        return any(time.monotonic() - wait.since < self.machines for wait in waits.values())

    def _put_off(self, sites: Collection[str]) -> bool:
        """Puts the end of the round off, as long as some of these sites wait for their own machines."""
        unready = self._unready(sites)
        if unready:
            self.ends = max(self.ends, time.monotonic() + self.deadline)
        return unready

    def _open(self, common: PlanFrame) -> None:
        """Gets ready for answers, and asks; `common` is what the plan says to all sites alike."""
        self.common = ServerFrame(plan=common).SerializeToString()  # once for all sites
        self.links.expect(self.id, *upload_numbers(self.plan, self.parts, self.layout.n_counters))
        self.collector = Collector(self.plan, list(self.waiting), self.parts, self.layout, len(self._sites))
        self._send_all(list(self.waiting))

    def _send_all(self, sites: Sequence[str]) -> None:
        here = self.links.present()
        for site in sites:
            if not (site in here and self._send(site)):
                self.gone.setdefault(site, time.monotonic())

    def collect(self, rule: Rule) -> Aggregate:
        """Waits for the answers and adds them up."""
        while self.waiting and (left := self._patience(rule)) > 0:
            try:
                self._take(self.links.events.get(timeout=min(left, 1.0)))
            except queue.Empty:
                continue
        for site, why in self.waiting.items():
            self.collector.add(Refusal(site, why))
        self.links.retire(self.id)
        collector = self.collector
        del self.collector  # its sums are twice as large as the model
        return collector.aggregate(rule)

    def hear(self, event: Event) -> None:
        """Listens to the run: the sites learn which rounds are committed."""
        if isinstance(event, RoundCommitted):
            for site in self.links.present():
                self.links.send(site, ServerFrame(committed=Committed(round=event.round)))

    def _patience(self, rule: Rule) -> float:
        """Seconds for which the round goes on waiting, if nothing comes."""
        self._put_off(self.waiting)
        now = time.monotonic()
        left = self.ends - now
        if len(self.collector.examples) >= rule.quorum and all(site in self.gone for site in self.waiting):
            left = min(left, max(self.gone[site] for site in self.waiting) + self.rejoin - now)
        return left

    def _take(self, arrival: Arrival) -> None:
        match arrival:
            case Joined(site=site):
                self._joined(arrival)
                if site in self.waiting:
                    self._send(site)
            case Left(site=site, why=why):
                self._left(arrival)
                if site in self.waiting:
                    self.waiting[site] = f"left: {why}"
            case Answered(site=site, result=result, upload=upload) if self._awaits(site, result.plan):
                self._settle(self._reply(site, result, upload))
            case Declined(site=site, refused=refused) if self._awaits(site, refused.plan):
                self._settle(from_refused(refused, site))
            case Spoiled(site=site, plan=plan) if self._awaits(site, plan):
                self._settle(Refusal(site, self._problem(arrival)))
            case Answered() | Declined() | Spoiled() | Said():
                pass  # to a plan that is over
            case _:
                assert_never(arrival)

    def _joined(self, one: Joined) -> None:
        if self.gone.pop(one.site, None) is not None:
            self.say(f"{one.site} is here")

    def _left(self, one: Left) -> None:
        self.gone[one.site] = time.monotonic()
        self.say(f"{one.site} left: {one.why}")

    def _awaits(self, site: str, plan: str) -> bool:
        return plan == self.id and site in self.waiting

    def _settle(self, answer: Reply | Refusal) -> None:
        del self.waiting[answer.site]
        self.collector.add(answer)

    def _send(self, site: str) -> bool:
        self.waiting[site] = f"no answer within {self.deadline:g} s"
        frame = to_plan(self.plan, self.id, site, max(0.0, self.ends - time.monotonic()))
        return self.links.send(site, ServerFrame(plan=frame), self.common)

    def _problem(self, spoiled: Spoiled) -> str:
        """With the name of the element at fault, where there is one."""
        if spoiled.index is None:
            return spoiled.problem
        name, index = locate(spoiled.index, self.parts)
        return f"part {name!r} has {spoiled.value} at {self.layout.locate(index)}"

    def _reply(self, site: str, result: Result, upload: Path | bytes | None) -> Reply | Refusal:
        try:
            return from_result(result, site, upload, self.parts, self.layout.n_counters)
        except UserError as error:
            return Refusal(site, str(error))
