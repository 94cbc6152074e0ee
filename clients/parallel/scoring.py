"""Scoring a model over the ranks of a site: each takes its part of the rows, and the sums are added."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from clients.parallel.bench import ParallelBench, reduced
from clients.parallel.slicer import Share, cast
from clients.parallel.wrap import settle
from hansa.evaluate import to_device
from hansa.metrics import Sums, as_sums, mean_loss, ratio, total
from hansa.task import Dataset, Task, collate, output_of


@torch.no_grad()
def evaluate(task: Task, bench: ParallelBench, dataset: Dataset, batch_size: int) -> Sums:
    """See `hansa.evaluate.evaluate`; the same sums at each rank. Draws from no random generator."""
    bench.model.eval()
    share, sums = Share(bench.rows.get_local_rank(), bench.degrees.cuts), Sums()
    for start in range(0, len(dataset), batch_size * share.of):
        rows = range(start, min(start + batch_size * share.of, len(dataset)))
        (piece,) = share.cut(rows)
        found = _of(task, bench, to_device(collate(dataset, piece.rows), bench.device), piece.rows)
        sums = total([sums, found if piece.counted else {name: torch.zeros_like(one) for name, one in found.items()}])
    settle(bench.call)
    return _added(sums, bench)


def _of(task: Task, bench: ParallelBench, batch: Any, rows: Sequence[int]) -> Sums:
    if bench.keys.precision == "float64":
        batch = cast(batch, torch.float64)

    def call(model: nn.Module, batch: Any) -> tuple[Any, Any]:
        return output_of(task, model, batch)

    output, target = bench.call(call, batch)
    loss = ratio(mean_loss(task.loss(output, target)) * len(rows), len(rows))
    return {"loss": loss, **as_sums(task.metrics(output, target))}


def _added(sums: Sums, bench: ParallelBench) -> Sums:
    if not sums:
        return sums
    names = sorted(sums)
    flat: Tensor = torch.cat([sums[name].reshape(-1) for name in names]).to(bench.device)
    parts = torch.split(reduced(flat, bench).cpu(), [sums[name].numel() for name in names])
    return {name: part.view(sums[name].shape) for name, part in zip(names, parts, strict=True)}
