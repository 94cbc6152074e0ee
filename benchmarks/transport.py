"""How fast bulk bytes go: Hansa's link, raw gRPC on the same TLS, and plain Flower, in one sitting.

Two sites in processes of their own move a vector down and up, over loopback with mutual TLS. Hansa's figures have all
checks in them: hashes at both ends, floats that must be finite, files on disk at both ends. Raw gRPC moves the same
bytes in the same chunks between the same processes and looks at none. Flower carries them in its messages, down and up
in one exchange: its figure is all bytes over all seconds, and has its polls and processes in it. What an exchange of
nothing takes is printed beside it.

    python benchmarks/transport.py [--megabytes 40] [--repeats 5] [--no-flower]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import grpc
import numpy as np

from clients import link as site_end
from hansa import identity
from hansa.wire import rules
from hansa.wire.link_pb2 import Blob, Plan, Result, SiteFrame
from server import link as server_end
from server.arrivals import Answered, Joined
from server.hello import Terms, token

SITES = ("a", "b")
SECRET = b"benchmark"
RAW = "hansa.Raw"


def main() -> None:
    """Measures, prints a table, and last a line for machines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=40, help="of the vector (10^6 bytes)")
    parser.add_argument("--repeats", type=int, default=5, help="of which the median counts")
    parser.add_argument("--no-flower", action="store_true", help="leave Flower out")
    parser.add_argument("--site", nargs=3, metavar=("NAME", "FOLDER", "PORTS"), help=argparse.SUPPRESS)
    said = parser.parse_args()
    if said.site:
        site, folder, ports = said.site
        be_a_site(site, Path(folder), *map(int, ports.split(",")))
        return
    size = said.megabytes * 10**6
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_identities(folder)
        down, up, raw_down, raw_up = measure(folder, size, said.repeats)
    numbers = {
        "down_MBps": down,
        "up_MBps": up,
        "raw_down_MBps": raw_down,
        "raw_up_MBps": raw_up,
        "raw_MBps": min(raw_down, raw_up),
        "down_of_raw": down / raw_down,
        "up_of_raw": up / raw_up,
    }
    rows = [("Hansa", down, up), ("raw gRPC", raw_down, raw_up)]
    if not said.no_flower:
        import flower_peer

        seconds, empty = flower_peer.exchange(size, max(1, said.repeats // 2))
        rate = 2 * len(SITES) * size / seconds / 1e6
        rows.append(("Flower", rate, rate))
        numbers |= {"flower_MBps": rate, "flower_s": seconds, "flower_empty_s": empty, "ratio": min(down, up) / rate}
    print(f"{len(SITES)} sites, {said.megabytes} MB each, {os.cpu_count()} processors")
    print(f"{'MB/s, both sites':<26}{'down':>8}{'up':>8}")
    for what, one, other in rows:
        print(f"{what:<26}{one:>8.0f}{other:>8.0f}")
    if not said.no_flower:
        print(f"Flower: {seconds:.1f} s for an exchange, {empty:.1f} s for one of nothing")
    print(f"of raw gRPC: down {down / raw_down:.0%}, up {up / raw_up:.0%}")
    print("RESULT", json.dumps({name: round(value, 3) for name, value in numbers.items()}))


def write_identities(folder: Path) -> None:
    now = datetime.now(UTC)
    authority = identity.make_authority("benchmark", now)
    made = {"server": identity.make_server(authority, ["127.0.0.1"], now)}
    made |= {site: identity.make_site(authority, site, now) for site in SITES}
    (folder / "ca.crt").write_bytes(authority.certificate)
    for name, one in made.items():
        (folder / f"{name}.crt").write_bytes(one.certificate)
        (folder / f"{name}.key").write_bytes(one.key)


def files(folder: Path, name: str) -> tuple[Path, Path, Path]:
    return folder / "ca.crt", folder / f"{name}.crt", folder / f"{name}.key"


# the server's side


def measure(folder: Path, size: int, repeats: int) -> tuple[float, float, float, float]:
    """MB/s of both sites together: Hansa's down and up, raw gRPC's down and up. The four take turns."""
    terms = Terms("run", 1, SITES, "layout", "strategy", SECRET)
    links = server_end.Links(terms, server_end.Identity(*files(folder, "server")), folder / "uploads")
    vector = np.random.default_rng(0).standard_normal(size // 4).astype("<f4")
    raw, raw_port = raw_server(folder, vector.tobytes())
    ports = f"{links.start('127.0.0.1:0')},{raw_port}"
    command = [sys.executable, __file__, "--megabytes", str(size // 10**6), "--site"]
    sites = [
        subprocess.Popen([*command, site, folder, ports], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for site in SITES
    ]
    try:
        for _ in SITES:
            await_event(links, Joined)
        turns: dict[str, Callable[[int], None]] = {
            "down": lambda number: down(links, sites, vector, number),
            "up": lambda number: up(links, sites, size, number),
            "raw-down": lambda number: ask(sites, "raw-down"),
            "raw-up": lambda number: ask(sites, "raw-up"),
        }
        rates: dict[str, list[float]] = {name: [] for name in turns}
        for number in range(repeats + 1):  # the first is for warming up
            vector += 1  # other bytes, so that no site has them
            ask(sites, "new")
            for name, turn in turns.items():
                began = time.perf_counter()
                turn(number)
                rates[name].append(len(SITES) * size / (time.perf_counter() - began) / 1e6)
            links.retire(f"down-{number}")
            links.retire(f"up-{number}")
    finally:
        for site in sites:
            site.terminate()
            site.wait()
        links.stop(0)
        raw.stop(0).wait()
    medians = [statistics.median(rates[name][1:]) for name in turns]
    return medians[0], medians[1], medians[2], medians[3]


def down(links: server_end.Links, sites: Sequence[subprocess.Popen[str]], vector: np.ndarray, number: int) -> None:
    """Offers the vector, hashed, and waits until both sites have it, checked and on disk."""
    blobs = links.offer(f"down-{number}", {"params": vector.view(np.uint8).data})
    ask(sites, "down", Plan(id=f"down-{number}", vectors=blobs).SerializeToString().hex())


def up(links: server_end.Links, sites: Sequence[subprocess.Popen[str]], size: int, number: int) -> None:
    """Waits until both sites' answers are there, checked and on disk."""
    links.expect(f"up-{number}", size // 4, 0)
    ask(sites, "up", f"up-{number}")
    for _ in sites:
        await_event(links, Answered)


def ask(sites: Sequence[subprocess.Popen[str]], *words: str) -> None:
    """Tells both sites to do something, and waits until they have."""
    for site in sites:
        assert site.stdin
        print(*words, file=site.stdin, flush=True)
    for site in sites:
        assert site.stdout
        if site.stdout.readline() != "done\n":
            raise RuntimeError("a site has failed: see above")


def await_event(links: server_end.Links, kind: type) -> None:
    while not isinstance(event := links.events.get(timeout=60), kind):
        print(event, file=sys.stderr)


def raw_server(folder: Path, data: bytes) -> tuple[grpc.Server, int]:
    """Gives the same bytes to whoever asks, and takes what comes."""
    messages = [data[start : start + rules.CHUNK] for start in range(0, len(data), rules.CHUNK)]

    def take(chunks: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        for _ in chunks:
            pass
        return b""

    handlers = {
        "Down": grpc.unary_stream_rpc_method_handler(lambda _, context: iter(messages)),
        "Up": grpc.stream_unary_rpc_method_handler(take),
    }
    server = grpc.server(ThreadPoolExecutor(8), options=rules.KEEPALIVE)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(RAW, handlers),))
    port = server.add_secure_port("127.0.0.1:0", server_end.Identity(*files(folder, "server")).credentials())
    server.start()
    return server, port


# a site's side


def be_a_site(site: str, folder: Path, port: int, raw_port: int) -> None:
    """Does what it reads, a line at a time."""
    size = int(sys.argv[sys.argv.index("--megabytes") + 1]) * 10**6
    own = site_end.Identity(*files(folder, site))
    said = site_end.Invitation(f"127.0.0.1:{port}", "run", 1, 0, "layout", "strategy", token(SECRET, "run", site, 0))
    update, file = np.zeros(size // 4, "<f4"), folder / f"{site}.update"
    with site_end.Link(said, own, folder / site) as link, own.channel(f"127.0.0.1:{raw_port}") as channel:
        raw_down = channel.unary_stream(f"/{RAW}/Down", None, None)
        raw_up = channel.stream_unary(f"/{RAW}/Up", None, None)
        messages: list[bytes] = []
        for line in sys.stdin:
            what, *words = line.split()
            if what == "new":
                update += 1
                file.write_bytes(data := update.tobytes())
                messages = [data[start : start + rules.CHUNK] for start in range(0, size, rules.CHUNK)]
            elif what == "down":
                link.fetch(Plan.FromString(bytes.fromhex(words[0])))
            elif what == "up":
                blob: Blob = link.upload(words[0], file)
                link.send(SiteFrame(result=Result(plan=words[0], examples=1, upload=blob)))
            elif what == "raw-down":
                for _ in raw_down(b""):
                    pass
            else:
                raw_up(iter(messages))
            print("done", flush=True)


if __name__ == "__main__":
    main()
