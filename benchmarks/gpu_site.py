"""What a site's GPUs give: tokens a second, share of the peak, a round's overhead, memory, the vector's way in and out.

On any CUDA machine, in under five minutes: a worker group of one rank for each GPU, our own trainer, a transformer in
bfloat16, under DDP and FSDP2 over NCCL. One GPU alone is a group of one, without DDP. Without CUDA nothing is measured.

- tokens/s: of all ranks, by the median time between the ends of two steps, in the fastest round.
- MFU: 6 N + 12 L D T floating-point operations a token (Kaplan et al. 2020; PaLM, appendix B), over the card's dense
  bfloat16 peak, by its maker's data sheet; "unknown" for a card that is not in the list.
- overhead: a round from the order to the answer, less its steps.
- memory: the allocator's peak at rank 0 over the rounds.
- GB/s: of the vector's float32 bytes, into the model and back, by ParallelBench's own load and read.
"""

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from clients.config import TrainingTable
from clients.sitefile import SiteTrainingTable
from clients.workers.group import Group
from hansa.wire.link_pb2 import Plan

NOTES = "HANSA_BENCH_NOTES"  # the variable that names the file for rank 0's notes
# Dense bfloat16 operations a second, without sparsity.
PEAKS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10G": 70e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}
SIZES = {"cuda": (12, 1536, 16, 512, 16), "cpu": (2, 64, 4, 32, 4)}  # layers, width, heads, length, rows a rank

FEDERATION = '[federation]\nname = "speed"\ntask = "task.py:Words"\nseed = 1\n'
TASK = """\
import json
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import hansa

LAYERS, WIDTH, HEADS, LENGTH, ROWS, VOCABULARY = %s


def note(**facts):
    if dist.get_rank() == 0:
        with open(os.environ["%s"], "a") as file:
            file.write(json.dumps(facts) + "\\n")


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.o = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (HEADS, -1)).transpose(1, 2) for y in self.qkv(self.n1(x)).chunk(3, -1))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.n2(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.token, self.blocks = nn.Embedding(VOCABULARY, WIDTH), nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x):
        x = self.token(x)
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


class Notes:
    def step(self):
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            peak = torch.cuda.max_memory_allocated()
        else:
            peak = 0
        note(at=time.time(), peak=peak)


class Words(hansa.Task):
    def model(self):
        return Transformer()

    def forward(self, model, batch):
        (x,) = batch
        return model(x).flatten(0, 1), x.flatten()

    def train_data(self, site):
        return TensorDataset(torch.randint(VOCABULARY, (ROWS, LENGTH)))

    def valid_data(self, site):
        return None

    def test_data(self, site):
        return None

    def scheduler(self, optimizer, steps):
        note(begin=time.time())
        return Notes()
"""


class Bench:
    """A site's folders, and the one plan that its groups get."""

    def __init__(self, folder: Path, device: str, world: int, steps: int) -> None:
        self.folder, self.device, self.world, self.steps = folder, device, world, steps
        self.layers, self.width, self.heads, self.length, rows = SIZES[device]
        self.rows, vocabulary = rows * world, 8192 if device == "cuda" else 256
        self.app, self.spool, self.notes = folder / "app", folder / "spool", folder / "notes"
        for one in (self.app, self.spool):
            one.mkdir()
        sizes = (self.layers, self.width, self.heads, self.length, self.rows, vocabulary)
        (self.app / "federation.toml").write_text(FEDERATION)
        (self.app / "task.py").write_text(TASK % (sizes, NOTES))
        os.environ[NOTES] = str(self.notes)
        block = 12 * self.width**2 + 9 * self.width
        self.parameters = self.layers * block + 2 * self.width + 2 * vocabulary * self.width
        self.flops = 6 * (self.parameters - vocabulary * self.width) + 12 * self.layers * self.width * self.length
        self.files = {"params": folder / "params", "counters": folder / "counters"}
        draw = np.random.default_rng(0)
        draw.normal(scale=0.02, size=self.parameters).astype("<f4").tofile(self.files["params"])
        self.files["counters"].touch()

    def group(self, degree: str) -> Group:
        """Ranks on all GPUs, or processes on the CPU."""
        keys = {"procs": self.world, "precision": "bfloat16", "heartbeat": 60, "checkpoint_interval": 0}
        if self.device == "cpu":
            keys |= {"device": "cpu", "threads": 1}
        lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
        lines.append(f"parallel = {{ {degree} = {self.world} }}")
        (self.folder / "site.toml").write_text(
            '[site]\nname = "one"\nserver = "127.0.0.1:1"\n[training]\n' + "\n".join(lines) + "\n"
        )
        table = SiteTrainingTable(**keys, parallel={degree: self.world})
        return Group(self.app, self.folder, "run", self.folder / "log", self.spool, table, print)

    def round(self, group: Group, steps: int) -> dict[str, float]:
        """What one round took, in seconds, and the peak of memory, in bytes."""
        self.notes.unlink(missing_ok=True)
        hyper = json.dumps(TrainingTable(steps=steps, batch_size=self.rows, lr=1e-3).hyper(1))
        plan = Plan(id="1", run="run", seed=1, round=1, kind="train", split="valid", hyper=hyper)
        upload = self.spool / "upload"
        began = time.time()
        group.work(plan, self.files, upload)
        took = time.time() - began
        first, *rest = [json.loads(line) for line in self.notes.read_text().splitlines()]
        upload.unlink(missing_ok=True)
        ends = [one["at"] for one in rest]
        step = statistics.median([b - a for a, b in itertools.pairwise(ends)])
        return {"step": step, "overhead": took - (ends[-1] - first["begin"]), "peak": max(one["peak"] for one in rest)}


