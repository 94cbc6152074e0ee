"""A strategy's elementwise hooks on all sites of a stack, and clipping of each site's gradient."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.func import vmap

from clients.hooks import ROUNDED, elementwise, overrides
from hansa.layout import Layout
from hansa.records import Vectors
from simulations.cohort.gradients import Tensors
from strategies.base import Memory, Step, Strategy


class StackedHooks:
    """The hooks, bound to the parameters' parts of anchor, shared vectors and memories.

    Args:
        strategy: whose hooks act.
        layout: of the shared vector.
        names: of the parameters that move.
        anchor: [P].
        shared: the strategy's vectors.
        memories: of the K sites, all with the same names.
        device: of the stack.
    """

    def __init__(
        self,
        strategy: Strategy,
        layout: Layout,
        names: Sequence[str],
        anchor: Tensor,
        shared: Vectors,
        memories: Sequence[Memory],
        device: torch.device,
    ) -> None:
        self.strategy = strategy
        self.corrects = overrides(strategy, "correct_grad")
        self.follows = overrides(strategy, "after_step")
        self._parts: dict[str, tuple[Tensor, Vectors, Vectors]] = {}
        if not (self.corrects or self.follows):
            return
        own = {
            key: torch.stack([memory[key] for memory in memories]).to(device)
            for key in elementwise(memories[0], layout)
        }
        sent = {key: v.to(device) for key, v in elementwise(shared, layout).items()}
        near = anchor.to(device)
        for entry in layout.parameters:
            if entry.name in names:
                span = slice(entry.offset, entry.offset + entry.size)
                mine = {key: v[:, span].view(len(v), *entry.shape) for key, v in own.items()}
                self._parts[entry.name] = entry.of(near), {key: entry.of(v) for key, v in sent.items()}, mine

    def correct(self, grads: Tensors, params: Mapping[str, Tensor], steps: Mapping[str, Step]) -> Tensors:
        """Gradients, before clipping; those of parameters that a site keeps to itself are left."""
        return grads | {
            name: vmap(self.strategy.correct_grad, in_dims=(0, 0, None, None, 0, None), randomness="error")(
                grads[name], params[name], *self._for(name, len(params[name])), steps[name]
            )
            for name in self._parts
        }

    def follow(self, params: Mapping[str, Tensor], steps: Mapping[str, Step]) -> None:
        """Parameters, after the optimiser's step."""
        for name in self._parts:
            p = params[name]
            after = vmap(self.strategy.after_step, in_dims=(0, None, None, 0, None), randomness="error")
            p.copy_(after(p, *self._for(name, len(p)), steps[name]))

    def _for(self, name: str, active: int) -> tuple[Tensor, Vectors, Vectors]:
        anchor, shared, memory = self._parts[name]
        return anchor, shared, {key: v[:active] for key, v in memory.items()}


def clip(grads: Tensors, bound: float) -> None:
    """Clips each site's gradient to a norm, in place, as torch.nn.utils.clip_grad_norm_ does for one."""
    norms = torch.stack([g.reshape(len(g), -1).norm(dim=1) for g in grads.values()], 1).norm(dim=1)  # [a]
    scale = (bound / (norms + ROUNDED)).clamp(max=1.0)
    for g in grads.values():
        g.mul_(scale.view(-1, *[1] * (g.dim() - 1)))
