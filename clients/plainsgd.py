"""torch.optim.SGD's step without what the step of an optimiser object costs beside its arithmetic.

On a small model that is as much as the forward pass: hooks, a profiler's label, a walk through groups and state.
"""

import torch
from torch.optim import SGD, Optimizer

from hansa.task import Task


class PlainSgd(SGD):
    """The same operations as torch's on one tensor after another, in the same order: the same bits.

    Args:
        optimizer: as `torch.optim.SGD(params, lr, momentum, weight_decay)` makes it, whose groups and state it takes.
    """

    def __init__(self, optimizer: SGD) -> None:
        vars(self).update(vars(optimizer))  # torch's own __init__ would put the label around `step`

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


def lean(optimizer: Optimizer, task: Task) -> Optimizer:
    """The optimiser, or what does the same for less where it is certain: SGD as Hansa itself makes it, on the CPU."""
    if type(task).optimizer is not Task.optimizer or type(optimizer) is not SGD:
        return optimizer
    cpu = all(p.device.type == "cpu" for group in optimizer.param_groups for p in group["params"])
    return PlainSgd(optimizer) if cpu else optimizer
