"""How much memory a deployed run needs, and whether it grows.

(a) The server with 20 sites of 10 million parameters: its peak above what it needs before the first round. The sites
    are threads of one other process; they speak the real link, fetch every model and upload a vector of its size.
(b) A hundred rounds of three sites that have nothing to do: how many MB a round each process grows by, from a line
    fitted to the last eighty. MB are 10^6 bytes, resident; what is mapped from files counts.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from rounds import RUN, SITES, console_to_nowhere, deployed, write_app

from clients.link import Identity, Invitation, Link
from hansa.config import load
from hansa.files import write_atomically
from hansa.layout import Layout
from hansa.startup import CA, TLS_CERTIFICATE, TLS_KEY
from hansa.tables import FederationTable
from hansa.task import Task
from hansa.taskfile import load_class
from hansa.wire.link_pb2 import Result, SiteFrame
from server.provision import Founding, provision
from server.serving import Seat, Serving
from strategies.base import Strategy

PARAMETERS, MANY = 10_000_000, 20
LIMIT = (4 * PARAMETERS * 4 + 300e6) / 1e6  # MB: four vectors, and 300 MB
GROWTH = 0.1  # MB a round
INVITATIONS, MEMORY = "invitations.json", "memory.json"


def resident(pid: int | str, field: str = "VmRSS") -> float:
    """MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(field))


# (a)


def peak(folder: Path, sites: int, parameters: int, rounds: int) -> dict[str, float]:
    """The server's memory in MB: before the first round, and at its peak."""
    names = [f"site-{number:02d}" for number in range(sites)]
    provision(folder / "consortium", names, Founding("memory", direct=True), datetime.now(UTC))
    file = folder / "consortium" / "server" / "server.toml"
    file.write_text(file.read_text().replace("127.0.0.1:9093", "127.0.0.1:0"))
    write_app(folder / "app", rounds, parameters)
    processes = [
        subprocess.Popen([sys.executable, __file__, "--as", part, str(folder)]) for part in ("server", "stubs")
    ]
    try:
        for process in processes:
            if process.wait(900):
                raise SystemExit(f"a part of the benchmark has failed; see above (it ran in {folder})")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    measured: dict[str, float] = json.loads((folder / MEMORY).read_text())
    return measured


class NoFlower:
    """Invites by a file."""

    def __init__(self, folder: Path, sites: list[str]) -> None:
        self.file, self.sites, self.declined = folder / INVITATIONS, sites, dict[str, str]()
        self.busy = dict[str, list[str]]()

    def look(
        self, sites: Collection[str], present: set[str], invitation: Callable[[str, int], Mapping[str, str | int]]
    ) -> None:
        if not self.file.exists():
            said = {site: {**invitation(site, node), "node": node} for node, site in enumerate(self.sites, 1)}
            write_atomically(self.file, json.dumps(said).encode())

    def drain(self, seconds: float) -> None:
        pass


def serve(folder: Path) -> None:
    """The server's process."""
    before = 0.0

    def say(line: str) -> None:
        nonlocal before
        print(f"server: {line}", flush=True)
        if line.endswith("sites are here"):  # the last word before the first round
            before = resident("self")
            Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew

    server = folder / "consortium" / "server"
    sites = sorted(path.name for path in (folder / "consortium" / "sites").iterdir())
    Serving(folder / "app", Seat(server, RUN, 1), NoFlower(folder, sites), say).serve()
    write_atomically(folder / MEMORY, json.dumps({"before": before, "peak": resident("self", "VmHWM")}).encode())


def stubs(folder: Path) -> None:
    """The process of all sites."""
    while not (folder / INVITATIONS).exists():
        time.sleep(0.1)
    config = load(folder / "app" / "federation.toml")
    task = load_class(config.table("federation", FederationTable).task, config.folder, Task, "task")()
    layout, strategy = Layout.of(task.model()), config.table("strategy", Strategy)
    update = np.random.default_rng(1).normal(0, 1e-3, layout.size).astype("<f4")
    update.tofile(folder / "update")
    threads = []
    for site, said in json.loads((folder / INVITATIONS).read_text()).items():
        invitation = Invitation(**said, layout=layout.digest, strategy=strategy.digest)
        threads.append(threading.Thread(target=stub, args=(folder, site, invitation)))
        threads[-1].start()
    for thread in threads:
        thread.join()


