"""The training process of a site: started once a run by the process that holds the session, and again when it dies."""

import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import torch

from clients.data import open_source
from clients.failures import Failure
from clients.memory import MemoryOnDisk
from clients.pipe import Pipe
from clients.private import released
from clients.report import SiteReport
from clients.site import SiteHalf
from clients.sitefile import load_site_file
from hansa.appfiles import FEDERATION
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


class Worker:
    """The site's half of one run.

    Args:
        app: the folder of the admitted app.
        folder: the site's.
        run: the run's id.

    Raises:
        UserError: the app or the site's settings cannot be used.
    """

    def __init__(self, app: Path, folder: Path, run: str) -> None:
        self.config = load(app / FEDERATION, without=["data", "simulation"])
        self.file = load_site_file(folder / SITE_FILE)
        self.folder, self.run = folder, run
        head = self.config.table("federation", FederationTable)
        self.seed = head.seed
        self.task: Task = load_class(head.task, app, Task, "task")()
        self.strategy: Strategy = self.config.table("strategy", Strategy)
        if self.file.training.threads is not None:
            torch.set_num_threads(self.file.training.threads)
        device = choose_device(self.file.training.device)
        self.bench = Workbench(self.task, self.strategy.local, head.seed, device)
        self.report = SiteReport(folder / "reports" / run)
        self.made: SiteHalf | None = None

    def handle(self, frame: PlanFrame, files: dict[str, Path], upload: Path) -> Result | Failure:
        """Does a plan: its result, or why there is none. A large upload is in the file afterwards."""
        plan = from_plan(frame, self.file.site.name, files)
        half = self._half(plan.seed)
        answer = half.handle(plan)
        if isinstance(answer, Refusal):
            return Failure.SITS_OUT
        if plan.kind == "train" and half.seen is not None:
            _say(f"round {plan.round}: {half.seen}")
        self.report.add(plan, answer)
        answer = released(plan, answer, _say)
        parts = self.strategy.parts(self.bench.shared.size, self.bench.shared.n_parameters)
        result = to_result(answer, frame.id, plan.round)
        put_upload(answer, parts, result, upload)
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
            self.made = SiteHalf(self.task, self.strategy, site, self.bench, memory, self.file.training.num_workers)
        return self.made

    def _source(self, seed: int) -> Source | None:
        """Where the site's rows are: only site.toml says it, federation.toml is another's."""
        table = self.file.data
        return None if table is None else open_source(table, self.folder, self.file.site.name, seed)


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    """Serves the orders that come over the socket whose file descriptor is the one argument."""
    with socket.socket(fileno=int(sys.argv[1])) as ours, Pipe(ours) as pipe:
        worker: Worker | None = None
        while (order := pipe.receive()) is not None:
            said, frame = order
            try:
                if worker is None:
                    worker = Worker(Path(said["app"]), Path(said["site"]), said["run"])
                    pipe.send(worker.ready(said["sums"]))
                    continue
                files = {name: Path(path) for name, path in said["files"].items()}
                answer = worker.handle(PlanFrame.FromString(frame), files, Path(said["upload"]))
            except UserError as error:
                print(f"error: {error}", file=sys.stderr, flush=True)
                answer = Failure.APP if worker is None else Failure.INPUT
            except Exception:
                traceback.print_exc()
                answer = Failure.TRAINING
            if isinstance(answer, Failure):
                pipe.send({"failed": answer})
            else:
                pipe.send({}, answer.SerializeToString())


if __name__ == "__main__":
    main()
