"""A round's sites in chunks, each trained at once; what cannot be, by the plain loop."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from hansa.records import LocalRun, Plan, Refusal, Reply
from hansa.seeds import seeded
from hansa.task import Task
from privacy.dp.terms import terms_in
from server.cohort import Collector
from simulations.cohort.chain import Chain
from simulations.cohort.fit import Fit
from simulations.cohort.probe import load, probe
from simulations.cohort.stack import drawless
from simulations.cohort.unfit import Unfit
from simulations.cohort.work import Work, dealt
from simulations.engines.setting import Setting, Sites
from simulations.engines.siteloop import Report, SiteLoop

CACHE = 1 << 20  # bytes of parameters of a chunk of chains: what stays near the core
MEMORY = 1 << 28  # bytes of a chunk of other models
COPIES = 6  # of the parameters, about, that a site needs: gradients, an optimiser's state, what the layers keep
MOST = 64  # sites of a chunk: with more, no call gets cheaper


class CohortLoop(SiteLoop):
    """Answers as SiteLoop does.

    Args:
        setting: what is simulated.
        sites: of this process.
        report: gets each site's own answer.
        threads: chunks of chains that are trained at once; other models hold the interpreter.
    """

    def __init__(self, setting: Setting, sites: Sites, report: Report, threads: int) -> None:
        super().__init__(setting, sites, report)
        self._fit = Fit(setting.task, setting.strategy, sites.bench, Chain.of(setting.task, sites.bench.model))
        self._threads = threads
        self._tried = False
        self._unfit: str | None = None  # why nothing can be stacked
        self.left: str | None = None  # why something was left to the plain loop, at first
        self._told: set[str] = set()
        self._news: list[str] = []

    def work(self, plan: Plan, asked: Sequence[str], mine: Sequence[str]) -> Collector:
        """See SiteLoop; the first time that something is left to the plain loop, the round has a warning."""
        collector = super().work(plan, asked, mine)
        collector.warnings += self._news
        self._news = []
        return collector

    def answers(self, plan: Plan, asked: Sequence[str], mine: Sequence[str]) -> Iterator[Reply | Refusal]:
        """See SiteLoop."""
        if plan.kind != "train" or self._left(plan):
            yield from super().answers(plan, asked, mine)
            return
        works: list[Work] = []
        slow = self._slow(plan, asked)
        for site in mine:
            one = self._begun(site, plan, slow.get(site))
            if isinstance(one, Work):
                works.append(one)
            else:
                yield one
        chunks = dealt(works, self._most(), self._kind)
        if chunks and self._try(chunks[0]):
            yield from self._trained(chunks)
        else:
            yield from super().answers(plan, asked, [work.half.site.name for work in works])

    def _trained(self, chunks: Sequence[Sequence[Work]]) -> Iterator[Reply | Refusal]:
        load(self._fit, chunks[0][0].plan)
        free = self._fit.chain is not None and all(drawless(self.setting.task, chunk) for chunk in chunks)
        if free and self._threads > 1:
            with ThreadPoolExecutor(self._threads) as pool:
                for chunk, runs in zip(chunks, pool.map(self._runs, chunks), strict=True):
                    yield from self._answers(chunk, runs)
            return
        for chunk in chunks:
            yield from self._answers(chunk, self._runs(chunk))

    def _runs(self, chunk: Sequence[Work]) -> "list[LocalRun] | Unfit":
        first = chunk[0]
        try:
            if self._fit.chain is not None and drawless(self.setting.task, chunk):
                return self._fit.runs(chunk)
            with seeded(first.plan.seed, first.plan.round, first.half.site.name, "stack"):
                return self._fit.runs(chunk)
        except Unfit as reason:
            return reason

    def _answers(self, chunk: Sequence[Work], runs: "list[LocalRun] | Unfit") -> Iterator[Reply | Refusal]:
        if isinstance(runs, Unfit):
            self._tell(f"{len(chunk)} sites", str(runs))
            yield from (
                work.half.answer(work.plan, work.begun, *work.half.fit(work.plan, work.begun)) for work in chunk
            )
            load(self._fit, chunk[0].plan)
            return
        for work, run in zip(chunk, runs, strict=True):
            yield work.half.answer(work.plan, work.begun, run, work.begun.memory)

    def _begun(self, site: str, plan: Plan, part_of: int | None) -> Work | Refusal:
        own = self._own_plan(site, plan, part_of)
        if isinstance(own, Refusal):
            return own
        half = self.sites[site]
        begun = half.begin(own, half.memory.load(own.memory.get(site)))
        return begun if isinstance(begun, Refusal) else Work(half, own, begun)

    def _kind(self, work: Work) -> object:
        """Sites go into one chunk whose memories have the same names, and whose schedules are the same."""
        scheduled = type(self.setting.task).scheduler is not Task.scheduler
        return frozenset(work.begun.memory), work.steps if scheduled else 0

    def _most(self) -> int:
        """Sites of a chunk."""
        bytes_ = 4 * self.sites.bench.shared.size
        room = CACHE // bytes_ if self._fit.chain is not None else MEMORY // (COPIES * bytes_)
        return min(MOST, max(4 if self._fit.chain is not None else 1, room))

    def _left(self, plan: Plan) -> bool:
        """Whether all of a plan is the plain loop's."""
        if (terms := terms_in(plan.hyper)) is not None and terms.unit != "site":
            self._tell("all sites", "DP-SGD is not stacked")
            return True
        if plan.hyper["precision"] != "float32":
            self._tell("all sites", f'precision "{plan.hyper["precision"]}" is not stacked')
            return True
        return self._unfit is not None

    def _try(self, works: Sequence[Work]) -> bool:
        if not self._tried:
            self._tried = True
            try:
                load(self._fit, works[0].plan)
                probe(self._fit, works)
            except Unfit as reason:
                self._unfit = str(reason)
                self._tell("all sites", self._unfit)
        return self._unfit is None

    def _tell(self, whom: str, reason: str) -> None:
        self.left = self.left or reason
        if reason not in self._told:
            self._told.add(reason)
            self._news.append(f'engine "batched" leaves {whom} to the plain loop: {reason}')
