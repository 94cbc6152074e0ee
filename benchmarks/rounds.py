"""What a round costs beyond training: deployed sites that have nothing to do, beside plain Flower.

With --secure: four sites, with and without secure aggregation, and what it adds to a round.

Our rounds: the time from one round to the next at the server, as its run store has it. A round is durable, with its
metrics, before the next begins. Flower's: FedAvg over as many SuperNodes, with TLS and node authentication, no
training, nothing written to disk; its round is two phases, training and evaluation.
"""

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

import flower_peer
import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from hansa.appfiles import app_digest, app_files
from hansa.errors import UserError
from server.command import start
from server.store import FILE, State, Store
from simulations.demo.consortium import Consortium

SITES = ("north", "east", "south")
FOUR = (*SITES, "west")  # under secure aggregation, of whom one may drop out
PARAMETERS = 100_000
WARM_UP = 10  # rounds that are left out
RUN = "rounds"

PYPROJECT = """\
[project]
name = "nothing"
version = "1.0.0"

[tool.flwr.app]
publisher = "hansa"

[tool.flwr.app.components]
serverapp = "server.app:app"
clientapp = "clients.app:app"

[tool.flwr.app.config]
hansa-run = ""
hansa-epoch = 1
"""
FEDERATION = """\
[federation]
name = "nothing"
task = "task.py:Nothing"
seed = 1

[strategy]
name = "task.py:Still"

[training]
steps = 1
batch_size = 1

[rounds]
rounds = %d

[privacy]
secure = %s
clip = 1.0
max_weight = 1
"""
TASK = '''\
"""One row, and no training: what is left is the round."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

import hansa
from hansa.records import LocalRun


class Flat(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(%d))

    def forward(self, x):
        return self.w[:1] * x


class Nothing(hansa.Task):
    kind = "regression"

    def model(self):
        return Flat()

    def train_data(self, site):
        return TensorDataset(torch.ones(1, 1), torch.ones(1, 1))

    def valid_data(self, site):
        return None

    def test_data(self, site):
        return None


class Still(hansa.Strategy):
    def local_update(self, model, batches, ctx):
        still, none = ctx.vector(model).zero_(), torch.zeros(0, dtype=torch.int64)
        return LocalRun(still, none, steps=1, lr_sum=1.0, examples=1, n_parameters=len(still)), ctx.memory
'''


def write_app(folder: Path, rounds: int, parameters: int = PARAMETERS, secure: bool = False) -> Path:
    """The app of a run that does nothing."""
    folder.mkdir(parents=True)
    toml = FEDERATION % (rounds, str(secure).lower())
    files = {"pyproject.toml": PYPROJECT, "federation.toml": toml, "task.py": TASK % parameters}
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def allow(consortium: Consortium, app: Path) -> None:
    """What each site must say before the app runs there."""
    tables = {
        "apps": f'allowed = ["{app_digest(app_files(app))}"]\n',
        "training": 'device = "cpu"\nthreads = 1\n',
        "policy": "allow_unprotected = true\n",
    }
    for site in consortium.sites:
        consortium.write_site(site, tables)


def deployed(
    folder: Path, rounds: int, console: Console, sites: tuple[str, ...] = SITES, secure: bool = False
) -> Store:
    """Runs a federation that does nothing, to its end."""
    app = write_app(folder / "app", rounds, secure=secure)
    consortium = Consortium(folder / "consortium", sites)
    allow(consortium, app)
    with consortium:
        start(app, consortium.server, name=RUN, detach=True, console=console)
        store = Store(consortium.server / "runs" / FILE)
        while _running(store):
            time.sleep(1.0)
    return store


def console_to_nowhere() -> Console:
    return Console(file=open(os.devnull, "w"))


def _running(store: Store) -> bool:
    try:
        return bool(store.entry(RUN)["state"] == State.RUNNING)
    except UserError:
        return True  # not yet begun


def intervals(store: Store) -> "pd.Series[float]":
    """Milliseconds from one round to the next."""
    rounds = store.rounds(RUN)
    ended = pd.to_datetime(rounds[rounds["kind"] == "train"].set_index("round")["entered"])
    return ended.diff().dt.total_seconds().mul(1e3).iloc[WARM_UP:]


def measured(sites: tuple[str, ...], rounds: int, secure: bool = False) -> tuple[float, float]:
    """Median and 95th percentile of a round's milliseconds."""
    with tempfile.TemporaryDirectory(prefix="hansa-rounds-", ignore_cleanup_errors=True) as scratch:
        took = intervals(deployed(Path(scratch), rounds, console_to_nowhere(), sites, secure))
    return float(np.percentile(took, 50)), float(np.percentile(took, 95))


def compare(rounds: int) -> None:
    """With and without secure aggregation."""
    before = os.getloadavg()[0]
    plain, masked = (measured(FOUR, rounds, secure) for secure in (False, True))
    title = f"{len(FOUR)} sites with nothing to do, {PARAMETERS:,} parameters"
    caption = f"load before {before:.1f}, after {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores"
    table = Table(title=title, caption=caption)
    for column in ("", "p50", "p95"):
        table.add_column(column, justify="right" if column else "left")
    for name, (p50, p95) in (("a round (durable)", plain), ("under secure aggregation", masked)):
        table.add_row(name, f"{p50:.1f} ms", f"{p95:.1f} ms")
    Console().print(table)
    facts = {"plain_p50_ms": plain[0], "secure_p50_ms": masked[0], "overhead_ms": masked[0] - plain[0]}
    print(f"RESULT {json.dumps({name: round(value, 2) for name, value in facts.items()})}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--flower-rounds", type=int, default=2)
    parser.add_argument("--secure", action="store_true", help="with and without secure aggregation, not beside Flower")
    args = parser.parse_args()
    if args.secure:
        return compare(args.rounds)
    before = os.getloadavg()[0]
    p50, p95 = measured(SITES, args.rounds)
    flower = flower_peer.phase(len(SITES), PARAMETERS, args.flower_rounds)
    title = f"{len(SITES)} sites with nothing to do, {PARAMETERS:,} parameters"
    table = Table(
        title=title, caption=f"load before {before:.1f}, after {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores"
    )
    for column in ("", "p50", "p95"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("Hansa, a round (durable)", f"{p50:.1f} ms", f"{p95:.1f} ms")
    table.add_row("Flower, a phase (two are a round)", f"{flower:.2f} s", "")
    table.add_row("Flower / Hansa", f"{flower * 1e3 / p50:.0f}", "")
    Console().print(table)
    facts = {"p50_ms": p50, "p95_ms": p95, "flower_s_per_phase": flower, "ratio": flower * 1e3 / p50}
    print(f"RESULT {json.dumps({name: round(value, 2) for name, value in facts.items()})}")


if __name__ == "__main__":
    main()
