"""Local training by DP-SGD (Abadi et al. 2016): each unit's gradient is clipped, and the step's sum gets noise.

N = trained floats, U = units. A step: draw -> gradients of units -> clip -> sum -> noise -> divide -> `correct_grad` ->
optimiser -> `after_step`. What comes after the noise sees nothing of the data but by it, and costs nothing.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from clients.gradients import TINY, Loss, Made, UnitGradients
from clients.hooks import Hooks
from clients.poisson import Piece, PoissonBatches
from clients.rowloss import RowLoss
from clients.rowwise import Way, tried
from clients.trainer import Steps, Trainer, moving
from hansa.errors import UserError
from hansa.records import LocalRun
from hansa.seeds import seeded
from privacy.dp.mechanism import DpSgd
from privacy.dp.randomness import Stream

ROWS = 512  # of a piece, at most: what passes through the model takes memory too
SLACK = 1 - 2**-20  # norms are of float32: what is clipped is so by a millionth more


@dataclass
class Seen:
    """What training met: for the site's own eyes, for it is not private."""

    empty: int = 0  # draws without a unit
    invalid: int = 0  # gradients with NaN or Inf, or of rows at which the task failed: zeros were taken
    units: int = 0  # drawn
    notes: tuple[str, ...] = ()  # why faster ways to gradients were left

    def __str__(self) -> str:
        said = (
            f"DP-SGD drew {self.units} units; {self.empty} draws were empty, {self.invalid} gradients counted as zero"
        )
        return "; ".join([said, *self.notes])


