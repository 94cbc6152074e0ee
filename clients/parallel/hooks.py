"""A strategy's elementwise hooks where a rank holds parts of tensors, and the gradient's norm over all parts."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from clients.hooks import ROUNDED, Hooks, elementwise, overrides
from clients.parallel.shards import copies, local, share
from hansa.layout import Layout
from hansa.records import Vectors
from strategies.base import Memory, Strategy


@dataclass(frozen=True)
class Held:
    """A parameter, and what this rank holds of it as a parameter for the optimiser."""

    whole: nn.Parameter
    own: nn.Parameter

    @classmethod
    def of(cls, p: nn.Parameter) -> "Held":
        """Where the rank has all of it, the same."""
        if not isinstance(p, DTensor):
            return cls(p, p)
        return cls(p, nn.Parameter(local(p).detach(), requires_grad=p.requires_grad))

    def take_grad(self) -> None:
        """Gives the gradient over to the part, and leaves none at the whole."""
        if isinstance(self.whole, DTensor):
            grad, self.whole.grad = self.whole.grad, None
            if isinstance(grad, DTensor) and grad.placements != self.whole.placements:
                grad = grad.redistribute(self.whole.device_mesh, self.whole.placements)
            self.own.grad = None if grad is None else local(grad)


class ShardHooks(Hooks):
    """Hooks on what a rank holds: anchor, shared vectors and memory are cut as the parameter is, and no more is copied.

    Args:
        strategy, optimizer, layout, anchor, shared, memory: see Hooks.
        held: what the optimiser moves, by name.
    """

    def __init__(
        self,
        strategy: Strategy,
        optimizer: Optimizer,
        held: Mapping[str, Held],
        layout: Layout,
        anchor: Tensor,
        shared: Vectors,
        memory: Memory,
    ) -> None:
        self.strategy = strategy.beside(optimizer)
        self.corrects, self.follows = overrides(strategy, "correct_grad"), overrides(strategy, "after_step")
        self.bound = []
        if not (self.corrects or self.follows):
            return
        groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
        maps = [elementwise(one, layout) for one in (shared, memory)]
        for entry in layout.parameters:
            if entry.name in held:
                whole, own = held[entry.name].whole, held[entry.name].own
                sent, kept = ({k: share(entry, v, whole) for k, v in vectors.items()} for vectors in maps)
                self.bound.append((own, groups[id(own)], share(entry, anchor, whole), sent, kept))


@torch.no_grad()
def clip(held: Mapping[str, Held], most: float) -> None:
    """Scales gradients to an L2 norm of at most `most`, over all parts of all parameters, each counted once."""
    grads = [(one, one.own.grad) for one in held.values() if one.own.grad is not None]
    if not grads:
        return
    squares = [grad.double().square().sum() / copies(one.whole) for one, grad in grads]
    total = torch.stack(squares).sum()
    dist.all_reduce(total)
    scale = (most / (total.sqrt() + ROUNDED)).clamp(max=1.0)
    for _, grad in grads:
        grad.mul_(scale.to(grad))
