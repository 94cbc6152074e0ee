"""Many sites at once: their parameters stacked, a step of all of them one call."""

from collections.abc import Sequence
from typing import Any

from hansa.records import Plan
from server.cohort import Collector
from simulations.cohort.loop import CohortLoop
from simulations.engines.base import Engine
from simulations.engines.setting import Setting
from strategies.base import Strategy


class BatchedEngine(Engine):
    """The plain loop's results up to rounding; what cannot be stacked goes to the plain loop, and the run says why."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._loop = CohortLoop(self.setting, self.halves, self.report, self.workers)

    @classmethod
    def refuses(cls, setting: Setting) -> str | None:
        """What is another's work in each site: batches of the task's own, a local update of the strategy's."""
        strategy, name = type(setting.strategy), type(setting.strategy).__name__
        if setting.streams:
            return f'task {type(setting.task).__name__} has batches of its own, one stream a site; take "loop"'
        if strategy.local_update is not Strategy.local_update:
            return f'strategy {name} trains in a way of its own (local_update), site by site; take "loop"'
        if setting.strategy.local:
            return 'layers that a site keeps to itself ([strategy] local) are not stacked; take "loop" or "processes"'
        return None

    @property
    def left(self) -> str | None:
        """See Engine."""
        return self._loop.left

    def total(self, plan: Plan, asked: Sequence[str], present: Sequence[str]) -> Collector:
        """See Engine."""
        return self._loop.work(plan, asked, present)
