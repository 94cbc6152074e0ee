"""torch.optim.SGD's step without what an optimiser object costs beside its arithmetic.

On a small model that is as much as the forward pass: hooks, a profiler's label, a walk through groups and state. The
first one that is made in a process also imports torch's compiler, which takes seconds and tens of megabytes.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Optimizer

from hansa.task import Task


class PlainSgd(SGD):
    """The same operations as torch's on one tensor after another, in the same order: the same bits.

    Args:
        params: to be moved.
        lr, momentum, weight_decay: see `torch.optim.SGD`.
    """

    def __init__(self, params: Sequence[nn.Parameter], lr: float, momentum: float, weight_decay: float) -> None:
        # Not torch's own __init__, which is what costs.
        self.param_groups = [{"params": list(params), "lr": lr, "momentum": momentum, "weight_decay": weight_decay}]
        self.state = defaultdict(dict)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # a closure would evaluate a batch again
        """One step, by the parameters' gradients."""
        for group in self.param_groups:
            lr, momentum, decay = group["lr"], group["momentum"], group["weight_decay"]
            for p in group["params"]:
                grad = p.grad
                if grad is None:
                    continue
                if decay:
                    grad = grad.add(p, alpha=decay)
                if momentum:
                    buffer = self.state[p].get("momentum_buffer")
                    if buffer is None:
                        self.state[p]["momentum_buffer"] = buffer = grad.clone()
                    else:
                        buffer.mul_(momentum).add_(grad)
                    grad = buffer
                p.add_(grad, alpha=-lr)


def optimizer_of(task: Task, params: Sequence[nn.Parameter], hyper: Mapping[str, Any], *, kept: bool) -> Optimizer:
    """The task's optimiser, or what does the same for less where it is certain: Hansa's own SGD, on the CPU.

    Args:
        task: whose `optimizer` and `scheduler` may be the user's.
        params: to be moved.
        hyper: of the plan.
        kept: whether its state is written down between steps, for which it must be torch's.
    """
    own = type(task).optimizer is Task.optimizer and type(task).scheduler is Task.scheduler
    if kept or not own or hyper["optimizer"] != "sgd" or any(p.device.type != "cpu" for p in params):
        return task.optimizer(params, hyper)
    return PlainSgd(params, hyper["lr"], hyper["momentum"], hyper["weight_decay"])
