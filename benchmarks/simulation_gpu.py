"""How many local updates a second a simulation makes on a CUDA device, and how much of its memory that takes.

The work is that of simulation.py (peers/workload.py), (a) a small MLP and (b) McMahan's CNN. Measured is from commit to
commit, the first round left out; memory is the most that torch has held at once. Without a CUDA device there is nothing
to measure, and the benchmark says so.
"""

import argparse
import json
import statistics
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import torch
from workloads import WORK, federation, timed, write


def measured(name: str, engine: str, folder: Path) -> dict[str, str | float]:
    """One workload with one engine, in this process."""
    rows, _ = write(name, folder)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    ended, _ = timed(federation(name, rows, device="cuda", engine=engine))
    seconds = statistics.median(after - before for before, after in pairwise(ended))
    peak = torch.cuda.max_memory_allocated() / 1e9
    return {
        "workload": name,
        "engine": engine,
        "updates_per_s": round(WORK[name].cohort / seconds, 1),
        "peak_gb": round(peak, 3),
        "device": torch.cuda.get_device_name(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", action="append", help="ours, one that computes in this process; may be repeated")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device here: nothing is measured", file=sys.stderr)
        sys.exit(2)
    for name in WORK:
        for engine in args.engine or ["loop"]:
            with tempfile.TemporaryDirectory(prefix="hansa-gpu-") as scratch:
                print("RESULT", json.dumps(measured(name, engine, Path(scratch))), flush=True)


if __name__ == "__main__":
    main()
