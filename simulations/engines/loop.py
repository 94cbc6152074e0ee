"""The plain loop: one site after another, in one process."""

from collections.abc import Sequence

from hansa.records import Plan
from server.cohort import Collector
from simulations.engines.base import Engine
from simulations.engines.setting import Setting
from simulations.engines.siteloop import SiteLoop


class LoopEngine(Engine):
    """The reference: what any other engine gives is held against it."""

    @classmethod
    def suits(cls, setting: Setting) -> bool:
        """It is what the others are tried against."""
        return False

    def total(self, plan: Plan, asked: Sequence[str], present: Sequence[str]) -> Collector:
        """See Engine."""
        return SiteLoop(self.setting, self.halves, self.report).work(plan, asked, present)
