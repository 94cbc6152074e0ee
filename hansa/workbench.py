"""A task's model, made once, and what of it is shared."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_model
from torch import Tensor, nn

from hansa.errors import UserError
from hansa.files import whole
from hansa.layout import Layout
from hansa.records import Vectors
from hansa.seeds import seeded
from hansa.task import Task

LOCAL, LOCAL_COUNTERS = "local.floats", "local.counters"  # the layers that a site keeps to itself, in its memory


def new_model(task: Task) -> nn.Module:
    """A new model of the task's.

    Raises:
        UserError: it is none.
    """
    model: object = task.model()
    if not isinstance(model, nn.Module):
        got = f"the class {model.__name__}" if isinstance(model, type) else type(model).__name__
        raise UserError(f"task {type(task).__name__}: model gave {got}; return a torch.nn.Module, e.g. nn.Linear(4, 1)")
    return model


class Workbench:
    """A model to work on. One serves all sites of a process: each plan loads all of its tensors first."""

    def __init__(self, task: Task, local: Sequence[str], seed: int, device: torch.device) -> None:
        with seeded(seed, "model"):
            self.model = new_model(task)
        self.shared = Layout.of(self.model, without=local)
        self.local = Layout.of(self.model, only=local)
        self.start = self.shared.read(self.model), self.shared.read_counters(self.model)
        self._local_start = self._read_local()
        self.model.to(device)
        self.device = device

    def load(self, params: Tensor, counters: Tensor, memory: Vectors) -> nn.Module:
        """The model of shared floats [P] and counters [C], its local layers from a site's memory."""
        self.shared.write(params, self.model)
        self.shared.write_counters(counters, self.model)
        local = memory if LOCAL in memory else self._local_start
        self.local.write(local[LOCAL], self.model)
        self.local.write_counters(local[LOCAL_COUNTERS], self.model)
        return self.model

    def write(self, params: Tensor) -> nn.Module:
        """The model, of whose tensors the shared floats [P] are put in anew."""
        self.shared.write(params, self.model)
        return self.model

    def save(self, params: Tensor, counters: Tensor, path: Path) -> None:
        """Writes the model of shared floats [P] and counters [C] as safetensors, whole or not at all."""
        with whole(path) as temporary:
            save_model(self.load(params, counters, {}), str(temporary))

    def keep_local(self, memory: Vectors) -> Vectors:
        """The memory with the model's local layers, where there are any."""
        return {**memory, **self._read_local()} if self.local.size or self.local.n_counters else memory

    def _read_local(self) -> dict[str, Tensor]:
        return {LOCAL: self.local.read(self.model), LOCAL_COUNTERS: self.local.read_counters(self.model)}
