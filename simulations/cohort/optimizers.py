"""One of torch's optimisers on stacked parameters: element by element, a stack is as good as a tensor."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from simulations.cohort.unfit import Unfit

ELEMENTWISE = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
)  # whose state begins with the first step


def stack_on(optimizer: Optimizer, moving: Mapping[str, nn.Parameter], stacks: Mapping[str, Tensor]) -> None:
    """Lets a new optimiser move stacks in place of the model's parameters.

    Raises:
        Unfit: it does more than element by element.
    """
    if type(optimizer) not in ELEMENTWISE:
        raise Unfit(f"the optimiser {type(optimizer).__name__} is not known to work element by element")
    stack_of = {id(p): stacks[name] for name, p in moving.items()}
    for group in optimizer.param_groups:
        group["params"] = [stack_of[id(p)] for p in group["params"]]


def shrink(optimizer: Optimizer, params: Mapping[str, Tensor], active: int) -> dict[str, Tensor]:
    """Lets the optimiser go on with the first `active` sites; gives their parameters, as views."""
    fewer = {name: p[:active] for name, p in params.items()}
    new = {id(p): fewer[name] for name, p in params.items()}
    for group in optimizer.param_groups:
        group["params"] = [_moved(optimizer, p, new[id(p)]) for p in group["params"]]
    return fewer


def _moved(optimizer: Optimizer, old: Tensor, new: Tensor) -> Tensor:
    state: dict[str, Any] = optimizer.state.pop(old, {})
    if state:
        optimizer.state[new] = {key: _part(value, old, len(new)) for key, value in state.items()}
    return new


def _part(value: Any, old: Tensor, active: int) -> Any:
    return value[:active] if isinstance(value, Tensor) and value.shape == old.shape else value
