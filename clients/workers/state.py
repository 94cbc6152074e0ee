"""All that a pass of training is in its middle, as plain values and tensors, and back."""

import random
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from clients.workers.progress import Progress


class Stateful(Protocol):
    """An optimiser, a scheduler, and the like."""

    def state_dict(self) -> dict[str, Any]:
        """What it is."""
        ...

    def load_state_dict(self, state: Any, /) -> None:
        """Puts that back."""
        ...


class Tensors:
    """Tensors whose values change, each in its place.

    Args:
        of: by name.
    """

    def __init__(self, of: Mapping[str, Tensor]) -> None:
        self.of = of

    def state_dict(self) -> dict[str, Any]:
        """See Stateful."""
        return dict(self.of)

    @torch.no_grad()
    def load_state_dict(self, state: Any, /) -> None:
        """See Stateful."""
        for name, tensor in self.of.items():
            tensor.copy_(state[name])


class Generators:
    """The global generators, as `hansa.seeds.seeded` has them: torch's, NumPy's, Python's.

    Args:
        device: whose generator counts beside the CPU's.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def state_dict(self) -> dict[str, Any]:
        """See Stateful."""
        name, numbers, *rest = np.random.get_state(legacy=True)
        state = {
            "torch": torch.get_rng_state(),
            "numpy": [name, torch.from_numpy(np.asarray(numbers, dtype=np.int64)), *rest],
            "python": random.getstate(),
        }
        return state | ({"cuda": torch.cuda.get_rng_state(self.device)} if self.device.type == "cuda" else {})

    def load_state_dict(self, state: Any, /) -> None:
        """See Stateful."""
        torch.set_rng_state(state["torch"].cpu())
        name, numbers, *rest = state["numpy"]
        np.random.set_state((name, numbers.cpu().numpy().astype(np.uint32), *rest))
        random.setstate(state["python"])
        if "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"].cpu(), self.device)


class Pass:
    """One pass over batches, which can be cut off.

    Args:
        progress: where it is kept how far it is.
        own: what changes in this rank, by name.
        common: what changes alike in all ranks; the first one's is kept.
        device: of all that.
    """

    def __init__(
        self, progress: Progress, own: Mapping[str, Stateful], common: Mapping[str, Stateful], device: torch.device
    ) -> None:
        self.progress, self.own, self.common, self.device = progress, own, common, device

    def resume(self) -> int:
        """Brings everything to where it was when it was last kept; how many batches were done by then."""
        if (found := self.progress.load(self.device)) is None:
            return 0
        step, *states = found
        for parts, state in zip((self.own, self.common), states, strict=True):
            for name, part in parts.items():
                part.load_state_dict(state[name])
        return step

    def took(self, batches: int) -> None:
        """So many batches are done."""
        if self.progress.due(batches):
            own, common = ({n: part.state_dict() for n, part in parts.items()} for parts in (self.own, self.common))
            self.progress.save(batches, own, common)
