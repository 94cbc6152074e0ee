"""The loss of each row by itself, whatever a task's loss makes of many: what couples rows, clipping cannot bound."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_flatten, tree_unflatten

from clients.gradients import Unfit
from hansa.metrics import mean_loss
from hansa.task import Task, output_of


class RowLoss:
    """The sum of a batch's losses, each from one row of the model's output and its target.

    Args:
        task: whose loss it is.
    """

    def __init__(self, task: Task) -> None:
        self.task, self.mapped = task, True

    def __call__(self, model: nn.Module, batch: Any, rows: int) -> Tensor:
        """One forward pass; the loss is mapped over rows where it can be, and asked of each in turn where not.

        Raises:
            Unfit: output or target are other things than tensors of rows.
        """
        output, target = output_of(self.task, model, batch)
        if rows == 1:
            return mean_loss(self.task.loss(output, target))
        leaves, spec = tree_flatten((output, target))
        places = [place for place, leaf in enumerate(leaves) if leaf is not None]
        parts = [leaves[place] for place in places]
        if not all(isinstance(part, Tensor) and part.dim() and len(part) == rows for part in parts):
            raise Unfit("an output or target of other things than tensors of rows")

        def one(*row: Tensor) -> Tensor:
            given: list[Any] = [None] * len(leaves)
            for place, part in zip(places, row, strict=True):
                given[place] = part
            return mean_loss(self.task.loss(*tree_unflatten(given, spec)))

        if self.mapped:
            try:
                each = vmap(lambda *row: one(*(part.unsqueeze(0) for part in row)), randomness="different")(*parts)
                return each.sum()
            except Exception:  # a loss that asks what numbers are, prints them, or works in place
                self.mapped = False
        return torch.stack([one(*row) for row in zip(*(part.split(1) for part in parts), strict=True)]).sum()
