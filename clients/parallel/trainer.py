"""Local training over the ranks of a site: the same steps as in one process, from the same batches.

A batch of n rows is cut; a rank's piece of m rows has weight m / n. DDP and FSDP2 give the mean over ranks, so that a
piece's mean loss goes on with m * W / n: the gradient is that of the batch's mean, however uneven the pieces are.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clients.parallel.bench import ParallelBench, reduced
from clients.parallel.hooks import Held, ShardHooks, clip
from clients.parallel.shards import check_buffers
from clients.parallel.slicer import ParallelBatches, Slice
from clients.trainer import Loss, Steps, Trainer, moving
from clients.workers.progress import Progress
from clients.workers.state import Pass, Tensors
from hansa.errors import UserError
from hansa.metrics import mean_loss, ratio
from hansa.records import LocalRun
from hansa.task import Task, output_of
from strategies.base import Strategy

ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,  # AdamW too
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.ASGD,
    torch.optim.Rprop,
)


@dataclass
class ParallelTrainer(Trainer):
    """One site's work in one round, at one of its ranks.

    Args:
        bench: the model over the ranks.
    """

    bench: ParallelBench

    @classmethod
    def of(cls, trainer: Trainer, bench: ParallelBench) -> "ParallelTrainer":
        """What a trainer does in one process, over ranks.

        Raises:
            UserError: the plan's precision cannot be had.
        """
        precision = bench.keys.precision or trainer.hyper["precision"]
        if precision == "float16":
            mend = 'set precision = "bfloat16", here or in site.toml'
            raise UserError(f"[training] precision: float16 scales its loss, which ranks would do differently; {mend}")
        same = {**vars(trainer), "hyper": {**trainer.hyper, "precision": precision}}
        return cls(**same, bench=bench)

    def vector(self, model: nn.Module) -> Tensor:
        """The model's shared floats, [P]."""
        self.bench.check_owns(model)
        return self.bench.everywhere()

    def load(self, vector: Tensor, model: nn.Module) -> None:
        """Puts a vector [P] into the model."""
        self.bench.check_owns(model)
        self.bench.write(vector)

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
        """Trains in place; see Trainer.fit. At the other ranks than 0 the update is zeros that take no memory.

        Raises:
            UserError: what Trainer.fit refuses, batches that are not cut, an optimiser that is not elementwise on
                parts of tensors, or a loss that cannot see whole ones.
        """
        self.bench.check_owns(model)
        if not isinstance(batches, ParallelBatches):
            raise UserError("[strategy]: it makes batches of its own; give ctx.fit those that it was given")
        if loss is not None and not self.bench.degrees.whole:
            name = type(self.strategy).__name__
            raise UserError(
                f"[strategy] {name}: its loss may see parts of tensors only; use dp in site.toml's parallel"
            )
        trained = moving(model, tuple(only), tuple(without))
        held = {name: Held.of(p) for name, p in trained.items()}
        optimizer = self.task.optimizer([one.own for one in held.values()], self.hyper)
        self._check_optimizer(optimizer)
        scheduler = self.task.scheduler(optimizer, batches.steps)
        if not hasattr(scheduler, "step") and scheduler is not None:
            raise UserError(f"task: scheduler gave {type(scheduler).__name__}; return one of torch's, or None")
        bound = (self.strategy, optimizer, held, self.layout, self.anchor, self.shared, self.memory)
        steps = _ParallelSteps(self, held, optimizer, ShardHooks(*bound) if hooks else None)
        model.train()
        with _still(model, trained, self.bench.degrees.whole):
            steps.path = self.bench.path(trained)
            pass_ = None if self.progress is None else self._pass(self.progress, model, held, steps, scheduler)
            done = 0 if pass_ is None else pass_.resume()
            for number, one in enumerate(batches.slices(done), done + 1):
                with one.seeded():
                    steps.run(one, self._function(loss))
                if scheduler is not None:
                    scheduler.step()
                if pass_ is not None:
                    pass_.took(number)
        check_buffers(model, self.layout)
        sums = {"loss": ratio(steps.losses(), steps.tried)} if steps.tried else {}
        work = (steps.taken, steps.lr_sum, self.rows, sums)
        return LocalRun(self._delta(), self.layout.read_counters(model), *work, n_parameters=self.layout.n_parameters)

    def _pass(
        self, progress: Progress, model: nn.Module, held: Mapping[str, Held], steps: "_ParallelSteps", scheduler: Any
    ) -> Pass:
        """What changes in a pass: parts of tensors are a rank's own, whole ones are alike. Each step seeds itself."""
        moves: dict[str, Any] = {"parameters": Tensors({name: one.own for name, one in held.items()}), "steps": steps}
        moves |= {} if scheduler is None else {"scheduler": scheduler}
        own = {"buffers": Tensors(dict(model.named_buffers())), "done": Tensors({"done": steps.done})}
        whole = self.bench.degrees.whole
        return Pass(progress, own if whole else {**own, **moves}, moves if whole else {}, self.device)

    def _function(self, loss: Loss | None) -> Loss:
        if loss is not None:
            return lambda model, batch: mean_loss(loss(model, batch))
        return lambda model, batch: mean_loss(self.task.loss(*output_of(self.task, model, batch)))

    def _check_optimizer(self, optimizer: Optimizer) -> None:
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UserError(
                "task: optimizer gave LBFGS, which evaluates a batch many times a step; use sgd, adam, adamw"
            )
        if not self.bench.degrees.whole and not isinstance(optimizer, ELEMENTWISE):
            mend = "use sgd, adam or adamw, or dp in site.toml's parallel"
            raise UserError(f"task: optimizer gave {type(optimizer).__name__}, which may need whole tensors; {mend}")

    def _delta(self) -> Tensor:
        """The update, [P]; a strategy with local work of its own may want it at each rank."""
        if type(self.strategy).local_update is not Strategy.local_update:
            return self.bench.everywhere().sub_(self.anchor)
        return self.bench.update(self.anchor)


