"""Gradients of many sites' losses at once, by torch.func.vmap."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from hansa.metrics import mean_loss
from hansa.task import Task, output_of
from simulations.cohort.stack import Stack

Tensors = dict[str, Tensor]  # by name, each [a, ...]


class Gradients(Protocol):
    """How gradients of a step are found."""

    def step(self, params: Tensors, buffers: Tensors, stack: Stack, s: int) -> tuple[Tensor, Tensors]:
        """Losses [a] and gradients of the sites that have a step left; buffers change in place."""
        ...


class VmapGradients:
    """Of any model that `torch.func.vmap` can take.

    Sites are put together whose batches have the same number of rows: nothing is padded, so that a layer that looks
    across rows, as BatchNorm, and a loss of the task's own see what they would see alone.
    """

    def __init__(self, task: Task, model: nn.Module) -> None:
        self._loss = _Loss(task, model)
        # Dropout draws for each site by itself.
        self._run = vmap(grad_and_value(self._call), in_dims=(0, 0, 0), randomness="different")

    def step(self, params: Tensors, buffers: Tensors, stack: Stack, s: int) -> tuple[Tensor, Tensors]:
        """See Gradients."""
        active = len(next(iter(params.values())))
        sizes = stack.sizes[s, :active]
        common = int(sizes[0])
        if bool((sizes == common).all()):
            grads, losses = self._of(params, buffers, stack, [leaf[s, :active, :common] for leaf in stack.leaves])
            return losses, grads
        losses = torch.empty(active, device=stack.leaves[0].device)
        grads = {name: torch.empty_like(p) for name, p in params.items()}
        for size in sorted(set(sizes.tolist())):
            at = (sizes == size).nonzero().flatten().to(losses.device)
            mine, kept = ({n: t[at] for n, t in tensors.items()} for tensors in (params, buffers))
            found, losses[at] = self._of(mine, kept, stack, [leaf[s, at, :size] for leaf in stack.leaves])
            for name, one in found.items():
                grads[name][at] = one
            for name, one in kept.items():
                buffers[name][at] = one
        return losses, grads

    def _of(self, params: Tensors, buffers: Tensors, stack: Stack, leaves: Sequence[Tensor]) -> tuple[Tensors, Tensor]:
        found: tuple[Tensors, Tensor] = self._run(params, buffers, stack.batch(leaves))
        return found[0], found[1].detach()

    def _call(self, params: Tensors, buffers: Tensors, batch: Any) -> Tensor:
        return mean_loss(functional_call(self._loss, _prefixed(params) | _prefixed(buffers), (batch,)))


class _Loss(nn.Module):
    """A task's loss as a module of the model, so that what the task calls has the tensors that are given."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self.task, self.model = task, model

    def forward(self, batch: Any) -> Tensor:
        return self.task.loss(*output_of(self.task, self.model, batch))


def _prefixed(tensors: Mapping[str, Tensor]) -> Tensors:
    return {f"model.{name}": tensor for name, tensor in tensors.items()}