def measured(device: str, world: int, degree: str, steps: int, rounds: int, peak: float | None) -> dict[str, Any]:
    """One way of sharing the work."""
    with tempfile.TemporaryDirectory(prefix="hansa-gpu-") as scratch:
        bench = Bench(Path(scratch), device, world, steps)
        group = bench.group(degree)
        try:
            bench.round(group, 3)  # kernels are chosen, buffers made
            found = [bench.round(group, steps) for _ in range(rounds)]
        finally:
            group.stop()
    best = min(found, key=lambda one: one["step"])
    tokens = bench.rows * bench.length / best["step"]
    return {
        "parameters": bench.parameters,
        "tokens_s": round(tokens),
        "mfu": "unknown" if peak is None else round(tokens * bench.flops / (peak * world), 3),
        "overhead_s": round(statistics.median(one["overhead"] for one in found), 3),
        "memory_gib": round(max(one["peak"] for one in found) / 2**30, 2),
    }


def copies(device: str, size: int) -> dict[str, float]:
    """GB/s of a vector of so many float32 into a model on the device and out of it, as a rank does it."""
    from clients.parallel.bench import ParallelBench
    from clients.parallel.config import Degrees, ParallelKeys
    from clients.parallel.ranks import join, open_store
    from hansa.task import Task

    class Wide(Task):
        def model(self) -> torch.nn.Module:
            return torch.nn.Sequential(*(torch.nn.Linear(size, size, bias=False) for _ in range(8)))

    store = open_store(1)
    ranks = join(0, 1, store.port, "nccl" if device == "cuda" else "gloo", store=store)
    keys = ParallelKeys(parallel=Degrees(dp=1), accumulation=1)
    bench = ParallelBench(Wide(), (), 0, torch.device(device, 0), ranks, keys)
    vector, none = torch.randn(bench.shared.size), torch.zeros(0, dtype=torch.int64)

    def seconds(act: Any) -> float:
        times = []
        for _ in range(4):
            began = time.perf_counter()
            act()
            if device == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        return min(times)

    bytes_ = vector.nbytes / 1e9
    found = {
        "in_gb_s": bytes_ / seconds(lambda: bench.load(vector, none, {})),
        "out_gb_s": bytes_ / seconds(bench.read),
    }
    ranks.leave()
    return {name: round(value, 2) for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help=argparse.SUPPRESS)  # a dry run
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("no CUDA device here: nothing measured")
        return
    cuda = args.device == "cuda"
    world = torch.cuda.device_count() if cuda else 2
    name = torch.cuda.get_device_name(0) if cuda else "CPU, a dry run: no figure of it says anything of a GPU"
    peak = next((value for known, value in PEAKS.items() if cuda and known in name), None)
    print(f"{world} x {name}, torch {torch.__version__}")
    facts: dict[str, Any] = {"device": name, "world": world}
    for label, degree in (("ddp", "dp"), ("fsdp2", "shard")):
        if world == 1 and degree == "shard":
            print("fsdp2: not measured, one GPU has nothing to shard")
            continue
        facts[label] = measured(args.device, world, degree, args.steps, args.rounds, peak)
        print(label, json.dumps(facts[label]), flush=True)
    facts["vector"] = copies(args.device, 4096 if cuda else 256)
    print("vector", json.dumps(facts["vector"]))
    print(f"RESULT {json.dumps(facts)}")


if __name__ == "__main__":
    main()
