"""What one of a site's ranks does with a plan: all do the same, and rank 0's answer is the site's."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from clients.parallel.bench import ParallelBench
from clients.parallel.dpsgd import check_private, spread
from clients.parallel.scoring import evaluate
from clients.parallel.slicer import ParallelBatches
from clients.parallel.trainer import ParallelTrainer
from clients.private import Drawn
from clients.site import SiteHalf
from clients.trainer import Trainer
from hansa.errors import UserError
from hansa.metrics import Sums
from hansa.records import Plan
from hansa.task import Dataset
from privacy.dp.terms import DpTerms


@dataclass
class ParallelSite(SiteHalf):
    """One site at one of its ranks; every rank gets the same plans in the same order."""

    bench: ParallelBench

    @property
    def answers(self) -> bool:
        """Only rank 0 does."""
        return self.bench.ranks.leads

    def _fit(self, model: nn.Module, context: Trainer, plan: Plan, train: Dataset) -> Any:
        if self._stream:
            name = type(self.task).__name__
            mend = "set procs = 1 in site.toml, or remove them"
            raise UserError(f"task {name}: it has batches of its own, which processes cannot share; {mend}")
        return super()._fit(model, context, plan, train)

    def _fit_private(self, terms: DpTerms, model: nn.Module, context: Trainer, plan: Plan, train: Dataset) -> Any:
        check_private(self.bench)
        plain = SiteHalf._trainer(self, plan, context.memory, len(train))
        return super()._fit_private(terms, model, plain, plan, train)

    def _key(self, plan: Plan) -> bytes:
        return self.bench.ranks.bytes_from_lead(super()._key(plan), self.bench.device)

    def _drawn(self, one: Drawn) -> Drawn:
        return spread(one, self.bench)

    def _trainer(self, plan: Plan, memory: Any, rows: int) -> Trainer:
        return ParallelTrainer.of(super()._trainer(plan, memory, rows), self.bench)

    def batches(self, plan: Plan, train: Dataset) -> ParallelBatches:
        """See SiteHalf."""
        where = (plan.seed, plan.round, self.site.name)
        dtype = torch.float64 if self.bench.keys.precision == "float64" else None
        same = (self.task, train, plan.hyper, where, self.bench.device, self.workers)
        return ParallelBatches(*same, self.bench.share, dtype)

    def _sums(self, model: nn.Module, rows: Dataset, size: int) -> Sums:
        return evaluate(self.task, self.bench, rows, size)
