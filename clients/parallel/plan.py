"""A task's plan of tensor parallelism: which layers are cut, and along what."""

import fnmatch
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from hansa.errors import UserError
from hansa.task import Task

STYLES: Mapping[str, Callable[[], ParallelStyle]] = {
    "colwise": ColwiseParallel,
    "rowwise": RowwiseParallel,
    "colwise_gather": lambda: ColwiseParallel(output_layouts=Replicate()),
    "rowwise_embedding": lambda: RowwiseParallel(input_layouts=Replicate()),
}


def plan_of(task: Task, model: nn.Module, tp: int) -> dict[str, ParallelStyle]:
    """The styles of a model's layers, by name.

    Raises:
        UserError: the task has no plan, or one that is not the model's.
    """
    where = f"task {type(task).__name__}"
    plan: object = task.parallel_plan(model)
    if plan is None:
        mend = "define Task.parallel_plan, or use shard in place of tp"
        raise UserError(f"{where}: it has no plan for tensor parallelism; {mend}")
    if not isinstance(plan, Mapping) or not plan:
        raise UserError(
            f"{where}: parallel_plan gave {type(plan).__name__}; return styles by name, e.g. 'up': 'colwise'"
        )
    layers = dict(model.named_modules())
    found: dict[str, ParallelStyle] = {}
    for pattern, style in plan.items():
        names = fnmatch.filter(layers, pattern)
        if not names:
            raise UserError(f"{where}: parallel_plan names {pattern!r}, and the model has no layer of that name")
        for name in names:
            found[name] = _style(style, where)
            for one, tensor, along in _cut(layers[name], style):
                if tensor.shape[along] % tp:
                    said = f"{name}.{one} has {tensor.shape[along]} of what tp = {tp} must divide"
                    raise UserError(f"{where}: parallel_plan: {said}; choose tp, or the layer's size, so that it does")
    return found


def _style(style: Any, where: str) -> ParallelStyle:
    if isinstance(style, ParallelStyle):
        return style
    if isinstance(style, str) and style in STYLES:
        return STYLES[style]()
    raise UserError(f"{where}: parallel_plan has style {style!r}; use {', '.join(STYLES)}, or one of torch's")


def _cut(layer: nn.Module, style: Any) -> Iterator[tuple[str, Tensor, int]]:
    """What our own styles cut of a layer, and along which dimension."""
    linear = isinstance(layer, nn.Linear)
    for name, tensor in layer.named_parameters(recurse=False):
        if style in ("colwise", "colwise_gather"):
            yield name, tensor, 0 if linear else 1
        elif style in ("rowwise", "rowwise_embedding") and name == "weight":
            yield name, tensor, 1 if linear else 0
