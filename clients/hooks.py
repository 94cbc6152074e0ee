"""A strategy's elementwise hooks, bound to the parameters that an optimiser moves."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hansa.layout import Layout
from hansa.records import Vectors
from strategies.base import Memory, Step, Strategy

ROUNDED = 1e-6  # beside a norm, as torch.nn.utils.clip_grad_norm_ has it

Bound = tuple[nn.Parameter, dict[str, Any], Tensor, Vectors, Memory]  # with its group, and its part of each vector


class Hooks:
    """Corrects gradients and parameters in place, tensor by tensor; parameters that a site keeps to itself are left.

    Args:
        strategy: whose hooks act.
        optimizer: that moves the parameters; its groups tell learning rate and momentum.
        moving: the parameters, by name.
        layout: of the shared vector.
        anchor: [P], the round's global vector.
        shared: the strategy's vectors; those of length N or P have a part for each parameter.
        memory: the site's vectors, likewise.
    """

    def __init__(
        self,
        strategy: Strategy,
        optimizer: Optimizer,
        moving: Mapping[str, nn.Parameter],
        layout: Layout,
        anchor: Tensor,
        shared: Vectors,
        memory: Memory,
    ) -> None:
        self.strategy = strategy.beside(optimizer)
        self.corrects = overrides(strategy, "correct_grad")
        self.follows = overrides(strategy, "after_step")
        self.bound: list[Bound] = []
        if self.corrects or self.follows:
            groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
            device = next(iter(moving.values())).device
            near, *maps = (
                {key: v.to(device) for key, v in elementwise(vectors, layout).items()}
                for vectors in ({"anchor": anchor}, shared, memory)
            )
            for entry in layout.parameters:
                if entry.name in moving:
                    sent, own = ({key: entry.of(v) for key, v in vectors.items()} for vectors in maps)
                    p = moving[entry.name]
                    self.bound.append((p, groups[id(p)], entry.of(near["anchor"]), sent, own))

    @torch.no_grad()
    def correct(self) -> None:
        """Gradients, before the task's clipping."""
        for p, step, anchor, shared, memory in self._each():
            if p.grad is not None:
                p.grad = self.strategy.correct_grad(p.grad, p, anchor, shared, memory, step)

    @torch.no_grad()
    def follow(self) -> None:
        """Parameters, after the optimiser's step."""
        for p, step, anchor, shared, memory in self._each():
            p.copy_(self.strategy.after_step(p, anchor, shared, memory, step))

    def _each(self) -> Iterator[tuple[nn.Parameter, Step, Tensor, Vectors, Memory]]:
        for p, group, anchor, shared, memory in self.bound:
            yield p, Step(float(group["lr"]), float(group.get("momentum", 0.0))), anchor, shared, memory


def elementwise(vectors: Vectors, layout: Layout) -> Vectors:
    """Those that have a part for each parameter: of length N or P."""
    lengths = (layout.n_parameters, layout.size)
    return {key: v for key, v in vectors.items() if v.dim() == 1 and len(v) in lengths}


def overrides(strategy: Strategy, hook: str) -> bool:
    """Whether a strategy has a hook of its own, by the hook's name."""
    return getattr(type(strategy), hook) is not getattr(Strategy, hook)