@dataclass
class DpTrainer(Trainer):
    """One site's work in one round, under DP-SGD.

    Args:
        mechanism: what is done, and is accounted for.
        stream: noise; the coins that draw may come from it too.
        chunk_bytes: of layers' inputs, their gradients and those of single units that are held at a time; beside them
            are a sum and a gradient of N float32.
        seen: what training met.
        way: to the gradients of units; None: the task is tried first, on the model that it trains.
    """

    mechanism: DpSgd
    stream: Stream
    chunk_bytes: int = 1 << 27
    seen: Seen = field(default_factory=Seen)
    way: Way | None = None

    def fit(
        self,
        model: nn.Module,
        batches: Iterable[Any],
        *,
        loss: Callable[[nn.Module, Any], Tensor] | None = None,
        only: Iterable[str] = ("*",),
        without: Iterable[str] = (),
        hooks: bool = True,
    ) -> LocalRun:
        """Trains in place; no metric leaves, and buffers are as they were.

        Raises:
            UserError: what Trainer.fit refuses, batches that are not drawn, a loss of the strategy's own, a task whose
                rows do not stand alone. Once the task was tried, nothing that a row does is raised.
        """
        if not isinstance(batches, PoissonBatches):
            raise UserError("[dp]: the strategy trains on batches of its own; give ctx.fit those that it was given")
        if loss is not None:
            raise UserError("[dp]: the strategy has a loss of its own, which is not of single rows; leave loss= out")
        trained = moving(model, tuple(only), tuple(without))
        optimizer = self.task.optimizer(trained.values(), self.hyper)
        scheduler = self.task.scheduler(optimizer, batches.steps)
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UserError("task: optimizer gave LBFGS, which needs many gradients a step; use sgd, adam, adamw")
        bound = (self.strategy, optimizer, trained, self.layout, self.anchor, self.shared, self.memory)
        steps = _PrivateSteps(self, list(trained.values()), optimizer, Hooks(*bound) if hooks else None)
        model.train()

        way = self.way or tried(self.task, model, batches.dataset, self.device)
        self.seen.notes, rows = way.notes, RowLoss(self.task)
        buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
        with ExitStack() as stack:
            method = None if way.kind is None else stack.enter_context(closing(way.kind(model, trained, rows)))
            total = self._sum(
                model, list(trained.values()), rows, method, self.mechanism.clip, self.seen, batches.alone
            )
            # Dropout's masks, if known, would tell rows apart.
            stack.enter_context(seeded(self.stream.seed(), *self._purpose))
            for draw in batches.draws(self._most(way)):
                total.fill(draw)
                total.release(self.stream, self.mechanism)
                steps.step()
                if scheduler is not None:
                    scheduler.step()
        with torch.no_grad():
            for buffer, sent in buffers:
                buffer.copy_(sent)
        delta = self.layout.read(model).sub_(self.anchor)
        work = (steps.taken, steps.lr_sum, self.rows)
        return LocalRun(delta, self.layout.read_counters(model), *work, n_parameters=self.layout.n_parameters)

    @property
    def _sum(self) -> "type[_Sum]":
        return _Sum

    @property
    def _purpose(self) -> tuple[str | int, ...]:
        return ("rows",)

    def _most(self, way: Way) -> int:
        """Rows of a piece."""
        return 1 if way.kind is None else max(1, min(ROWS, self.chunk_bytes // (4 * max(1, way.row_floats))))


class _PrivateSteps(Steps):
    """The optimiser's steps from gradients that are there."""

    def step(self) -> None:
        """One step: no clipping, no loss scale."""
        if self.hooks is not None and self.hooks.corrects:
            self.hooks.correct()
        self.optimizer.step()
        self._count()
        if self.hooks is not None and self.hooks.follows:
            self.hooks.follow()


class _Sum:
    """The sum of clipped gradients of one step, [N]."""

    def __init__(
        self,
        model: nn.Module,
        parameters: list[nn.Parameter],
        loss: Loss,
        method: UnitGradients | None,
        clip: float,
        seen: Seen,
        alone: Callable[[int], Any],
    ) -> None:
        self.model, self.parameters, self.loss, self.method = model, parameters, loss, method
        self.clip, self.seen, self.alone = clip, seen, alone
        self.total = torch.zeros(sum(p.numel() for p in parameters), device=parameters[0].device)
        self.parts = _views(self.total, parameters)
        self.unit = [torch.zeros_like(part) for part in self.parts]  # of one that is alone, maybe in parts
        self.rows = 0  # that are in it

    def fill(self, draw: Iterator[tuple[Piece, Any]]) -> None:
        """Adds up a draw."""
        self.total.zero_()
        before = self.seen.units
        for piece, batch in draw:
            if self.method is None or not self._at_once(piece, batch, self.method):
                self._one_by_one(piece, batch)
        self.seen.empty += self.seen.units == before

    def release(self, stream: Stream, mechanism: DpSgd) -> None:
        """Adds noise, divides by the units expected, and leaves that as the parameters' gradient."""
        noisy = self.total.to("cpu", copy=True)
        stream.normal(noisy, mechanism.noise_multiplier * mechanism.clip)
        noisy /= mechanism.sample_rate * mechanism.units
        for p, grad in zip(self.parameters, _views(noisy.to(self.total.device), self.parameters), strict=True):
            p.grad = grad.to(p.dtype)

    def _at_once(self, piece: Piece, batch: Any, method: UnitGradients) -> bool:
        """False, and nothing is added: something in the piece is not as in the rows that were tried."""
        try:
            squares = method.squares(batch, piece.sizes.tolist())
            scales = clipping(squares, self.clip) if piece.whole else torch.ones_like(squares)
            grads = method.weighted(scales)
        except Exception:  # were it raised, it would tell the server of a row
            return False
        if piece.whole:
            self._count(scales)
            for part, grad in zip(self.parts, grads, strict=True):
                part += grad
        else:
            self._gather([grad * len(piece.rows) for grad in grads], len(piece.rows))
            if piece.last:
                self._finish()
        return True

    def _one_by_one(self, piece: Piece, batch: Any) -> None:
        """Each row alone in the model; one at which the task fails makes its unit count as zero."""
        rows = iter(piece.rows.tolist())
        for size in piece.sizes.tolist():
            for row in itertools.islice(rows, size):
                try:
                    one = batch if len(piece.rows) == 1 else self.alone(row)
                    grads = torch.autograd.grad(self.loss(self.model, one, 1), self.parameters, allow_unused=True)
                except Exception:  # as above
                    grads = tuple(torch.full_like(p, torch.nan) for p in self.parameters)
                self._gather(grads, 1)
            if piece.last:
                self._finish()

    def _gather(self, grads: Sequence[Tensor | None], rows: int) -> None:
        self.rows += rows
        for sum, grad in zip(self.unit, grads, strict=True):
            if grad is not None:
                sum += grad

    def _finish(self) -> None:
        """A unit's rows are all there."""
        for sum in self.unit:
            sum /= self.rows
        scale = clipping(torch.stack([Made(one.unsqueeze(0)).squares() for one in self.unit]).sum(0), self.clip)
        self._count(scale)
        for part, sum in zip(self.parts, self.unit, strict=True):
            if scale:
                part.add_(sum, alpha=float(scale))
            sum.zero_()
        self.rows = 0

    def _count(self, scales: Tensor) -> None:
        self.seen.units += len(scales)
        self.seen.invalid += int((scales == 0).sum())


def clipping(squares: Tensor, clip: float) -> Tensor:
    """What brings gradients of squared norms [U] within the clip, [U]; 0 for one that is not finite, or nearly so."""
    scales = (SLACK * clip / squares.sqrt()).clamp(max=1.0)  # a zero norm gives infinity, and so 1
    return scales.where(squares.isfinite() & (scales >= TINY), 0.0)


def _views(vector: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    parts = torch.split(vector, [p.numel() for p in parameters])
    return [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]
