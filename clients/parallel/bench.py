"""A task's model over the ranks of a site: what `hansa.workbench` is where one process has all of it."""

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from warnings import catch_warnings

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from clients.parallel import shards
from clients.parallel.config import Degrees, ParallelKeys
from clients.parallel.degrees import chosen, needed, room
from clients.parallel.plan import plan_of
from clients.parallel.ranks import Ranks
from clients.parallel.slicer import Share
from clients.parallel.wrap import check, mesh_of, settle, wrapped
from hansa.base import Base
from hansa.draft import Draft
from hansa.errors import UserError
from hansa.frozen import Frozen
from hansa.records import Vectors
from hansa.task import Task
from hansa.workbench import LOCAL, LOCAL_COUNTERS, Workbench

MMAP_THRESHOLD, MIB = -3, 1 << 20  # of glibc's malloc.h: what is larger is mapped by itself


class ParallelBench(Workbench):
    """A model over W ranks, made and spread once a run; each plan loads all of its tensors first.

    All ranks make one, and call its methods in the same order. What is read is read at rank 0.

    Args:
        task: whose model it is.
        local: patterns of tensors that the site keeps to itself.
        seed: the run's.
        device: this rank's.
        ranks: of the site.
        keys: [training] of site.toml.
        base: what the frozen tensors are; None: as the task makes them.

    Raises:
        UserError: the model cannot be spread so.
    """

    def __init__(
        self,
        task: Task,
        local: Sequence[str],
        seed: int,
        device: torch.device,
        ranks: Ranks,
        keys: ParallelKeys,
        base: Base | None = None,
    ) -> None:
        self._make(task, local, seed, base)
        self.device, self.ranks, self.keys, self.said = device, ranks, keys, ""
        if keys.precision == "float64":
            self.model.double()
        self.degrees = self._choose() if keys.parallel is None else keys.parallel.over(ranks.world)
        check(self.model, self.degrees, keys)
        if self.degrees.tp > 1 and task.trainable_only:
            mend = "use shard in place of tp"
            raise UserError(f"task {type(task).__name__}: trainable_only does not go with tensor parallelism; {mend}")
        plan = plan_of(task, self.model, self.degrees.tp) if self.degrees.tp > 1 else {}
        if device.type == "cuda":
            torch.cuda.set_device(device)
        elif self.degrees.shard > 1:
            _give_back()
        self.mesh = mesh_of(self.degrees, device, ranks.patience)
        self.rows = self.mesh[next(iter(self.mesh.mesh_dim_names or ()))]  # ranks among which a batch is cut
        self._local_start = self._own()
        kept = self.degrees.whole and keys.precision != "float64"  # [dp] needs it, and is refused otherwise
        self._first = (self.shared.read(self.model), self.shared.read_counters(self.model)) if kept else None
        self.call = wrapped(self.model, self.degrees, keys, self.mesh, plan, device)
        self.frozen = Frozen(self.model) if task.trainable_only else None
        self.ddp: tuple[frozenset[str], DistributedDataParallel] | None = None
        self.file: Path | None = None
        self.draft: Draft | None = None

    @property
    def share(self) -> Share:
        """This rank's part of a batch."""
        return Share(self.rows.get_local_rank(), self.degrees.cuts, self.keys.accumulation)

    @property
    def start(self) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # of one process it is kept
        """The model that the run starts with, [P] and [C], at all ranks; that of now, where it is in parts."""
        return self._first or (self.everywhere(), self.shared.read_counters(self.model))

    def load(self, params: Tensor, counters: Tensor, memory: Vectors) -> nn.Module:
        """See Workbench; each rank has the vectors, and takes its own parts of them."""
        self.write(params)
        if self.frozen is not None:
            self.frozen.restore()
        self.shared.write_counters(counters, self.model)
        kept = memory if LOCAL in memory else self._local_start
        shards.load(kept[LOCAL], self.model, self.local)
        self.local.write_counters(kept[LOCAL_COUNTERS], self.model)
        return self.model

    def write(self, params: Tensor) -> nn.Module:
        """Puts shared floats [P] into the model."""
        settle(self.call)
        shards.load(params, self.model, self.shared)
        return self.model

    def read(self) -> Tensor | None:
        """The shared floats [P] at rank 0, None at the others: no more than this one copy is made."""
        settle(self.call)
        out = torch.empty(self.shared.size) if self.ranks.leads else None
        shards.read(self.model, self.shared, out)
        return out

    def everywhere(self) -> Tensor:
        """The shared floats [P], at all ranks."""
        vector = self.read()
        vector = torch.empty(self.shared.size) if vector is None else vector
        return self.ranks.from_lead(vector.to(self.device)).cpu()

    def draft_in(self, file: Path) -> None:
        """Names a file for the next update: ranks of one machine write what they hold straight into it."""
        self.file, self.draft = file if self.shared.size else None, None

    def update(self, anchor: Tensor) -> Tensor:
        """The shared floats [P] less an anchor [P] at rank 0, `draft` if it was drafted; zeros at the others."""
        settle(self.call)
        if (draft := self._drafted()) is not None:
            shards.subtract(self.model, self.shared, anchor, draft.vector)
            self.ranks.wait()
            self.draft = draft if self.ranks.leads else None
            vector = None if self.draft is None else draft.vector
        elif (vector := self.read()) is not None:
            vector.sub_(anchor)
        return torch.zeros(1).expand(self.shared.size) if vector is None else vector

    def _drafted(self) -> Draft | None:
        """The file for the update, if one is named and all ranks find it: another machine's may not."""
        if (file := self.file) is None:
            return None
        self.file = None
        made = Draft.make(file, self.shared.size) if self.ranks.leads else None
        self.ranks.wait()
        return (made or Draft.open(file, self.shared.size)) if self.ranks.alike(Draft.mark(file)) else None

    def keep_local(self, memory: Vectors) -> Vectors:
        """See Workbench; the others' is without."""
        if not (self.local.size or self.local.n_counters):
            return memory
        settle(self.call)
        return {**memory, **self._own()}

    def path(self, moving: Mapping[str, nn.Parameter]) -> nn.Module:
        """What is called in training: the call of the model, under DDP where the rows alone are shared."""
        if self.degrees.dp == 1:
            return self.call
        names = frozenset(moving)
        if self.ddp is None or self.ddp[0] != names:
            self.ddp = None  # its buckets are of the gradients' size: first away with the old ones
            with catch_warnings(action="ignore", category=FutureWarning):  # broadcast_buffers: torch >= 2.13 renames it
                path = DistributedDataParallel(
                    self.call,
                    process_group=self.rows.get_group(),
                    init_sync=False,
                    broadcast_buffers=False,
                    gradient_as_bucket_view=True,
                    find_unused_parameters=True,  # one without a gradient has none afterwards, as in one process
                )
            self.ddp = names, path
        return self.ddp[1]

    def within(self, path: nn.Module, last: bool) -> AbstractContextManager[None]:
        """Around a pass: DDP reduces gradients at the last piece; FSDP2 reduces each time, to keep no whole one."""
        if isinstance(path, DistributedDataParallel) and not last:
            return path.no_sync()
        return nullcontext()

    def check_owns(self, model: nn.Module) -> None:
        """Refuses another model than that which is spread.

        Raises:
            UserError: it is one.
        """
        if model is not self.model:
            mend = "give ctx.fit the model that it was given, or set procs = 1 in site.toml"
            raise UserError(f"[strategy]: it trains a model of its own, which is not spread over the processes; {mend}")

    def _own(self) -> dict[str, Tensor]:
        floats = torch.zeros(self.local.size)
        shards.read(self.model, self.local, floats if self.ranks.leads else None)
        return {LOCAL: self.ranks.from_lead(floats), LOCAL_COUNTERS: self.local.read_counters(self.model)}

    def _choose(self) -> Degrees:
        """As rank 0 finds: memory that is free is not the same at each."""
        split, line = chosen(needed(self.model), room(self.device, self.ranks.world), self.ranks.world)
        whole = self.ranks.from_lead(torch.tensor(int(split.whole), device=self.device))
        self.said = line
        return Degrees(dp=self.ranks.world) if whole else Degrees(shard=self.ranks.world)


def _give_back() -> None:
    """Has freed tensors go back to the system: glibc would keep the layers that FSDP2 makes whole and frees again."""
    if hasattr(libc := ctypes.CDLL(None), "mallopt"):
        libc.mallopt(MMAP_THRESHOLD, MIB)


def reduced(values: Tensor, bench: ParallelBench) -> Tensor:
    """The sum over the ranks among which rows are cut, in place."""
    dist.all_reduce(values, group=bench.rows.get_group())
    return values
