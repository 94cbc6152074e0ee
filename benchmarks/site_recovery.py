"""How long a site of several processes takes to go on when one of them is killed, and whether its update is the same.

A rank is killed at a random step, again and again. A trial's time is from the kill until all ranks of the next
generation have taken a step: processes' start, imports and all, the join, the reading of the step that was kept.
"""

import argparse
import json
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from clients.config import TrainingTable
from clients.sitefile import SiteTrainingTable
from clients.workers.group import Group
from hansa.wire.link_pb2 import Plan

WIDTH, LAYERS, STEPS, PAUSE = 256, 4, 40, 0.05  # seconds a step, so that a kill meets the middle
PARAMETERS = LAYERS * (WIDTH * WIDTH + WIDTH)
NOTES = "HANSA_BENCH_NOTES"  # the variable that names the folder in which each rank notes its steps

FEDERATION = """\
[federation]
name = "still"
task = "task.py:Wide"
seed = 1
"""
TASK = """\
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

import hansa

WIDTH, LAYERS, PAUSE = %d, %d, %r


class Wide(hansa.Task):
    kind = "regression"

    def model(self):
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))

    def train_data(self, site):
        rows = torch.randn(32, WIDTH, generator=torch.Generator().manual_seed(1))
        return TensorDataset(rows, rows.sin())

    def valid_data(self, site):
        return None

    def test_data(self, site):
        return None

    def batch_transform(self, batch):
        time.sleep(PAUSE)
        with (Path(os.environ["%s"]) / str(dist.get_rank())).open("a") as file:
            file.write(f"{os.getpid()}\\n")
        return batch
"""


class Bench:
    """A site's folders, and the one plan that its group gets.

    Args:
        folder: for all of it.
        procs: how many ranks.
        degree: dp or shard.
    """

    def __init__(self, folder: Path, procs: int, degree: str) -> None:
        self.procs, self.notes, self.upload = procs, folder / "notes", folder / "spool" / "upload"
        for one in ("app", "spool", "notes"):
            (folder / one).mkdir()
        (folder / "app" / "federation.toml").write_text(FEDERATION)
        (folder / "app" / "task.py").write_text(TASK % (WIDTH, LAYERS, PAUSE, NOTES))
        os.environ[NOTES] = str(self.notes)
        self.files = {"params": folder / "params", "counters": folder / "counters"}
        np.random.default_rng(0).normal(0, 0.05, PARAMETERS).astype("<f4").tofile(self.files["params"])
        self.files["counters"].touch()
        hyper = json.dumps(TrainingTable(steps=STEPS, batch_size=8, optimizer="adam", lr=1e-3).hyper(1))
        self.plan = Plan(id="1", run="run", seed=1, round=1, kind="train", split="valid", hyper=hyper)
        keys = f'procs = {procs}\ndevice = "cpu"\nthreads = 1\nparallel = {{ {degree} = {procs} }}\n'
        (folder / "site.toml").write_text(f'[site]\nname = "one"\nserver = "127.0.0.1:1"\n[training]\n{keys}')
        table = SiteTrainingTable(procs=procs, device="cpu", threads=1, heartbeat=60, checkpoint_interval=0.2)
        self.group = Group(folder / "app", folder, "run", folder / "log", folder / "spool", table, lambda line: None)

    def update(self) -> bytes:
        """What the group answers."""
        self.group.work(self.plan, self.files, self.upload)
        return self.upload.read_bytes()

    def taken(self, rank: int) -> list[int]:
        """The process of each step that a rank has taken."""
        file = self.notes / str(rank)
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def trial(self, rank: int, after: int) -> tuple[float, bytes]:
        """Seconds until all go on after a rank was killed, so many steps into a plan; and the update."""
        took: list[float] = []

        def strike() -> None:
            at, old = len(self.taken(rank)) + after, set(self.group.pids)
            while len(self.taken(rank)) < at:
                time.sleep(0.005)
            os.kill(self.group.pids[rank], signal.SIGKILL)
            began = time.monotonic()
            while not all(set(self.taken(one)[-1:]) - old for one in range(self.procs)):
                time.sleep(0.005)
            took.append(time.monotonic() - began)

        striker = threading.Thread(target=strike)
        striker.start()
        update = self.update()
        striker.join()
        return took[0], update


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--procs", type=int, default=2)
    parser.add_argument("--trials", type=int, default=20)
    args = parser.parse_args()
    before, facts, drawn = os.getloadavg()[0], {}, random.Random(20)
    table = Table(
        title=f"from the kill of one of {args.procs} ranks to the next step of all, {PARAMETERS:,} parameters"
    )
    for column in ("", "median", "worst", "same update"):
        table.add_column(column, justify="right" if column else "left")
    for name, degree in (("ddp", "dp"), ("fsdp2", "shard")):
        with tempfile.TemporaryDirectory(prefix="hansa-recovery-") as scratch:
            bench = Bench(Path(scratch), args.procs, degree)
            whole = bench.update()
            trials = [
                bench.trial(drawn.randrange(args.procs), drawn.randrange(1, STEPS - 5)) for _ in range(args.trials)
            ]
            bench.group.stop()
        seconds, same = [took for took, _ in trials], sum(update == whole for _, update in trials)
        facts |= {f"{name}_s": statistics.median(seconds), f"{name}_worst_s": max(seconds), f"{name}_same": same}
        table.add_row(
            name.upper(), *(f"{one(seconds):.1f} s" for one in (statistics.median, max)), f"{same}/{len(trials)}"
        )
    table.caption = f"load before {before:.1f}, after {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores"
    Console().print(table)
    print(f"RESULT {json.dumps({name: round(value, 2) for name, value in facts.items()})}")


if __name__ == "__main__":
    main()
