"""What an engine is: the simulated sites as a cohort, and who works on them."""

from collections.abc import Callable, Sequence
from functools import cached_property
from types import TracebackType
from typing import Self

from torch.linalg import vector_norm

from hansa.records import Aggregate, Plan, Refusal
from server.cohort import Collector, InOrder, Rule
from simulations.engines.setting import Setting, Sites
from simulations.engines.siteloop import Report
from simulations.pace import Clock

NEAR = 1e-4  # relative difference of a mean from the plain loop's: float32 in another order


class Engine:
    """A cohort of simulated sites; use it as a context.

    An engine gives the bits of the plain loop, or differs by the rounding of floats alone. Nothing in a result may
    depend on the number of workers: what they sum up is whole numbers, and every draw is seeded by round and site.

    Args:
        setting: what is simulated.
        sites: of this process.
        workers: how many work at once.
        report: gets each site's own answer, without its vectors unless the engine is the loop.
        clock: of virtual time, if the sites differ in it.
        ticked: gets the virtual seconds that a round of training took.
    """

    def __init__(
        self,
        setting: Setting,
        sites: Sites,
        workers: int = 1,
        report: Report = lambda plan, reply: None,
        clock: Clock | None = None,
        ticked: Callable[[Plan, float], None] = lambda plan, seconds: None,
    ) -> None:
        self.setting, self.halves, self.workers, self.report = setting, sites, workers, report
        self.clock, self.ticked = clock, ticked
        self._asked: tuple[Plan, Sequence[str]] | None = None

    @classmethod
    def suits(cls, setting: Setting) -> bool:
        """Whether `engine = "auto"` tries it."""
        return True

    @classmethod
    def refuses(cls, setting: Setting) -> str | None:
        """Why the engine cannot compute this, in words that end a sentence; None: it can."""
        return None

    @classmethod
    def differs(cls, mine: Aggregate, loop: Aggregate) -> str | None:
        """How the engine's sum of a few sites is not the plain loop's, in words; None: it is, up to rounding."""
        if mine.sites != loop.sites:
            return "other sites took part than in the loop"
        for name, wanted in loop.mean.items():
            far = float(vector_norm(mine.mean[name] - wanted) / vector_norm(wanted).clamp_min(1e-30))
            if not far <= NEAR:
                return f"the mean of {name} differs by {far:.1e} of it from the loop's"
        return None

    @cached_property
    def sites(self) -> InOrder:
        """All sites."""
        return InOrder(self.halves)

    def ask(self, plan: Plan, sites: Sequence[str]) -> None:
        """Notes the plan; the sites work when their answers are collected."""
        self._asked = plan, sites

    def collect(self, rule: Rule) -> Aggregate:
        """Lets the sites work that are there, and adds up what they answer."""
        assert self._asked is not None
        plan, asked = self._asked
        if self.clock is None or plan.kind != "train":
            return self.total(plan, asked, asked).aggregate(rule)
        absent, seconds = self.clock.round(plan, asked)
        total = self.total(plan, asked, [site for site in asked if site not in absent])
        for site, reason in absent.items():
            total.add(Refusal(site, reason, late=True))
        self.ticked(plan, seconds)
        return total.aggregate(rule)

    @property
    def left(self) -> str | None:
        """Why it has left training to the plain loop; None: it has not."""
        return None

    def total(self, plan: Plan, asked: Sequence[str], present: Sequence[str]) -> Collector:
        """The sum of what sites answer to a plan.

        Args:
            plan: of the round.
            asked: all sites that got it.
            present: those of them that are to work.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Ends what the engine has started."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
