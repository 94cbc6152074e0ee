"""Local training of a chunk of sites: what `clients.trainer.Trainer.fit` does for one."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clients.trainer import moving
from hansa.metrics import ratio
from hansa.records import LocalRun
from hansa.task import Task
from hansa.workbench import Workbench
from simulations.cohort.chain import Chain
from simulations.cohort.gradients import Tensors
from simulations.cohort.passing import Pass
from simulations.cohort.work import Work
from strategies.base import Strategy


@dataclass(frozen=True)
class Fit:
    """Trains sites that are alike: the same schedule, and memories with the same names.

    Args:
        task: the user's.
        strategy: the algorithm.
        bench: its model holds the round's parameters and counters, and stays as it is.
        chain: what the model is lowered to, if it is a chain.
    """

    task: Task
    strategy: Strategy
    bench: Workbench
    chain: Chain | None

    @torch.no_grad()
    def runs(self, works: Sequence[Work]) -> list[LocalRun]:
        """What local training did, of each site; works come with most steps first.

        Raises:
            Unfit: it cannot be done in a stack.
        """
        model, count = self.bench.model, len(works)
        trained = moving(model, ("*",), ())
        params = {name: stacks(p, count) for name, p in trained.items()}
        buffers = {name: stacks(b, count) for name, b in model.named_buffers()}
        one = Pass(self.task, self.strategy, self.bench, self.chain, works, trained, params, buffers)
        one.go()
        sums = one.loss_sums.double().cpu()
        vectors, counters = self._read(params | buffers, works), self._counters(buffers, works)
        return [
            LocalRun(
                vectors[k],
                counters[k],
                work.steps,
                one.lr_sums[work.steps],
                len(work.begun.train),
                {"loss": ratio(sums[k], work.steps)},
            )
            for k, work in enumerate(works)
        ]

    def _read(self, tensors: Tensors, works: Sequence[Work]) -> Tensor:
        """Updates, [K, P]."""
        layout, anchor = self.bench.shared, works[0].plan.broadcast.params
        vectors = anchor.repeat(len(works), 1)
        for entry in layout.floats:
            if entry.name in tensors:
                vectors[:, entry.offset : entry.offset + entry.size] = tensors[entry.name].reshape(len(works), -1)
        return vectors.sub_(anchor)

    def _counters(self, buffers: Tensors, works: Sequence[Work]) -> Tensor:
        """[K, C]."""
        counters = works[0].plan.broadcast.counters.repeat(len(works), 1)
        for entry in self.bench.shared.counters:
            counters[:, entry.offset : entry.offset + entry.size] = buffers[entry.name].reshape(len(works), -1)
        return counters


def stacks(tensor: Tensor, count: int) -> Tensor:
    """A tensor once for each of some sites, [count, ...]."""
    return tensor.detach().unsqueeze(0).repeat(count, *[1] * tensor.dim())
