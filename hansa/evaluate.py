"""Scoring a model on a dataset."""

from typing import Any

import torch
from torch import Tensor, nn

from hansa.metrics import Sums, as_sums, mean_loss, ratio, total
from hansa.task import Dataset, Task, collate, output_of

EVALUATION_ROWS = 256  # the least batch: no gradient is kept


@torch.no_grad()
def evaluate(task: Task, model: nn.Module, dataset: Dataset, batch_size: int, device: torch.device) -> Sums:
    """The task's metric sums over all rows, and "loss". Draws from no random generator."""
    model.eval()
    sums: Sums = {}
    for start in range(0, len(dataset), batch_size):
        rows = range(start, min(start + batch_size, len(dataset)))
        output, target = output_of(task, model, to_device(collate(dataset, rows), device))
        loss = ratio(mean_loss(task.loss(output, target)) * len(rows), len(rows))
        sums = total([sums, {"loss": loss, **as_sums(task.metrics(output, target))}])
    return sums


def to_device(batch: Any, device: torch.device) -> Any:
    """A batch with all its tensors on the device; tuples, lists and dicts are walked through."""
    match batch:
        case Tensor():
            return batch.to(device, non_blocking=True)
        case dict():
            return {key: to_device(value, device) for key, value in batch.items()}
        case tuple() if hasattr(batch, "_fields"):  # a named one
            return type(batch)(*(to_device(value, device) for value in batch))
        case list() | tuple():
            return type(batch)(to_device(value, device) for value in batch)
        case _:
            return batch
