"""How much memory a process of a site takes that trains a model of 69 million parameters with Adam.

One process by itself, then each of W that shard the model (FSDP2), on the CPU. Two figures a process, in MiB:

    state   its parameters, gradients and moments
    peak    anonymous memory at its peak, above what it had before the model: activations, and the layer that is whole
            just now count too; what is mapped from files does not: the vector that came, and the update

The bar: either figure of the fullest rank at W = 4 is at most .27 of one process's.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import TensorDataset

from clients.batches import Batches
from clients.config import TrainingTable
from clients.parallel.bench import ParallelBench
from clients.parallel.config import Degrees, ParallelKeys
from clients.parallel.ranks import join, open_store
from clients.parallel.slicer import ParallelBatches
from clients.parallel.trainer import ParallelTrainer
from clients.trainer import Trainer
from hansa.task import Task
from hansa.workbench import Workbench
from strategies.fedavg import FedAvg

WIDTH, LAYERS, VOCABULARY, LENGTH = 768, 9, 6000, 16
MIB = 2**20
CPU = torch.device("cpu")


class Words(Task):
    """A transformer of 69 million parameters."""

    def __init__(self) -> None:
        self.made: list[Optimizer] = []

    def model(self) -> nn.Module:
        layer = nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, dropout=0.0, batch_first=True)
        body = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        return nn.ModuleDict({"token": nn.Embedding(VOCABULARY, WIDTH), "body": body, "out": nn.Linear(WIDTH, 1000)})

    def forward(self, model: Any, batch: Any) -> tuple[Tensor, Tensor]:
        (x,) = batch
        return model["out"](model["body"](model["token"](x))).flatten(0, 1), x.flatten() % 1000

    def optimizer(self, params: Iterable[Any], hyper: Mapping[str, Any]) -> Optimizer:
        self.made.append(super().optimizer(params, hyper))
        return self.made[-1]


class Peak:
    """Anonymous memory's peak while it lasts, above what there was."""

    def __enter__(self) -> "Peak":
        self.base = self.most = _anonymous()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def __exit__(self, *of: object) -> None:
        self.over.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.over.wait(0.005):
            self.most = max(self.most, _anonymous())


def _anonymous() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def state(optimizer: Optimizer) -> int:
    """Bytes of parameters, gradients and moments."""
    tensors = [p for group in optimizer.param_groups for p in group["params"]]
    tensors += [p.grad for p in tensors if p.grad is not None]
    tensors += [one for p in optimizer.state.values() for one in p.values() if isinstance(one, Tensor)]
    return sum(one.numel() * one.element_size() for one in tensors)


def train(rank: int, world: int, port: int, vector: Path) -> dict[str, Any]:
    """One round at one rank."""
    torch.set_num_threads(1)
    task, hyper = Words(), TrainingTable(steps=2, batch_size=4, optimizer="adam", lr=1e-4).hyper(1)
    rows = TensorDataset(torch.randint(VOCABULARY, (8, LENGTH), generator=torch.Generator().manual_seed(0)))
    ranks = None
    if world > 1:
        store = open_store(world) if rank == 0 else None
        if store is not None:
            print(store.port, flush=True)
        ranks = join(rank, world, port, store=store)
    with Peak() as peak:
        keys = ParallelKeys(parallel=Degrees(shard=world))
        bench = Workbench(task, (), 0, CPU) if ranks is None else ParallelBench(task, (), 0, CPU, ranks, keys)
        layout = bench.shared
        anchor = torch.from_numpy(np.memmap(vector, np.float32, "c", shape=(layout.size,)))
        trainer = Trainer(task, FedAvg(), layout, anchor, {}, {}, hyper, CPU, len(rows))
        where = (task, rows, hyper, (0, 1, "a"), CPU, 0)
        model = bench.load(anchor, layout.read_counters(bench.model), {})
        began = time.perf_counter()
        if isinstance(bench, ParallelBench):
            bench.draft_in(vector.with_name("draft"))
            run = ParallelTrainer.of(trainer, bench).fit(model, ParallelBatches(*where, bench.share))
        else:
            run = trainer.fit(model, Batches(*where))
        seconds = time.perf_counter() - began
    found = {"rank": rank, "parameters": layout.n_parameters, "state": state(task.made[0]) / MIB}
    found |= {"peak": (peak.most - peak.base) / MIB, "seconds": seconds, "steps": run.steps}
    if ranks is not None:
        ranks.leave()
    return found


def measure(world: int, folder: Path) -> list[dict[str, Any]]:
    """Figures of each rank."""
    vector = folder / "vector"
    if not vector.exists():
        size = sum(p.numel() for p in Words().model().parameters())
        np.random.default_rng(0).normal(0, 0.02, size).astype(np.float32).tofile(vector)
    ranks: list[subprocess.Popen[str]] = []
    port = "0"
    for rank in range(world):
        command = [sys.executable, __file__, "--rank", str(rank), "--world", str(world), "--port", port, str(vector)]
        ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        if world > 1 and rank == 0:
            port = _line(ranks[0])
    found = [json.loads(_line(one)) for one in ranks]
    for one in ranks:
        one.wait()
    return found


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--world", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("vector", type=Path, nargs="?", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.rank is not None:
        print(json.dumps(train(given.rank, given.world, given.port, given.vector)), flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        (one,) = measure(1, Path(folder))
        print(f"{one['parameters'] / 1e6:.1f} million parameters, Adam; MiB a process")
        print(f"W = 1: state {one['state']:.0f}, peak {one['peak']:.0f}")
        for world in given.processes:
            found = measure(world, Path(folder))
            share = {}
            for what in ("state", "peak"):
                most = max(rank[what] for rank in found)
                share[what] = most / one[what]
                listed = ", ".join(f"{rank[what]:.0f}" for rank in found)
                print(f"W = {world}: {what} {listed}: at most {share[what]:.3f} of one process")
            print("RESULT", json.dumps({f"fsdp2_{what}_w{world}": round(one, 4) for what, one in share.items()}))


if __name__ == "__main__":
    main()
