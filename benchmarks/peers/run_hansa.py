"""Hansa, on one workload, with one engine, as `hansa simulate` runs it; nothing is kept on disk."""

import argparse
import time
from pathlib import Path
from typing import Any

from workload import WORK, finish

from clients.config import TrainingTable
from hansa.task import Task
from hansa.taskfile import load_class
from server.config import RoundsTable
from server.events import Event, RoundCommitted
from simulations.federation import Federation
from strategies.fedavg import FedAvg


def federation(name: str, rows: Path, precision: str = "float32", **facts: Any) -> Federation:
    """A workload, its sites' rows in a file."""
    work = WORK[name]
    task: Any = load_class(f"task.py:{'Mlp' if name == 'a' else 'Cnn'}", Path(__file__).parent, Task, "task")
    table = TrainingTable.model_validate(
        {"epochs": 1, "batch_size": work.batch_size, "lr": work.lr, "precision": precision}
    )
    rounds = RoundsTable(rounds=work.rounds, sites_per_round=work.cohort)
    sources = dict.fromkeys(f"{number:04d}" for number in range(work.sites))
    return Federation(task(rows), FedAvg(), sources, table, rounds, seed=work.seed, **facts)


def timed(what: Federation) -> tuple[list[float], list[Any]]:
    """When each round was committed, in seconds of one clock, and the last weights by tensor."""
    ended = []

    def listen(event: Event) -> None:
        if isinstance(event, RoundCommitted):
            ended.append(time.perf_counter())

    history = what.try_out([listen])
    return ended, [one.of(history.state.params).numpy() for one in history.bench.shared.floats]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("rows", type=Path)
    parser.add_argument("out")
    parser.add_argument("--engine", default="loop")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()
    precision = "bfloat16" if args.bf16 else "float32"
    facts = {"engine": args.engine, "workers": args.workers, "threads": args.threads, "device": "cpu"}
    finish(args.out, *timed(federation(args.name, args.rows, precision, **facts)))


if __name__ == "__main__":
    main()
