"""What a site's training process does; see `clients.workers` for how it is started and told."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from clients.data import open_source
from clients.failures import Failure
from clients.gpulock import GpuLock
from clients.memory import MemoryOnDisk
from clients.parallel.ranks import Ranks, least
from clients.private import released
from clients.report import SiteReport
from clients.site import SiteHalf
from clients.sitefile import SiteTrainingTable, load_site_file
from clients.workers.progress import Progress
from hansa.appfiles import FEDERATION
from hansa.base import Base, BaseTable
from hansa.codec import from_plan, put_upload, to_result
from hansa.config import load
from hansa.device import choose_device
from hansa.errors import UserError
from hansa.records import Refusal
from hansa.startup import SITE_FILE
from hansa.tables import FederationTable
from hansa.task import Site, Source, Task
from hansa.taskfile import load_class
from hansa.wire.link_pb2 import Plan as PlanFrame
from hansa.wire.link_pb2 import Result
from hansa.workbench import Workbench
from privacy.dp.adaptive import BIT
from strategies.base import Strategy

if TYPE_CHECKING:
    from clients.parallel.bench import ParallelBench


class Place:
    """A rank's place: in which group it is, and on what it computes.

    Args:
        folder: the site's.
        rank: from 0.
        world: how many ranks there are: fewer than site.toml says, where a machine of several is missing.
        local: its number among those of its machine.

    Raises:
        UserError: site.toml cannot be used on this machine.
    """

    def __init__(self, folder: Path, rank: int, world: int, local: int) -> None:
        self.folder, self.rank, self.world = folder, rank, world
        self.file = load_site_file(folder / SITE_FILE)
        training = self.file.training
        if training.threads is not None:
            torch.set_num_threads(training.threads)
        self.device = _device(training, local)
        cuda = self.device.type == "cuda"
        if cuda and world > 1:
            torch.cuda.set_device(self.device)
        if training.backend == "nccl" and not cuda:
            raise UserError(f'site.toml [training]: backend = "nccl" on {self.device}; it needs CUDA, take "auto"')
        try:
            if (named := training.degrees(training.procs)) is not None:
                named.over(world)
        except ValueError as error:
            raise UserError(f"site.toml [training]: {error}") from None
        self.parallel = world > 1 or not training.plain  # whether the model is spread, if only over one rank
        self.backend = training.backend if training.backend != "auto" else "nccl" if cuda else "gloo"

    def claim(self, run: str) -> None:
        """Holds the rank's GPU, if it has one, as long as the process lives.

        Raises:
            UserError: another process has it.
        """
        if self.device.type == "cuda":
            uuid = str(torch.cuda.get_device_properties(self.device).uuid)
            GpuLock(uuid, f"site {self.file.site.name}, run {run}, rank {self.rank}")


class Worker:
    """The site's half of one run, in one rank. All ranks do the same, and the first one's answer counts.

    Args:
        app: the folder of the admitted app.
        place: of the rank.
        run: the run's id.
        ranks: of the group, where the model is spread.

    Raises:
        UserError: the app or the site's settings cannot be used.
    """

    def __init__(self, app: Path, place: Place, run: str, ranks: Ranks | None = None) -> None:
        self.config = load(app / FEDERATION, without=["data", "simulation"])
        self.place, self.file, self.folder, self.run = place, place.file, place.folder, run
        head = self.config.table("federation", FederationTable)
        self.seed = head.seed
        self.task: Task = load_class(head.task, app, Task, "task")()
        self.strategy: Strategy = self.config.table("strategy", Strategy)
        what = (self.task, self.strategy.local, head.seed, place.device)
        base = self._base(self.config.get("base"))
        self.spread = None if ranks is None else _spread(*what, ranks, self.file.training, base)
        self.bench = self.spread or Workbench(*what, base)
        if self.spread is not None and self.spread.said and not place.rank:
            _say(self.spread.said)
        self.report = SiteReport(self.folder / "reports" / run)
        self.made: SiteHalf | None = None

    def handle(
        self, frame: PlanFrame, files: dict[str, Path], upload: Path, key: bytes, steps: Path | None
    ) -> Result | Failure | None:
        """Does a plan.

        Args:
            frame: the plan.
            files: of its vectors, by name.
            upload: where a large upload is to be.
            key: 32 secret bytes for this time that the plan is done, the same in all ranks.
            steps: the folder for how far training is, if that is kept.

        Returns:
            Its result, or why there is none; None of all ranks but the first.
        """
        plan = from_plan(frame, self.file.site.name, files)
        half = self._half(plan.seed)
        half.key = lambda plan, site: key
        half.progress = None if steps is None else self._progress(steps)
        if self.spread is not None:
            self.spread.draft_in(upload.with_name(f"{upload.name}-draft"))
        answer = half.handle(plan)
        if isinstance(answer, Refusal):
            return Failure.SITS_OUT
        if self.place.rank:
            return None
        if plan.kind == "train" and half.seen is not None:
            _say(f"round {plan.round}: {half.seen}")
        self.report.add(plan, answer)
        answer = released(plan, answer, _say)
        parts = self.strategy.parts(self.bench.shared.size, self.bench.shared.n_parameters)
        result = to_result(answer, frame.id, plan.round)
        put_upload(answer, parts, result, upload, draft=None if self.spread is None else self.spread.draft)
        return result

    def ready(self, sums: bool) -> dict[str, Any]:
        """What it has found, as `clients.child.Ready` has it. For metric sums a few rows go through the model."""
        shared = self.bench.shared
        parts = self.strategy.parts(shared.size, shared.n_parameters)
        half, dp = self._half(self.seed), self.config.get("dp")
        found: dict[str, tuple[int, ...]] = {}
        if dp is None and sums:
            found = half.shapes()
        elif dp is not None and dp.adaptive is not None:
            found[BIT] = (2,)
        return {
            "layout": shared.digest,
            "strategy": self.strategy.digest,
            "parts": [[name, part.size, part.weight] for name, part in parts.items()],
            "counters": shared.n_counters,
            "sums": [[name, list(shape)] for name, shape in found.items()],
            **(half.counted() if dp is not None else {"rows": 0, "groups": None}),
        }

    def _half(self, seed: int) -> SiteHalf:
        """The site's half, made once; anew only if a plan tells another seed than federation.toml does."""
        if self.made is None or self.made.site.seed != seed:
            site = Site(self.file.site.name, seed, self._source(seed))
            memory = MemoryOnDisk(self.folder / "memory" / self.run)
            workers = self.file.training.num_workers
            if self.spread is not None:
                from clients.parallel.site import ParallelSite

                self.made = ParallelSite(self.task, self.strategy, site, self.spread, memory, workers)
            else:
                self.made = SiteHalf(self.task, self.strategy, site, self.bench, memory, workers)
        return self.made

    def _base(self, table: BaseTable | None) -> Base | None:
        """The app says which weights it stands on, site.toml where they are."""
        if table is None:
            return None
        if self.file.base is None:
            mend = f'write [base] folder = "...", the folder in which {Path(table.file).name} is'
            raise UserError(f"site.toml: the app stands on base weights, and there is no [base]; {mend}")
        return table.within(self.folder / self.file.base.folder)

    def _progress(self, folder: Path) -> Progress:
        return Progress(folder, self.place.rank, self.file.training.checkpoint_interval, least)

    def _source(self, seed: int) -> Source | None:
        """Where the site's rows are: only site.toml says it, federation.toml is another's."""
        table = self.file.data
        return None if table is None else open_source(table, self.folder, self.file.site.name, seed)


def _spread(*of: Any) -> "ParallelBench":
    """See ParallelBench."""
    from clients.parallel.bench import ParallelBench  # a second of torch's modules that one process has no use for

    return ParallelBench(*of)


def _say(line: str) -> None:
    print(line, flush=True)


def _device(training: SiteTrainingTable, local: int) -> torch.device:
    """Of several ranks each has a GPU of its own, unless they are told otherwise."""
    if training.devices:
        return choose_device(training.devices[local])
    device = choose_device(training.device)
    if training.procs == 1:
        return device
    return choose_device(f"cuda:{local}") if device.type == "cuda" else torch.device("cpu")
