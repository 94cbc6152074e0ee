"""What is simulated, as each process that works on it sets it up for itself."""

import copy
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import torch

from clients.memory import MemoryInRam, MemoryOnDisk, MemoryStore
from clients.site import SiteHalf
from hansa.base import Base
from hansa.layout import Layout
from hansa.records import Part, Plan
from hansa.seeds import key, seeded
from hansa.task import Site, Source, Task
from hansa.workbench import Workbench
from privacy.secure import Secure
from server.cohort import Collector
from simulations.engines.rayconfig import RayTable
from simulations.securesum import SecureCollector
from simulations.stragglers import Stragglers
from strategies.base import Strategy

KEPT = 1024  # sites that a process keeps at hand, with their rows


@dataclass(frozen=True)
class Setting:
    """What is simulated."""

    task: Task
    strategy: Strategy
    sources: Mapping[str, Source | None]  # site -> its data; None: the task finds them
    seed: int
    device: torch.device
    loaders: int = 0  # processes that load rows, for each site that trains
    memory: Path | None = None  # folder of the sites' memory; None: it ends with the process
    durable: bool = True  # whether that folder is to outlive the machine
    stragglers: Stragglers | None = None
    parts: Mapping[str, Part] = field(default_factory=dict)  # what the strategy uploads
    secure: Secure | None = None  # how updates are summed; None: without secure aggregation
    private: bool = False  # whether sites train by DP-SGD
    seeding: Callable[..., AbstractContextManager[None]] = seeded  # of what a site's training draws
    base: Base | None = None  # what the tensors that are not trained are; None: as the task makes them
    ray: RayTable = field(default_factory=RayTable)

    @property
    def streams(self) -> bool:
        """Whether the task has batches of its own, whose stream lives as long as the run."""
        return type(self.task).batches is not Task.batches

    def bench(self) -> Workbench:
        """A model to work on; it starts alike in every process."""
        return Workbench(self.task, self.strategy.local, self.seed, self.device, self.base)

    def collector(self, plan: Plan, asked: Sequence[str], layout: Layout) -> Collector:
        """An empty sum of what the sites asked, or some of them, answer to a plan."""
        if self.secure is None:
            return Collector(plan, asked, self.parts, layout, len(self.sources))
        return SecureCollector(plan, asked, self.secure, layout, len(self.sources))


class Sites(Mapping[str, SiteHalf]):
    """The sites, made when they are asked for. They work on one bench, so one at a time.

    A site that was not asked for long is forgotten with its rows, and made anew; what it remembers stays.
    """

    def __init__(self, setting: Setting, bench: Workbench) -> None:
        self.setting, self.bench = setting, bench
        self._made: OrderedDict[str, SiteHalf] = OrderedDict()
        self._memories: dict[str, MemoryInRam] = {}

    def __getitem__(self, name: str) -> SiteHalf:
        if name in self._made:
            self._made.move_to_end(name)
            return self._made[name]
        half = self._made[name] = self._half(name, self.setting.sources[name])
        if len(self._made) > KEPT and not self.setting.streams:
            self._made.popitem(last=False)
        return half

    def __iter__(self) -> Iterator[str]:
        return iter(self.setting.sources)

    def __len__(self) -> int:
        return len(self.setting.sources)

    def moved(self, setting: Setting, bench: Workbench | None = None) -> "Sites":
        """The same sites with the rows that are at hand, in another setting: on their bench, or on one of their own."""
        there = Sites(setting, bench or self.bench)
        there._memories = self._memories
        for name, half in self._made.items():
            one = there._made[name] = copy.copy(half)
            one.memory, one.bench, one.seeding = there._memory(name), there.bench, setting.seeding
        return there

    def _memory(self, name: str) -> MemoryStore:
        if self.setting.memory is None:
            return self._memories.setdefault(name, MemoryInRam())
        return MemoryOnDisk(self.setting.memory / as_file(name), durable=self.setting.durable)

    def _half(self, name: str, source: Source | None) -> SiteHalf:
        what = self.setting
        site = Site(name, what.seed, source)
        half = SiteHalf(what.task, what.strategy, site, self.bench, self._memory(name), what.loaders, self._key)
        half.seeding = what.seeding
        return half

    def _key(self, plan: Plan, site: str) -> bytes:
        return key(self.setting.seed, plan.round, site, "dp")


def as_file(site: str) -> str:
    """A site's name as that of a folder: a value of a column may be any text, "../x" too."""
    return quote(site, safe=" ").replace(".", "%2E") if site.startswith(".") else quote(site, safe=" ")
