"""DP-SGD over the ranks of a site: the same draw, clipping and noise as in one process.

Each rank tosses the same coins, and takes its share of the units that are drawn. Their clipped gradients are summed
over ranks at rank 0, which adds the noise, once, and sends the step's gradient to all.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from clients.dpsgd import DpTrainer, _Sum
from clients.parallel.bench import ParallelBench
from clients.poisson import Piece, PoissonBatches, Rows
from clients.private import Drawn
from hansa.errors import UserError
from hansa.records import LocalRun
from privacy.dp.mechanism import DpSgd
from privacy.dp.randomness import Stream


def check_private(bench: ParallelBench) -> None:
    """Refuses DP-SGD where the model is in parts.

    Raises:
        UserError: it is, and gradients of units are of whole tensors.
    """
    if not bench.degrees.whole or bench.keys.precision == "float64":
        mend = f"set parallel = {{ dp = {bench.ranks.world} }}, and leave precision out"
        raise UserError(
            f"[dp]: gradients of single rows need the whole model, in float32; in site.toml [training] {mend}"
        )


def spread(one: Drawn, bench: ParallelBench) -> Drawn:
    """A plan by DP-SGD in one process, made one over ranks.

    Args:
        one: with the same key at each rank.
        bench: the model over the ranks.
    """
    batches = SharedDraws(**{name: getattr(one.batches, name) for name in ARGUMENTS})
    batches.bench = bench
    return Drawn(batches, SharedDpTrainer(**vars(one.trainer), bench=bench))


ARGUMENTS = ("task", "dataset", "mechanism", "stream", "device", "units", "workers")


class SharedDraws(PoissonBatches):
    """The draws of one plan, of each of which a rank has its share."""

    bench: ParallelBench

    def _draw(self) -> list[Rows]:
        return super()._draw()[self.bench.ranks.rank :: self.bench.ranks.world]


@dataclass
class SharedDpTrainer(DpTrainer):
    """One site's work in one round under DP-SGD, at one of its ranks.

    Args:
        bench: the model over the ranks.
    """

    bench: ParallelBench = field(kw_only=True)

    def fit(self, model: nn.Module, batches: Iterable[Any], **rest: Any) -> LocalRun:
        """Trains in place; see DpTrainer.fit."""
        run = super().fit(model, batches, **rest)
        counts = torch.tensor([self.seen.units, self.seen.invalid], device=self.device)
        dist.all_reduce(counts)
        self.seen.units, self.seen.invalid = counts.tolist()
        return run

    @property
    def _sum(self) -> type[_Sum]:
        return _SharedSum

    @property
    def _purpose(self) -> tuple[str | int, ...]:
        return ("rows", dist.get_rank())  # dropout's masks are not the same at two ranks


class _SharedSum(_Sum):
    """The sum over all ranks' units."""

    def fill(self, draw: Iterator[tuple[Piece, Any]]) -> None:
        """Adds up this rank's share of a draw, which is empty if all ranks' are."""
        empty, units = self.seen.empty, self.seen.units
        super().fill(draw)
        drawn = torch.tensor(self.seen.units - units, device=self.total.device)
        dist.all_reduce(drawn)
        self.seen.empty = empty + int(drawn == 0)

    def release(self, stream: Stream, mechanism: DpSgd) -> None:
        """Adds noise at rank 0; the others get what comes of it."""
        dist.reduce(self.total, 0)
        if dist.get_rank() == 0:
            super().release(stream, mechanism)
        for p in self.parameters:
            grad: Tensor = torch.empty_like(p) if p.grad is None else p.grad
            dist.broadcast(grad, 0)
            p.grad = grad
