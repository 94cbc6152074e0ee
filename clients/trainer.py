"""Local training: the plain loop, with a strategy's elementwise hooks at their places in the step."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from clients.batches import Batches
from clients.hooks import Hooks
from clients.plainsgd import optimizer_of
from clients.workers.progress import Progress
from clients.workers.state import Generators, Pass, Tensors
from hansa.errors import UserError
from hansa.layout import Layout, matches
from hansa.metrics import mean_loss, ratio
from hansa.records import LocalRun, Vectors
from hansa.task import Task, output_of
from strategies.base import Memory, Strategy

PRECISIONS = {"bfloat16": torch.bfloat16, "float16": torch.float16}
Loss = Callable[[nn.Module, Any], Tensor]


@dataclass
class Trainer:
    """One site's work in one round: what `Strategy.local_update` gets as its context."""

    task: Task
    strategy: Strategy
    layout: Layout
    anchor: Tensor  # [P]
    shared: Vectors
    memory: Memory
    hyper: Mapping[str, Any]
    device: torch.device
    rows: int  # of training data
    progress: Progress | None = field(default=None, kw_only=True)  # where it is kept how far a pass is, if it is

    def vector(self, model: nn.Module) -> Tensor:
        """The model's shared floats, [P]."""
        return self.layout.read(model)

    def load(self, vector: Tensor, model: nn.Module) -> None:
        """Puts a vector [P] into the model."""
        self.layout.write(vector, model)

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
        """Trains in place over the batches; see `strategies.base.Local`.

        Raises:
            UserError: no parameter to train, a strategy that is not valid with the optimiser, or a loss that is not
                one number.
        """
        trained = moving(model, tuple(only), tuple(without))
        optimizer = optimizer_of(self.task, list(trained.values()), self.hyper, kept=self.progress is not None)
        scheduler = self.task.scheduler(optimizer, getattr(batches, "steps", 0))
        if not hasattr(scheduler, "step") and scheduler is not None:
            raise UserError(f"task: scheduler gave {type(scheduler).__name__}; return one of torch's, or None")
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UserError(
                "task: optimizer gave LBFGS, which evaluates a batch many times a step; use sgd, adam, adamw"
            )
        bound = (self.strategy, optimizer, trained, self.layout, self.anchor, self.shared, self.memory)
        steps = Steps(self, list(trained.values()), optimizer, Hooks(*bound) if hooks else None)
        model.train()
        for batch in self._from_where_it_was(batches, model, trained, steps, scheduler):
            with torch.autocast(self.device.type, steps.dtype, enabled=steps.dtype is not None):
                mean = loss(model, batch) if loss else self.task.loss(*output_of(self.task, model, batch))
            if steps.take(mean) and scheduler is not None:
                scheduler.step()
        sums = {"loss": ratio(steps.loss_sum, steps.tried)} if steps.tried else {}
        delta = self.layout.read(model).sub_(self.anchor)
        return LocalRun(delta, self.layout.read_counters(model), steps.taken, steps.lr_sum, self.rows, sums)

    def _from_where_it_was(
        self,
        batches: Iterable[Any],
        model: nn.Module,
        trained: Mapping[str, nn.Parameter],
        steps: "Steps",
        scheduler: Any,
    ) -> Iterator[Any]:
        """The batches that are left, if a pass over them was cut off; how far this one is is kept between them."""
        if self.progress is None or not isinstance(batches, Batches):
            yield from batches
            return
        own: dict[str, Any] = {"buffers": Tensors(dict(model.named_buffers())), "random": Generators(self.device)}
        common: dict[str, Any] = {"parameters": Tensors(trained), "steps": steps}
        pass_ = Pass(self.progress, own, common | ({} if scheduler is None else {"scheduler": scheduler}), self.device)
        done = pass_.resume()
        for number, batch in enumerate(batches.after(done), done + 1):
            yield batch
            pass_.took(number)


class Steps:
    """The optimiser's steps: unscale, correct the gradient, clip, step, correct the parameter."""

    def __init__(
        self, trainer: Trainer, parameters: list[nn.Parameter], optimizer: Optimizer, hooks: Hooks | None
    ) -> None:
        self.parameters, self.optimizer, self.hooks = parameters, optimizer, hooks
        self.dtype = PRECISIONS.get(trainer.hyper["precision"])
        self.scaler = torch.amp.GradScaler(trainer.device.type, enabled=self.dtype is torch.float16)
        self.clip_norm = trainer.hyper["clip_norm"]
        self.taken, self.tried, self.lr_sum, self.buffer = 0, 0, 0.0, 0.0
        self.loss_sum = torch.zeros((), device=trainer.device)

    def state_dict(self) -> dict[str, Any]:
        """All that changes from step to step."""
        changing = {name: getattr(self, name) for name in ("taken", "tried", "lr_sum", "buffer", "loss_sum")}
        return {"own": changing, "optimizer": self.optimizer.state_dict(), "scaler": self.scaler.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Puts back what `state_dict` gave."""
        vars(self).update(state["own"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scaler.load_state_dict(state["scaler"])

    def take(self, loss: Tensor) -> bool:
        """One step from a batch's mean loss; False where the loss scaler left it out."""
        if not mean_loss(loss).requires_grad:
            raise UserError("task: the loss has no gradient; compute it in torch from the model's output, undetached")
        scaled = self.scaler.is_enabled()
        grads = torch.autograd.grad(self.scaler.scale(loss) if scaled else loss, self.parameters, allow_unused=True)
        for p, grad in zip(self.parameters, grads, strict=True):
            p.grad = grad
        if scaled:
            self.scaler.unscale_(self.optimizer)
        if self.hooks is not None and self.hooks.corrects:
            self.hooks.correct()
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.parameters, self.clip_norm)
        self.tried += 1
        self.loss_sum += loss.detach()
        if not scaled:
            self.optimizer.step()
        elif not self._scaled_step():
            return False
        self._count()
        if self.hooks is not None and self.hooks.follows:
            self.hooks.follow()
        return True

    def _scaled_step(self) -> bool:
        """Under float16; False where gradients were infinite."""
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.scaler.get_scale() >= scale

    def _count(self) -> None:
        self.buffer, moved = constant_gradient(self.optimizer.param_groups[0], self.taken, self.buffer)
        self.lr_sum += moved
        self.taken += 1


def constant_gradient(group: Mapping[str, Any], taken: int, buffer: float) -> tuple[float, float]:
    """What a step does with a gradient that is 1 each time: torch's SGD buffer, and how far the parameter moves.

    Args:
        group: of the optimiser's parameters.
        taken: steps before this one.
        buffer: after the step before.
    """
    momentum = float(group.get("momentum", 0.0))
    damped = 1.0 - float(group.get("dampening", 0.0)) if momentum and taken else 1.0
    buffer = momentum * buffer + damped
    return buffer, float(group["lr"]) * (1.0 + momentum * buffer if group.get("nesterov") else buffer)


def moving(model: nn.Module, only: tuple[str, ...], without: tuple[str, ...]) -> dict[str, nn.Parameter]:
    """What is trained, by name.

    Raises:
        UserError: nothing is.
    """
    named = {n: p for n, p in model.named_parameters() if matches(n, only) and not matches(n, without)}
    found = {n: p for n, p in named.items() if p.requires_grad}
    if not found:
        names = f"names {', '.join(only)}" + (f" without {', '.join(without)}" if without else "")
        raise UserError(f"task: the model has no parameter to train ({names}, with requires_grad)")
    return found