class _ParallelSteps(Steps):
    """The optimiser's steps, from gradients that are summed over ranks and pieces."""

    def __init__(
        self, trainer: ParallelTrainer, held: Mapping[str, Held], optimizer: Optimizer, hooks: ShardHooks | None
    ) -> None:
        super().__init__(trainer, [one.own for one in held.values()], optimizer, hooks)
        self.bench, self.task, self.held = trainer.bench, trainer.task, held
        self.path: nn.Module = trainer.bench.call
        self.promised = 0  # rows of all batches
        self.done = torch.zeros(2, dtype=torch.float64, device=trainer.device)  # loss, and rows, of this rank

    def run(self, one: Slice, function: Loss) -> None:
        """One step."""
        for p in self.bench.model.parameters():
            p.grad = None
        for place, (batch, weight) in enumerate(self._weighed(one)):
            with self.bench.within(self.path, place + 1 == len(one.pieces)):
                with torch.autocast(self.done.device.type, self.dtype, enabled=self.dtype is not None):
                    mean = self.path(function, batch)
                if not mean.requires_grad:
                    mend = "compute it in torch from the model's output, undetached"
                    raise UserError(f"task: the loss has no gradient; {mend}")
                (mean * (weight * self.bench.degrees.cuts)).backward()
            self.done[0] += mean.detach() * weight if weight else 0.0
        self.promised += one.rows
        self.done[1] += sum(piece.counted for piece in one.pieces)
        self._move()

    def state_dict(self) -> dict[str, Any]:
        """See Steps."""
        return {**super().state_dict(), "promised": self.promised}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See Steps."""
        super().load_state_dict(state)
        self.promised = state["promised"]

    def losses(self) -> float:
        """The sum over steps of the batches' losses, of all ranks together."""
        loss, rows = reduced(self.done, self.bench).tolist()
        if rows != self.promised:
            raise RuntimeError(f"{rows:.0f} rows were trained on, and the batches have {self.promised}")
        return float(loss)

    def _weighed(self, one: Slice) -> Iterator[tuple[Any, float]]:
        """The pieces with their weights in the batch's mean: by rows, or by what the task counts."""
        if type(self.task).count is Task.count:
            for piece in one.pieces:
                yield next(one.batches), piece.counted / one.rows
            return
        batches = [next(one.batches) for _ in one.pieces]
        found = [float(self.task.count(batch)) for batch in batches]
        counts = [count if piece.counted else 0.0 for count, piece in zip(found, one.pieces, strict=True)]
        total = float(reduced(self.done.new_tensor([sum(counts)]), self.bench))
        spare = batches[found.index(max(found))]  # a mean over nothing has no gradient, not even times 0
        for batch, count in zip(batches, counts, strict=True):
            yield (batch, count / total) if count else (spare, 0.0)

    def _move(self) -> None:
        for one in self.held.values():
            one.take_grad()
        if self.hooks is not None and self.hooks.corrects:
            self.hooks.correct()
        if self.clip_norm is not None and self.bench.degrees.whole:
            nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        elif self.clip_norm is not None:
            clip(self.held, self.clip_norm)
        self.optimizer.step()
        self.tried += 1
        self._count()
        if self.hooks is not None and self.hooks.follows:
            self.hooks.follow()


@contextmanager
def _still(model: nn.Module, moving: Mapping[str, nn.Parameter], whole: bool) -> Iterator[None]:
    """Under DDP: no gradient for what does not move, so that none is waited for."""
    others = [p for name, p in model.named_parameters() if whole and p.requires_grad and name not in moving]
    for p in others:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in others:
            p.requires_grad_(True)
