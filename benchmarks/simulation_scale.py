"""What a simulated round costs by the number of sites that there are: time, and memory of all processes.

Fifty sites are drawn in each round from as many as there are; each makes its rows when it is asked (20 to 100 rows of
64 numbers, an MLP 64-200-10, one epoch in batches of 10). Each number of sites has a process of its own. Time is the
median over rounds after the first two; memory the proportional set size of the process and its workers after the last
round, in MB of 10^6 bytes.

RESULT `round_ms` and `pss_mb` by number of sites; `ok`: both are within 10% of what the fewest sites need.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from clients.config import TrainingTable
from hansa.task import Site, Task
from server.config import RoundsTable
from server.events import Event, RoundCommitted, RoundEnded
from simulations.federation import Federation
from simulations.partition import numbered
from strategies.fedavg import FedAvg

SITES = (1_000, 10_000, 100_000)
COHORT, ROUNDS, WARM_UP = 50, 40, 2
WITHIN = 1.1


class Lazy(Task):
    """Rows that are made from a site's name."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 10))

    def train_data(self, site: Site) -> TensorDataset:
        random = torch.Generator().manual_seed(int(site.name.removeprefix("site-")))
        rows = int(torch.randint(20, 101, (), generator=random))
        return TensorDataset(torch.rand(rows, 64, generator=random), torch.randint(10, (rows,), generator=random))

    def valid_data(self, site: Site) -> None:
        return None


def pss() -> float:
    """MB of this process and its children."""
    me = Path("/proc/self")
    children = (me / "task" / me.resolve().name / "children").read_text().split()
    files = [me / "smaps_rollup", *(Path("/proc") / pid / "smaps_rollup" for pid in children)]
    return sum(
        int(line.split()[1]) * 1024 / 1e6
        for file in files
        for line in file.read_text().splitlines()
        if line.startswith("Pss:")
    )


def measure(sites: int, engine: str, rounds: int) -> dict[str, float]:
    """Milliseconds a round, and MB."""
    seconds: list[float] = []

    def listen(event: Event) -> None:
        if isinstance(event, RoundEnded):
            seconds.append(event.seconds)
        if isinstance(event, RoundCommitted) and event.round == rounds:
            raise Measured

    work = TrainingTable(epochs=1, batch_size=10, lr=0.1)
    table = RoundsTable(rounds=rounds, sites_per_round=COHORT)
    what = Federation(Lazy(), FedAvg(), dict.fromkeys(numbered(sites)), work, table, engine=engine)
    memory = 0.0
    try:
        what.try_out([listen])
    except Measured as measured:
        memory = measured.memory
    return {"round_ms": 1e3 * statistics.median(seconds[WARM_UP:]), "pss_mb": memory}


class Measured(Exception):
    """The last round has been, and the workers are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = pss()


def main() -> None:
    """Each number of sites in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="loop")
    parser.add_argument("--sites", type=int, nargs="*", default=list(SITES))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--one", action="store_true", help="measure here; the last line is JSON")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.sites[0], asked.engine, asked.rounds)))
        return
    found: dict[int, dict[str, float]] = {}
    for sites in asked.sites:
        again = [sys.executable, __file__, "--one", "--engine", asked.engine, "--rounds", str(asked.rounds)]
        done = subprocess.run([*again, "--sites", str(sites)], check=True, capture_output=True, text=True)
        found[sites] = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{sites:>9,} sites: {found[sites]['round_ms']:.1f} ms a round, {found[sites]['pss_mb']:.0f} MB", flush=True
        )
    result: dict[str, Any] = {key: {n: one[key] for n, one in found.items()} for key in ("round_ms", "pss_mb")}
    least = found[min(found)]
    result["ok"] = all(one[key] <= WITHIN * least[key] for one in found.values() for key in ("round_ms", "pss_mb"))
    print(f"RESULT {json.dumps(result)}")


if __name__ == "__main__":
    main()
