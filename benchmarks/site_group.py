"""What a round costs a site of several processes beyond training: a group that stays, beside one started each round.

A round's overhead: from the order to the answer, less the time from the first batch to the end of the last step. So it
has the vector's way into the ranks and out of them; a relaunch also has the processes' start, imports and all.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from clients.config import TrainingTable
from clients.sitefile import SiteTrainingTable
from clients.workers.ground import Here
from clients.workers.group import Group
from hansa.wire.link_pb2 import Plan

WIDTH, LAYERS = 1500, 12  # 27 million parameters
PARAMETERS = LAYERS * (WIDTH * WIDTH + WIDTH)
TIMES = "HANSA_BENCH_TIMES"  # the variable that names the folder for rank 0's times

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

WIDTH, LAYERS = %d, %d


def note(name):
    if dist.get_rank() == 0:
        (Path(os.environ["%s"]) / name).write_text(repr(time.time()))


class Notes:
    def step(self):
        note("end")


class Wide(hansa.Task):
    kind = "regression"

    def model(self):
        return nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))

    def train_data(self, site):
        return TensorDataset(torch.zeros(4, WIDTH), torch.zeros(4, WIDTH))

    def valid_data(self, site):
        return None

    def test_data(self, site):
        return None

    def scheduler(self, optimizer, steps):
        note("begin")
        return Notes()
"""


class Bench:
    """A site's folders, and the one plan that its groups get."""

    def __init__(self, folder: Path, procs: int) -> None:
        self.site, self.app, self.spool, self.procs = folder, folder / "app", folder / "spool", procs
        for one in (self.app, self.spool):
            one.mkdir()
        (self.app / "federation.toml").write_text(FEDERATION)
        (self.app / "task.py").write_text(TASK % (WIDTH, LAYERS, TIMES))
        os.environ[TIMES] = str(folder)
        self.files = {"params": folder / "params", "counters": folder / "counters"}
        np.full(PARAMETERS, 1e-3, "<f4").tofile(self.files["params"])
        self.files["counters"].touch()
        hyper = json.dumps(TrainingTable(steps=2, batch_size=4).hyper(1))
        self.plan = Plan(id="1", run="run", seed=1, round=1, kind="train", split="valid", hyper=hyper)

    def start(self, degree: str) -> Group:
        """A group of its kind."""
        keys = f'procs = {self.procs}\ndevice = "cpu"\nthreads = 1\nparallel = {{ {degree} = {self.procs} }}\n'
        (self.site / "site.toml").write_text(f'[site]\nname = "one"\nserver = "127.0.0.1:1"\n[training]\n{keys}')
        table = SiteTrainingTable(procs=self.procs, device="cpu", threads=1, heartbeat=60)
        return Group(self.app, self.site, "run", self.spool, table, print, Here(self.site / "log", table))

    def overhead(self, work: Callable[[], object]) -> float:
        """Seconds that something takes beyond the training that it brings about."""
        began = time.time()
        work()
        took = time.time() - began
        begin, end = (float((self.site / name).read_text()) for name in ("begin", "end"))
        return took - (end - begin)

    def round(self, group: Group) -> None:
        """One round of a group."""
        upload = self.spool / "upload"
        group.work(self.plan, self.files, upload)
        assert upload.stat().st_size == 4 * PARAMETERS

    def relaunched(self, degree: str) -> None:
        """One round of a group that is started for it."""
        group = self.start(degree)
        self.round(group)
        group.stop()


def measured(bench: Bench, degree: str, rounds: int, relaunches: int) -> tuple[list[float], list[float]]:
    """Overheads of rounds with a group that stays, the first left out, and with one that is started each time."""
    group = bench.start(degree)
    bench.round(group)
    stays = [bench.overhead(lambda: bench.round(group)) for _ in range(rounds)]
    group.stop()
    return stays, [bench.overhead(lambda: bench.relaunched(degree)) for _ in range(relaunches)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--procs", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--relaunches", type=int, default=3)
    args = parser.parse_args()
    before, facts = os.getloadavg()[0], {}
    table = Table(title=f"overhead of a round, {PARAMETERS:,} parameters, {args.procs} ranks on the CPU")
    for column in ("", "stays: median", "least", "relaunch: median"):
        table.add_column(column, justify="right" if column else "left")
    for name, degree in (("ddp", "dp"), ("fsdp2", "shard")):
        with tempfile.TemporaryDirectory(prefix="hansa-group-") as scratch:
            stays, relaunch = measured(Bench(Path(scratch), args.procs), degree, args.rounds, args.relaunches)
        facts |= {f"{name}_s": statistics.median(stays), f"relaunch_{name}_s": statistics.median(relaunch)}
        row = facts[f"{name}_s"], min(stays), facts[f"relaunch_{name}_s"]
        table.add_row(name.upper(), *(f"{one:.3f} s" for one in row))
    table.caption = f"load before {before:.1f}, after {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores"
    Console().print(table)
    print(f"RESULT {json.dumps({name: round(value, 3) for name, value in facts.items()})}")


if __name__ == "__main__":
    main()
