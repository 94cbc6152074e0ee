"""All that a pass of training is in its middle, as plain values and tensors, and back."""

import random
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from clients.workers.progress import Progress, State


class Stateful(Protocol):
    """An optimiser, a scheduler, and the like."""

    def state_dict(self) -> dict[str, Any]:
        """What it is."""
        ...

    def load_state_dict(self, state: Any, /) -> None:
        """Puts that back."""
        ...


class Pass:
    """One pass over batches, which can be cut off.

    Args:
        progress: where it is kept how far it is.
        model: that is trained.
        stateful: what else changes, by name, alike in all ranks.
        device: of the model.
    """

    def __init__(
        self, progress: Progress, model: nn.Module, stateful: Mapping[str, Stateful], device: torch.device
    ) -> None:
        self.progress, self.model, self.stateful, self.device = progress, model, stateful, device

    def resume(self) -> int:
        """Brings everything to where it was when it was last kept; how many batches were done by then."""
        if (found := self.progress.load(self.device)) is None:
            return 0
        step, own, common = found
        _put(common["model"], dict(self.model.named_parameters()))
        _put(own["buffers"], dict(self.model.named_buffers()))
        for name, one in self.stateful.items():
            one.load_state_dict(common[name])
        set_random_state(own, self.device)
        return step

    def took(self, batches: int) -> None:
        """So many batches are done."""
        if self.progress.due(batches):
            own = {"buffers": dict(self.model.named_buffers()), **random_state(self.device)}
            common = {name: one.state_dict() for name, one in self.stateful.items()}
            self.progress.save(batches, own, {"model": dict(self.model.named_parameters()), **common})


def random_state(device: torch.device) -> dict[str, Any]:
    """The states of the global generators, as `hansa.seeds.seeded` has them: torch's, NumPy's, Python's."""
    name, numbers, *rest = np.random.get_state(legacy=True)
    state = {
        "torch": torch.get_rng_state(),
        "numpy": [name, torch.from_numpy(np.asarray(numbers, dtype=np.int64)), *rest],
        "python": random.getstate(),
    }
    return state | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def set_random_state(state: State, device: torch.device) -> None:
    """Puts the generators back; see `random_state`."""
    torch.set_rng_state(state["torch"].cpu())
    name, numbers, *rest = state["numpy"]
    np.random.set_state((name, numbers.cpu().numpy().astype(np.uint32), *rest))
    random.setstate(state["python"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)


@torch.no_grad()
def _put(state: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        tensor.copy_(state[name])
