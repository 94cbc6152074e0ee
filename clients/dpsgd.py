"""Local training by DP-SGD (Abadi et al. 2016): each unit's gradient is clipped, and the step's sum gets noise.

N = trained floats, U = units. A step: draw -> gradients of units -> clip -> sum -> noise -> divide -> `correct_grad` ->
optimiser -> `after_step`. What comes after the noise sees nothing of the data but by it, and costs nothing.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from clients import rowwise
from clients.gradients import Loss, Made, UnitGradients
from clients.hooks import Hooks
from clients.poisson import Piece, PoissonBatches
from clients.trainer import Trainer, _moving, _Steps
from hansa.errors import UserError
from hansa.metrics import mean_loss
from hansa.records import LocalRun
from hansa.seeds import seeded
from hansa.task import output_of
from privacy.dp.mechanism import DpSgd
from privacy.dp.randomness import Stream

ROWS = 512  # of a piece, at most: what passes through the model takes memory too
SLACK = 1 - 2**-20  # norms are of float32: what is clipped is so by a millionth more


@dataclass
class Seen:
    """What training met: for the site's own eyes, for it is not private."""

    empty: int = 0  # draws without a unit
    invalid: int = 0  # gradients with NaN or Inf, for which zeros were taken
    units: int = 0  # drawn
    notes: tuple[str, ...] = ()  # why faster ways to gradients were left


@dataclass
class DpTrainer(Trainer):
    """One site's work in one round, under DP-SGD.

    Args:
        mechanism: what is done, and is accounted for.
        stream: noise; the coins that draw may come from it too.
        chunk_bytes: of layers' inputs, their gradients and those of single units that are held at a time; beside them
            are a sum and a gradient of N float32.
        seen: what training met.
    """

    mechanism: DpSgd
    stream: Stream
    chunk_bytes: int = 1 << 27
    seen: Seen = field(default_factory=Seen)

    def fit(
        self,
        model: nn.Module,
        batches: Iterable[Any],
        *,
        loss: Loss | None = None,
        only: Iterable[str] = ("*",),
        without: Iterable[str] = (),
        hooks: bool = True,
    ) -> LocalRun:
        """Trains in place; no metric leaves, and buffers are as they were.

        Raises:
            UserError: what Trainer.fit refuses, batches that are not drawn, or a task whose rows do not stand alone.
        """
        if not isinstance(batches, PoissonBatches):
            raise UserError("[dp]: the strategy trains on batches of its own; give ctx.fit those that it was given")
        moving = _moving(model, tuple(only), tuple(without))
        optimizer = self.task.optimizer(moving.values(), self.hyper)
        scheduler = self.task.scheduler(optimizer, batches.steps)
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UserError("task: optimizer gave LBFGS, which needs many gradients a step; use sgd, adam, adamw")
        bound = (self.strategy, optimizer, moving, self.layout, self.anchor, self.shared, self.memory)
        steps = _PrivateSteps(self, list(moving.values()), optimizer, Hooks(*bound) if hooks else None)
        model.train()

        def mean(model: nn.Module, batch: Any) -> Tensor:
            return mean_loss(loss(model, batch) if loss else self.task.loss(*output_of(self.task, model, batch)))

        rowwise.check(self.task, model, batches, mean)
        method, self.seen.notes = rowwise.choose(model, moving, batches, mean)
        buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
        total = self._sum(model, list(moving.values()), mean, method, self.mechanism.clip, self.seen)
        with seeded(self.stream.seed(), *self._purpose):  # were dropout's masks known, they would tell rows apart
            for draw in batches.draws(self._most(method), alone=method is None):
                total.fill(draw)
                total.release(self.stream, self.mechanism)
                steps.step()
                if scheduler is not None:
                    scheduler.step()
        if method is not None:
            method.close()
        with torch.no_grad():
            for buffer, sent in buffers:
                buffer.copy_(sent)
        delta = self.layout.read(model).sub_(self.anchor)
        return LocalRun(delta, self.layout.read_counters(model), steps.taken, steps.lr_sum, self.rows)

    @property
    def _sum(self) -> "type[_Sum]":
        return _Sum

    @property
    def _purpose(self) -> tuple[str | int, ...]:
        return ("rows",)

    def _most(self, method: UnitGradients | None) -> int:
        """Rows of a piece."""
        floats = method.row_floats if method is not None else 0
        return max(1, min(ROWS, self.chunk_bytes // (4 * floats))) if floats else ROWS


class _PrivateSteps(_Steps):
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
    ) -> None:
        self.model, self.parameters, self.loss, self.method = model, parameters, loss, method
        self.clip, self.seen = clip, seen
        self.total = torch.zeros(sum(p.numel() for p in parameters), device=parameters[0].device)
        self.parts = _views(self.total, parameters)
        self.unit = [torch.zeros_like(part) for part in self.parts]  # of one that is alone, maybe in parts
        self.rows = 0  # that are in it

    def fill(self, draw: Iterator[tuple[Piece, Any]]) -> None:
        """Adds up a draw."""
        self.total.zero_()
        before = self.seen.units
        for piece, batch in draw:
            if self.method is not None and piece.whole:
                self._add_many(piece, batch, self.method)
            else:
                self._add_one(piece, batch)
        self.seen.empty += self.seen.units == before

    def release(self, stream: Stream, mechanism: DpSgd) -> None:
        """Adds noise, divides by the units expected, and leaves that as the parameters' gradient."""
        noisy = self.total.to("cpu", copy=True)
        stream.normal(noisy, mechanism.noise_multiplier * mechanism.clip)
        noisy /= mechanism.sample_rate * mechanism.units
        for p, grad in zip(self.parameters, _views(noisy.to(self.total.device), self.parameters), strict=True):
            p.grad = grad.to(p.dtype)

    def _add_many(self, piece: Piece, batch: Any, method: UnitGradients) -> None:
        scales = self._scales(method.squares(batch, piece.sizes.tolist()))
        for part, grad in zip(self.parts, method.weighted(scales), strict=True):
            part += grad

    def _add_one(self, piece: Piece, batch: Any) -> None:
        """A unit by itself, or a part of one: the plain gradient of all its rows."""
        rows = len(piece.rows)
        grads = torch.autograd.grad(self.loss(self.model, batch) * rows, self.parameters, allow_unused=True)
        self.rows += rows
        for sum, grad in zip(self.unit, grads, strict=True):
            if grad is not None:
                sum += grad
        if piece.last:
            for sum in self.unit:
                sum /= self.rows
            scale = self._scales(torch.stack([Made(one.unsqueeze(0)).squares() for one in self.unit]).sum(0))
            for part, sum in zip(self.parts, self.unit, strict=True):
                if scale:
                    part.add_(sum, alpha=float(scale))
                sum.zero_()
            self.rows = 0

    def _scales(self, squares: Tensor) -> Tensor:
        """What brings each gradient down to the clip norm, [U]; 0 for one that is not finite."""
        scales = (SLACK * self.clip / squares.sqrt()).clamp(max=1.0)  # a zero norm gives infinity, and so 1
        valid = squares.isfinite()
        self.seen.units += len(squares)
        self.seen.invalid += int(len(squares) - valid.sum())
        return scales.where(valid, 0.0)


def _views(vector: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    parts = torch.split(vector, [p.numel() for p in parameters])
    return [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]
