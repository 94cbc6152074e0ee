"""Worker processes: each computes a share of the sites, by the plain loop."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from hansa.records import Plan
from server.cohort import Collector
from simulations.engines.base import Engine
from simulations.engines.crew import Crew, Start, Workers, way_to_start
from simulations.engines.member import Order
from simulations.engines.partial import merge, replies
from simulations.engines.setting import Setting
from simulations.engines.shares import shares

SLACK = 1 << 20  # bytes for what lies beside a sum's vectors: metric sums


class ProcessesEngine(Engine):
    """The same bits as the plain loop's, whatever the number of workers."""

    start: ClassVar[Start | None] = None  # how workers are started; None: as is best here

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._crew: Workers | None = None
        self._rows: dict[str, float] = {}  # by site: what its work is judged by
        self._former: dict[str, int] = {}

    @classmethod
    def suits(cls, setting: Setting) -> bool:
        """Where workers are forked; to start them with nothing takes longer than a try may."""
        return setting.device.type == "cpu" and way_to_start(torch.get_num_threads()) == "fork"

    @classmethod
    def refuses(cls, setting: Setting) -> str | None:
        """A stream that lives as long as the run would have to move from one process to another."""
        if setting.streams:
            return f'task {type(setting.task).__name__} has batches of its own, which go on in one process; take "loop"'
        return None

    def total(self, plan: Plan, asked: Sequence[str], present: Sequence[str]) -> Collector:
        """See Engine."""
        crew = self._crew = self._crew or self._begin(plan)
        total = self.setting.collector(plan, asked, self.halves.bench.shared)
        dealt = shares(present, self._rows, self._former, self.workers)
        for part in crew.sums(Order.of(plan, asked), dealt):
            merge(total, part)
            for reply in replies(part):
                self._rows[reply.site] = float(reply.examples)
                self.report(plan, reply)
        self._former.update((site, at) for at, mine in enumerate(dealt) for site in mine)
        return total

    def close(self) -> None:
        """Ends the workers."""
        if self._crew is not None:
            self._crew.close()
            self._crew = None
        if self._scratch is not None:
            self._scratch.cleanup()

    def _kept(self) -> Setting:
        """What is simulated, the sites' memory in a folder: no process has it all."""
        if self.setting.memory is not None:
            return self.setting
        self._scratch = tempfile.TemporaryDirectory(prefix="hansa-")
        return replace(self.setting, memory=Path(self._scratch.name), durable=False)

    def _begin(self, plan: Plan) -> Workers:
        threads, setting = torch.get_num_threads(), self._kept()
        sent, layout = plan.broadcast, self.halves.bench.shared
        down = 4 * sent.params.numel() + sum(one.nbytes for one in sent.shared.values()) + SLACK
        up = 8 * (sum(part.size for part in setting.parts.values()) + layout.n_counters) + SLACK
        start = self.start or way_to_start(threads)
        return Crew(self.halves.moved(setting), self.workers, threads, start, down, up)
