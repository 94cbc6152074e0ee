"""A task's model, made once, and what of it is shared."""

from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file, save_model
from torch import Tensor, nn

from hansa.base import Base
from hansa.errors import UserError
from hansa.files import whole
from hansa.frozen import Frozen, fill
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
    """A model to work on. One serves all sites of a process: each plan loads all of its tensors that move first.

    Args:
        task: whose model it is.
        local: patterns of tensors that a site keeps to itself.
        seed: the run's.
        device: where the model goes.
        base: what its frozen tensors are; None: as the task makes them.

    Raises:
        UserError: the model, or the base, cannot be used.
    """

    def __init__(
        self, task: Task, local: Sequence[str], seed: int, device: torch.device, base: Base | None = None
    ) -> None:
        self._make(task, local, seed, base)
        self.start = self.shared.read(self.model), self.shared.read_counters(self.model)
        self._local_start = self._read_local()
        self.model.to(device)
        self.device = device
        self.frozen = Frozen(self.model) if task.trainable_only else None

    def _make(self, task: Task, local: Sequence[str], seed: int, base: Base | None) -> None:
        """The model, and what of it is shared and what is local; neither has a frozen tensor under `trainable_only`."""
        with seeded(seed, "model"):
            self.model = new_model(task)
        only, name = task.trainable_only, f"task {type(task).__name__}"
        if only and not any(p.requires_grad for p in self.model.parameters()):
            raise UserError(
                f"{name}: trainable_only, and no parameter requires a gradient; leave the adapters unfrozen"
            )
        if base is not None:
            if not only:
                raise UserError(f"[base]: {name} shares all of its model; set trainable_only = True in it")
            fill(self.model, base, task.base_name)
        self.shared = Layout.of(self.model, without=local, trainable=only)
        self.local = Layout.of(self.model, only=local, trainable=only)

    def load(self, params: Tensor, counters: Tensor, memory: Vectors) -> nn.Module:
        """The model of shared floats [P] and counters [C], its local layers from a site's memory."""
        if self.frozen is not None:
            self.frozen.restore()
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

    def check_frozen(self) -> None:
        """That training has moved nothing which is not shared.

        Raises:
            UserError: it has.
        """
        if self.frozen is not None:
            self.frozen.check()

    def save(self, params: Tensor, counters: Tensor, path: Path) -> None:
        """Writes the model of shared floats [P] and counters [C] as safetensors, whole or not at all.

        Where only what is trained is shared, the file has nothing else.
        """
        with whole(path) as temporary:
            if self.frozen is None:
                save_model(self.load(params, counters, {}), str(temporary))
            else:
                save_file({e.name: e.of(params).to(e.dtype) for e in self.shared.floats}, str(temporary))

    def keep_local(self, memory: Vectors) -> Vectors:
        """The memory with the model's local layers, where there are any."""
        return {**memory, **self._read_local()} if self.local.size or self.local.n_counters else memory

    def _read_local(self) -> dict[str, Tensor]:
        return {LOCAL: self.local.read(self.model), LOCAL_COUNTERS: self.local.read_counters(self.model)}
