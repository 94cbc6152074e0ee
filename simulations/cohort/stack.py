"""The batches of many sites, step by step, in one buffer for each tensor of a batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from hansa.seeds import seeded
from hansa.task import Task, is_whole
from simulations.cohort.unfit import Unfit
from simulations.cohort.work import Work


@dataclass(frozen=True)
class Stack:
    """Rows beyond a batch's size are zeros, which nothing may look at."""

    leaves: list[Tensor]  # each [S, K, B, ...]
    spec: pytree.TreeSpec  # how a batch is made of them
    sizes: Tensor  # [S, K] int64: rows of each batch; 0 where a site has no step left

    def batch(self, leaves: Sequence[Tensor]) -> Any:
        """A batch as the task knows it, of parts of the buffers."""
        return pytree.tree_unflatten(list(leaves), self.spec)


def stacked(task: Task, works: Sequence[Work], device: torch.device) -> Stack:
    """The batches that each site would see alone, in the same order.

    Raises:
        Unfit: they are not of tensors with a row each, of one shape at all sites.
    """
    return _gathered(works, device) if drawless(task, works) else _listed(works)


def drawless(task: Task, works: Sequence[Work]) -> bool:
    """Whether rows come by their numbers alone, so that nothing is drawn and no code of the task's runs."""
    plain = type(task).batch_transform is Task.batch_transform
    return plain and all(is_whole(work.begun.train) and not work.batches.workers for work in works)


def _gathered(works: Sequence[Work], device: torch.device) -> Stack:
    """Of whole tensors, a site's rows of all steps at once."""
    steps, size = works[0].steps, max(min(work.batches.size, len(work.begun.train)) for work in works)
    first: Any = works[0].begun.train
    leaves = [t.new_zeros((steps, len(works), size, *t.shape[1:])) for t in first.tensors]
    sizes = torch.zeros(steps, len(works), dtype=torch.int64)
    for k, work in enumerate(works):
        train: Any = work.begun.train
        _check_alike(train.tensors, first.tensors)
        rows, counts = work.batches.table()  # [S, B], [S]
        sizes[: len(counts), k] = counts
        for leaf, tensor in zip(leaves, train.tensors, strict=True):
            there = leaf[: len(counts), k, : rows.shape[1]]
            there.copy_(tensor[rows.reshape(-1)].view_as(there))
    return Stack([leaf.to(device) for leaf in leaves], pytree.tree_structure(first.tensors), sizes)


def _listed(works: Sequence[Work]) -> Stack:
    """Of anything else, batch by batch, as the task makes them."""
    leaves: list[Tensor] = []
    spec: pytree.TreeSpec | None = None
    sizes = torch.zeros(works[0].steps, len(works), dtype=torch.int64)
    for k, work in enumerate(works):
        with seeded(*work.batches.purpose, "train"):
            for s, batch in enumerate(work.batches):
                found, shape = pytree.tree_flatten(batch)
                count = _rows(found)
                if spec is None:
                    spec, size = shape, work.batches.size
                    leaves = [t.new_zeros((len(sizes), len(works), size, *t.shape[1:])) for t in found]
                if shape != spec:
                    raise Unfit("batches are not made alike at all sites")
                _check_alike(found, [leaf[0, 0] for leaf in leaves])
                sizes[s, k] = count
                for leaf, tensor in zip(leaves, found, strict=True):
                    leaf[s, k, :count] = tensor
    assert spec is not None  # no site without rows comes here
    return Stack(leaves, spec, sizes)


def _rows(leaves: Sequence[Any]) -> int:
    counts = {len(leaf) if isinstance(leaf, Tensor) and leaf.dim() else -1 for leaf in leaves}
    if len(counts) != 1 or -1 in counts:
        raise Unfit("a batch is not of tensors with an entry a row")
    return counts.pop()


def _check_alike(found: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    alike = [(t.shape[1:], t.dtype) for t in found] == [(t.shape[1:], t.dtype) for t in others]
    if not alike:
        raise Unfit("rows are not of one shape and type at all sites")