def stub(folder: Path, site: str, invitation: Invitation) -> None:
    """A site: it fetches, and sends the same update each time."""
    home = folder / "consortium" / "sites" / site
    identity = Identity(home / CA, home / TLS_CERTIFICATE, home / TLS_KEY)
    with Link(invitation, identity, home / "spool") as link:
        for frame in link:
            if frame.WhichOneof("frame") == "plan":
                plan = frame.plan
                link.fetch(plan)
                result = Result(plan=plan.id, round=plan.round, examples=100)
                if plan.kind == "train":
                    result.upload.CopyFrom(link.upload(plan.id, folder / "update"))
                link.send(SiteFrame(result=result))


# (b)


class Sampler(threading.Thread):
    """Looks at the processes of a consortium, ten times a second."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.over = str(folder), threading.Event()
        self.seen: dict[str, list[tuple[float, float]]] = {"server": [], "site": [], "child": []}  # (time, MB)
        self.processes: dict[str, str] = {}  # pid -> which it is

    def run(self) -> None:
        while not self.over.wait(0.1):
            if len(self.processes) < 1 + 2 * len(SITES):
                self.look()
            for pid, which in self.processes.items():
                try:
                    self.seen[f"{which} {pid}"] = [*self.seen.get(f"{which} {pid}", ()), (time.time(), resident(pid))]
                except (OSError, StopIteration):
                    continue  # it has ended

    def look(self) -> None:
        """Finds the processes by what they are and by the folder in their environment."""
        programs = {"flwr-serverapp": "server", "flwr-clientapp": "site", "clients.workers.serve": "child"}
        for path in Path("/proc").iterdir():
            if path.name.isdigit() and path.name not in self.processes:
                try:
                    command, environment = (path / "cmdline").read_text(), (path / "environ").read_text()
                except (OSError, UnicodeDecodeError):
                    continue
                which = next((name for program, name in programs.items() if program in command), None)
                if which and self.folder in environment:
                    self.processes[path.name] = which


def slopes(folder: Path, rounds: int) -> dict[str, float]:
    """MB a round by which the processes grow: the fastest of a kind."""
    sampler = Sampler(folder)
    sampler.start()
    store = deployed(folder, rounds, console_to_nowhere())
    sampler.over.set()
    sampler.join()
    table = store.rounds(RUN)
    table = table[table["kind"] == "train"]
    ended = np.array([datetime.fromisoformat(text).timestamp() for text in table["entered"]])
    grown: dict[str, float] = {}
    for name, samples in sampler.seen.items():
        at, size = np.array(samples).T if samples else np.empty((2, 0))
        inside = (at >= ended[rounds // 5]) & (at <= ended[-1])
        if inside.sum() > 2:
            number = np.interp(at[inside], ended, np.arange(1, len(ended) + 1))
            slope, which = float(np.polyfit(number, size[inside], 1)[0]), name.split()[0]
            print(f"{name}: {size[inside][0]:.1f} MB, then {size[inside][-1]:.1f} MB, {slope:+.4f} MB a round")
            grown[which] = max(slope, grown.get(which, -np.inf))
    return grown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--as", dest="part", choices=["server", "stubs"], help=argparse.SUPPRESS)
    parser.add_argument("folder", type=Path, nargs="?", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        {"server": serve, "stubs": stubs}[args.part](args.folder)
        return
    with tempfile.TemporaryDirectory(prefix="hansa-memory-", ignore_cleanup_errors=True) as scratch:
        server = peak(Path(scratch) / "peak", MANY, PARAMETERS, 3)
        grown = slopes(Path(scratch) / "slopes", args.rounds)
    above = server["peak"] - server["before"]
    facts: dict[str, Any] = {
        "server_peak_mb": round(above, 1),
        "server_limit_mb": round(LIMIT, 1),
        **{f"slope_{which}_mb": round(grown[which], 4) for which in ("server", "site", "child")},
    }
    print(f"server, {MANY} sites of {PARAMETERS:,} parameters: {server['before']:.0f} MB before the first round,")
    print(f"  {server['peak']:.0f} MB at its peak: {above:.0f} MB more; the bar is {LIMIT:.0f} MB")
    print(f"growth in {args.rounds} rounds; the bar is {GROWTH} MB a round; load {os.getloadavg()[0]:.1f}")
    print(f"RESULT {json.dumps(facts)}")


if __name__ == "__main__":
    main()
