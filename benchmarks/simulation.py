"""How many local updates a second a simulation makes: our engines and the peers, in one sitting.

All do the same work (peers/workload.py): the same sites, rows and order of rows from the same weights; how far each
ends from a plain loop in float64 stands beside its speed, so that one that does less is seen. All get turns,
`--repeats` times. A turn's speed is the sites of a round over the median time of its rounds but the first; what counts
is the median turn, and of a peer its best setting. An update is one site's local epoch.

Ours is measured from commit to commit: drawing the sites, the run's records and each site's training loss are in it,
and rows are shuffled as they are used. The peers get theirs in order, draw nothing and score nothing. Flower: the Ray
back end, an actor a core, model and rows kept in the actors. pfl: one process, or one a core under torchrun. FedJAX:
jit; its pmap runs with no version of JAX that was tried. `make peers` makes their environments; versions are in
peers/install.py.

Memory is the greatest proportional set size of the whole tree of processes, Ray's own included.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from peers.install import PEERS, python, ready
from tree import Tree
from workloads import WORK, Array, Visits, exact, write

HERE = Path(__file__).parent / "peers"
CORES = len(os.sched_getaffinity(0))
LIMIT = 600  # seconds a contender may take


@dataclass
class Contender:
    """One engine or peer with one setting, and what was measured of it."""

    name: str
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    speeds: list[float] = field(default_factory=list)  # updates a second
    memory: int = 0  # bytes
    weights: list[Array] = field(default_factory=list)

    @property
    def speed(self) -> float:
        """The median of the repeats; 0 where it failed."""
        return statistics.median(self.speeds) if self.speeds else 0.0


def ours(name: str, engine: str, folder: Path, bf16: bool) -> Contender:
    """An engine of Hansa's."""
    files = [str(folder / "rows.npz"), str(folder / "out.npz")]
    command = [sys.executable, str(HERE / "run_hansa.py"), name, *files, "--engine", engine]
    return Contender(f"{engine} bf16", [*command, "--bf16"]) if bf16 else Contender(engine, command)


def theirs(peer: str, folder: Path) -> list[Contender]:
    """A peer, in each setting that may be its best."""
    files = [str(HERE / f"run_{peer}.py"), str(folder / "visits.npz"), str(folder / "out.npz")]
    alone = [str(python(peer))]
    if peer == "fedjax":
        return [Contender("fedjax jit", [*alone, *files])]
    if peer == "pfl":
        many = [*alone, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={CORES}"]
        return [Contender("pfl 1", [*alone, *files]), Contender(f"pfl {CORES}", [*many, *files])]
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    return [Contender(peer, [*alone, *files], {**quiet, "PYTHONPATH": str(HERE)})]  # for Ray's actors


def measure(one: Contender, folder: Path, cohort: int) -> None:
    """One turn of a contender."""
    out, log = folder / "out.npz", folder / "log"
    out.unlink(missing_ok=True)
    environment = {**os.environ, **one.environment}
    with open(log, "wb") as file:
        process = subprocess.Popen(
            one.command, stdout=file, stderr=file, cwd=folder, env=environment, start_new_session=True
        )
        tree = Tree(process.pid)
        try:
            process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        finally:
            memory = tree.stop()
    if not out.exists():
        print(f"{one.name}: no result; the last it said:\n{log.read_text(errors='replace')[-2000:]}", file=sys.stderr)
        return
    with np.load(out) as result:
        one.speeds.append(cohort / float(np.median(result["seconds"])))
        one.weights = [result[f"w{i}"] for i in range(len(result.files) - 1)]
    one.memory = max(one.memory, memory)


def off(one: Contender, reference: list[Array]) -> float:
    """The greatest difference of a weight from the reference; NaN where it failed."""
    if not one.weights:
        return float("nan")
    return max(float(np.abs(a.astype(np.float64) - b).max()) for a, b in zip(one.weights, reference, strict=True))


def table(contenders: list[Contender], reference: list[Array]) -> None:
    """Prints what was measured, the fastest first."""
    print(f"{'':<14}{'updates/s':>12}{'from float64':>15}{'PSS, MB':>10}   the repeats")
    for one in sorted(contenders, key=lambda c: -c.speed):
        repeats = " ".join(f"{speed:.0f}" for speed in one.speeds) or "failed"
        print(f"{one.name:<14}{one.speed:>12.1f}{off(one, reference):>15.1e}{one.memory / 1e6:>10.0f}   {repeats}")


def compared(name: str, engines: list[str], peers: list[str], repeats: int, bf16: bool) -> None:
    """One sitting: a table, and a line RESULT for each engine."""
    with tempfile.TemporaryDirectory(prefix="hansa-peers-") as scratch:
        folder = Path(scratch)
        write(name, folder)
        visits = Visits(folder / "visits.npz")
        own = [
            ours(name, engine, folder, precise)
            for engine in engines
            for precise in ([False, True] if bf16 else [False])
        ]
        others = {peer: theirs(peer, folder) for peer in peers}
        everyone = [*own, *(one for settings in others.values() for one in settings)]
        for _ in range(repeats):
            for one in everyone:
                measure(one, folder, visits.cohort)
        reference = exact(visits)
    table(everyone, reference)
    print(f"workload {name}, {CORES} cores, {repeats} repeats, load at the end {os.getloadavg()[0]:.1f}")
    best = {peer: max(settings, key=lambda one: one.speed) for peer, settings in others.items()}
    for one in own:
        facts = {
            "workload": name,
            "engine": one.name,
            "updates_per_s": round(one.speed, 1),
            "peers": {peer: round(other.speed, 1) for peer, other in best.items()},
            "ratios": {peer: round(one.speed / other.speed, 2) for peer, other in best.items() if other.speed},
            "max_diff_f64": off(one, reference),
            "pss_mb": round(one.memory / 1e6),
        }
        print("RESULT", json.dumps(facts))


def chosen(text: str) -> list[str]:
    """Names between commas."""
    return [name for name in text.split(",") if name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", choices=sorted(WORK), default="a")
    parser.add_argument("--engine", type=chosen, default=["loop", "processes"], help="ours, between commas")
    parser.add_argument("--peers", type=chosen, default=[], help=f"of {','.join(PEERS)}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--bf16", action="store_true", help="each engine of ours once more in bfloat16")
    args = parser.parse_args()
    for peer in args.peers:
        if peer not in PEERS:
            parser.error(f"no peer {peer}; there are: {', '.join(PEERS)}")
        if not ready(peer):
            parser.error(f"peer {peer} is not installed; make peers")
    compared(args.workload, args.engine, args.peers, args.repeats, args.bf16)


if __name__ == "__main__":
    main()
