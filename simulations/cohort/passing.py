"""The steps of a chunk of sites: what `clients.trainer.Steps` does for one."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from clients.trainer import constant_gradient
from hansa.task import Task
from hansa.workbench import Workbench
from simulations.cohort.chain import Chain, kept, sgd
from simulations.cohort.gradients import Tensors, VmapGradients
from simulations.cohort.hooks import StackedHooks, clip
from simulations.cohort.losses import Loss
from simulations.cohort.optimizers import shrink, stack_on
from simulations.cohort.stack import stacked
from simulations.cohort.work import Work
from strategies.base import Step, Strategy


class Pass:
    """One pass over the stacked batches of sites that are alike.

    Args:
        task: the user's.
        strategy: the algorithm.
        bench: its model holds the round's parameters.
        chain: what the model is lowered to, if it is a chain.
        works: of the K sites, most steps first.
        trained: the model's parameters that move.
        params: their stacks, trained in place.
        buffers: stacks of the model's buffers, which change in place.
    """

    def __init__(
        self,
        task: Task,
        strategy: Strategy,
        bench: Workbench,
        chain: Chain | None,
        works: Sequence[Work],
        trained: dict[str, nn.Parameter],
        params: Tensors,
        buffers: Tensors,
    ) -> None:
        plan, device = works[0].plan, bench.device
        self.task, self.bench, self.chain, self.params, self.buffers = task, bench, chain, params, buffers
        self.optimizer = task.optimizer(trained.values(), plan.hyper)
        self.scheduler: Any = task.scheduler(self.optimizer, works[0].steps)
        stack_on(self.optimizer, trained, params)
        strategy = strategy.beside(self.optimizer)
        memories = [work.begun.memory for work in works]
        sent = plan.broadcast
        self.hooks = StackedHooks(strategy, bench.shared, list(params), sent.params, sent.shared, memories, device)
        self.clip_norm: float | None = plan.hyper["clip_norm"]
        self.stack = stacked(task, works, device)
        self.active: list[int] = (self.stack.sizes > 0).sum(1).tolist()
        self.loss_sums = torch.zeros(len(works), device=device)  # [K]
        self.lr_sums, self._buffer = [0.0], 0.0  # after so many steps

    def go(self) -> None:
        """All steps of all sites."""
        loss = self.chain.loss(self.stack) if self.chain is not None else None
        if self.chain is not None and loss is not None:
            self._chained(self.chain, loss)
            return
        self.bench.model.train()
        gradients = VmapGradients(self.task, self.bench.model)
        with warnings.catch_warnings():
            # Where an operation has no rule for stacks, torch takes it site by site, which is right but no faster.
            warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
            for s, active in enumerate(self.active):
                self._shrink(active)
                self._take(*gradients.step(self.params, self.buffers, self.stack, s))

    def _chained(self, chain: Chain, loss: Loss) -> None:
        inputs, target = self.stack.leaves
        sizes = self.stack.sizes.unsqueeze(2).to(inputs.device)
        there = torch.arange(inputs.shape[2], device=inputs.device) < sizes
        weights = there.to(inputs.dtype) / sizes.clamp(min=1)  # [S, K, B]
        fused = self._plain
        for s, a in enumerate(self.active):
            self._shrink(a)
            grads: Tensors = {}
            update = sgd(self.params, self.optimizer.param_groups[0]["lr"]) if fused else kept(grads)
            wanted, weight = target[s, :a], weights[s, :a]
            losses = chain.step(self.params, inputs[s, :a], lambda z, y=wanted, w=weight: loss(z, y, w), update)  # type: ignore[misc]
            if fused:
                self._count(losses)
            else:
                self._take(losses, grads)

    @property
    def _plain(self) -> bool:
        """Whether a step is w - lr * gradient and no more."""
        hooked = self.hooks.corrects or self.hooks.follows or self.clip_norm is not None or self.scheduler is not None
        return not hooked and type(self.task).optimizer is Task.optimizer and _bare(self.optimizer)

    def _take(self, losses: Tensor, grads: Tensors) -> None:
        """A step, as `clients.trainer.Steps.take` has it."""
        steps = self._steps() if self.hooks.corrects or self.hooks.follows else {}
        if self.hooks.corrects:
            grads = self.hooks.correct(grads, self.params, steps)
        if self.clip_norm is not None:
            clip(grads, self.clip_norm)
        for name, p in self.params.items():
            p.grad = grads[name]
        self.optimizer.step()
        self._count(losses)
        if self.hooks.follows:
            self.hooks.follow(self.params, steps)
        if self.scheduler is not None:
            self.scheduler.step()

    def _count(self, losses: Tensor) -> None:
        self.loss_sums[: len(losses)] += losses
        taken = len(self.lr_sums) - 1
        self._buffer, moved = constant_gradient(self.optimizer.param_groups[0], taken, self._buffer)
        self.lr_sums.append(self.lr_sums[-1] + moved)

    def _steps(self) -> dict[str, Step]:
        name_of = {id(p): name for name, p in self.params.items()}
        return {
            name_of[id(p)]: Step(float(group["lr"]), float(group.get("momentum", 0.0)))
            for group in self.optimizer.param_groups
            for p in group["params"]
        }

    def _shrink(self, active: int) -> None:
        if active < len(next(iter(self.params.values()))):
            self.params = shrink(self.optimizer, self.params, active)
            self.buffers = {name: b[:active] for name, b in self.buffers.items()}


def _bare(optimizer: Optimizer) -> bool:
    group = optimizer.param_groups[0]
    return type(optimizer) is SGD and not (group["momentum"] or group["weight_decay"])
