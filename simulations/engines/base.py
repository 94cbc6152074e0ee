"""What an engine is: the simulated sites as a cohort, and who works on them."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from hansa.records import Aggregate, Plan
from server.cohort import Collector, Rule
from simulations.engines.setting import Setting, Sites
from simulations.engines.siteloop import Report


class Engine:
    """A cohort of simulated sites; use it as a context.

    An engine gives the bits of the plain loop, or differs by the rounding of floats alone. Nothing in a result may
    depend on the number of workers: what they sum up is whole numbers, and every draw is seeded by round and site.

    Args:
        setting: what is simulated.
        sites: of this process.
        workers: how many work at once.
        report: gets each site's own answer, without its vectors unless the engine is the loop.
    """

    def __init__(
        self, setting: Setting, sites: Sites, workers: int = 1, report: Report = lambda plan, reply: None
    ) -> None:
        self.setting, self.halves, self.workers, self.report = setting, sites, workers, report
        self._asked: tuple[Plan, Sequence[str]] | None = None

    @classmethod
    def refuses(cls, setting: Setting) -> str | None:
        """Why the engine cannot compute this, in words that end a sentence; None: it can."""
        return None

    @property
    def sites(self) -> Sequence[str]:
        """All sites."""
        return list(self.halves)

    def ask(self, plan: Plan, sites: Sequence[str]) -> None:
        """Notes the plan; the sites work when their answers are collected."""
        self._asked = plan, sites

    def collect(self, rule: Rule) -> Aggregate:
        """Lets the sites work and adds up what they answer."""
        assert self._asked is not None
        return self.total(*self._asked).aggregate(rule)

    def total(self, plan: Plan, asked: Sequence[str]) -> Collector:
        """The sum of what the sites asked answer to a plan."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends what the engine has started."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
