"""A site whose machine has one way out: an HTTP proxy that wants a password and cuts what is quiet for a minute.

The machine is a network namespace with no route but to the proxy's host; the server is outside.
"""

import asyncio
import base64
import contextlib
import io
import json
import os
import re
import secrets
import shutil
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from hansa.appfiles import app_digest, app_files
from hansa.splice import CHUNK
from server import command
from server.store import DONE, FILE, Store
from simulations.demo.consortium import Consortium
from simulations.demo.show import DATA, write_app

SITES = ("north", "south")  # north is inside
EPOCH, IDLE = 120.0, 60.0  # seconds of a local epoch, and until the proxy cuts
SERVER, WITNESS = "fl.hospital.test", "quiet.hospital.test"  # names that only the proxy knows (RFC 6761)
IPV4, ARP, EVERY = 0x0800, 0x0806, 0x0003  # linux/if_ether.h
OUTER, INNER = "198.51.100.1", "198.51.100.2"  # RFC 5737
LARGE = "nn.Sequential(nn.Linear(30, 10_000), nn.ReLU(), nn.Linear(10_000, 1))"  # too large to travel in a frame
SLOW = f"""
    def batch_transform(self, batch):
        if os.environ.get("HANSA_SITE", "").endswith("north"):
            time.sleep({EPOCH})
        return batch
"""


class Machine:
    """A network namespace that reaches one address of the host, and nothing else."""

    def __init__(self) -> None:
        mark = secrets.token_hex(3)
        self.name, self.outer, self.inner = f"hansa-{mark}", f"hv{mark}o", f"hv{mark}i"

    def begin(self) -> None:
        own = ["-n", self.name]
        ip("netns", "add", self.name)
        for name in ("all", "default"):
            self.run("sh", "-c", f"echo 1 > /proc/sys/net/ipv6/conf/{name}/disable_ipv6")
        ip("link", "add", self.outer, "type", "veth", "peer", "name", self.inner, "netns", self.name)
        ip("addr", "add", f"{OUTER}/30", "dev", self.outer)
        ip(*own, "addr", "add", f"{INNER}/30", "dev", self.inner)
        for there, device in (([], self.outer), (own, self.inner), (own, "lo")):
            ip(*there, "link", "set", device, "up")

    def end(self) -> None:
        for what in (["link", "del", self.outer], ["netns", "del", self.name]):
            with contextlib.suppress(subprocess.CalledProcessError):
                ip(*what)

    @property
    def enter(self) -> list[str]:
        """What a command is preceded by that is to run there; it is replaced by the command, and keeps its process."""
        return ["ip", "netns", "exec", self.name]

    def run(self, *arguments: str) -> str:
        return subprocess.run([*self.enter, *arguments], check=True, capture_output=True, text=True).stdout

    def without_route(self) -> int:
        """How often something there wanted to go where no way leads (RFC 4293, ipSystemStatsOutNoRoutes)."""
        names, values = (line.split() for line in self.run("cat", "/proc/net/snmp").splitlines()[:2])
        six = dict(line.split() for line in self.run("cat", "/proc/net/snmp6").splitlines())
        return int(values[names.index("OutNoRoutes")]) + int(six["Ip6OutNoRoutes"])


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


class Tap:
    """Notes where the packets go that come out of a machine."""

    def __init__(self, device: str) -> None:
        self.seen: set[tuple[str, str, int]] = set()
        self._end = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(EVERY))
        self._end.bind((device, EVERY))
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                data, (_, protocol, kind, *_) = self._end.recvfrom(65_535)
                if kind != socket.PACKET_OUTGOING and protocol == IPV4:
                    length, (port,) = 4 * (data[0] & 15), (0,)
                    if data[9] in (socket.IPPROTO_TCP, socket.IPPROTO_UDP):
                        (port,) = struct.unpack_from("!H", data, length + 2)
                    self.seen.add((str(data[9]), socket.inet_ntoa(data[16:20]), port))
                elif kind != socket.PACKET_OUTGOING and protocol != ARP:
                    self.seen.add((f"ethernet {protocol:#06x}", "", 0))

    def close(self) -> None:
        self._end.close()


@dataclass
class Passage:
    """A connection through the proxy, as its record has it."""

    target: str
    began: float
    moved: float
    carried: int = 0  # bytes
    cut_after: float | None = None  # seconds without traffic


class ForwardProxy:
    """Knows CONNECT only, asks who comes, and cuts what is quiet."""

    def __init__(self, ways: Mapping[str, int]) -> None:
        self.ways, self.passages, self.refused = ways, list[Passage](), list[str]()
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        started = asyncio.run_coroutine_threadsafe(asyncio.start_server(self._serve, OUTER, 0), self.loop)
        self.port = int(started.result().sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://clinic:hunter2@{OUTER}:{self.port}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, target, _ = head.split("\r\n")[0].split(" ")
        known = base64.b64encode(b"clinic:hunter2").decode() in head
        if method != "CONNECT" or not known or target.rsplit(":", 1)[0] not in self.ways:
            self.refused.append(f"{method} {target} {known}")
            writer.close()
            return
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.ways[target.rsplit(":", 1)[0]])
        except OSError:  # the server is still coming up
            writer.write(b"HTTP/1.1 502 Bad Gateway\r\n\r\n")
            writer.close()
            return
        passage = Passage(target, now := self.loop.time(), now)
        self.passages.append(passage)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        pumps = [
            asyncio.create_task(self._pump(passage, source, sink))
            for source, sink in ((reader, far_writer), (far_reader, writer))
        ]
        while not any(pump.done() for pump in pumps):
            if (quiet := self.loop.time() - passage.moved) >= IDLE:
                passage.cut_after = quiet
                break
            await asyncio.wait(pumps, timeout=IDLE - quiet, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for end in (writer, far_writer):
            end.transport.abort()

    async def _pump(self, passage: Passage, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(CHUNK):
            passage.moved, passage.carried = self.loop.time(), passage.carried + len(data)
            sink.write(data)
            await sink.drain()

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)


class Inside(Consortium):
    """A consortium whose north is on the machine behind the proxy; its gate listens where that one does not reach."""

    def __init__(self, folder: Path, machine: Machine) -> None:
        super().__init__(folder, SITES)
        self.machine, file = machine, self.server / "server.toml"
        found = re.search(r'(?m)^flower = "127\.0\.0\.1:(\d+)"', text := file.read_text())
        assert found is not None
        self.port = int(found[1])
        public = f'flower = "127.0.0.1:0"\npublic = "127.0.0.1:{self.port}"\nname = "{SERVER}"'
        file.write_text(re.sub(r"(?m)^session = .*\n", "", text.replace(found[0], public)))

    def start(self, folder: Path) -> None:
        """Starts a supervisor, north's on its machine."""
        if folder != self.site("north"):
            super().start(folder)
            return
        with (self.folder / "north.log").open("ab") as log:
            up = [*self.machine.enter, str(Path(sys.executable).with_name("hansa")), "site", "up", str(folder)]
            self.supervisors[folder] = subprocess.Popen(
                up, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )

    def written(self) -> str:
        """All that is written of it in logs."""
        return "".join(
            path.read_text(errors="replace") for path in [*self.folder.rglob("logs/*"), *self.folder.glob("*.log")]
        )


QUIET = """
import base64, socket, sys
end = socket.create_connection((sys.argv[1], int(sys.argv[2])))
user = base64.b64encode(b"clinic:hunter2").decode()
lines = [f"CONNECT {sys.argv[3]}:1 HTTP/1.1", "host: x", f"proxy-authorization: Basic {user}", "", ""]
end.sendall("\\r\\n".join(lines).encode())
while end.recv(4096):
    pass
"""
ELSEWHERE = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('203.0.113.1', 53))"


@pytest.fixture
def machine() -> Iterator[Machine]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root, and ip of iproute2")
    one = Machine()
    try:
        one.begin()
        yield one
    finally:
        one.end()


@pytest.fixture
def silence() -> Iterator[int]:
    """The port of somebody who takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


@pytest.mark.root
@pytest.mark.long
def test_a_run_of_long_epochs_loses_no_round_behind_a_proxy_that_cuts_quiet_connections(
    machine: Machine, silence: int, tmp_path: Path
) -> None:
    heart = Inside(tmp_path / "heart", machine)
    app, ways = write_app(tmp_path / "app", 'name = "fedavg"'), {SERVER: heart.port, WITNESS: silence}
    toml, task = app / "federation.toml", app / "task.py"
    said = toml.read_text().replace("rounds = 10", "rounds = 2").replace("epochs = 2", "epochs = 1")
    toml.write_text(said.replace("batch_size = 16", "batch_size = 100000"))
    code = task.read_text().replace("nn.Linear(30, 1)", LARGE)
    task.write_text(f"import os\nimport time\n{code}{SLOW}")
    proxy, tap = ForwardProxy(ways), Tap(machine.outer)
    tables = {"apps": f"allowed = {json.dumps([app_digest(app_files(app))])}\n", "data": DATA}
    tables |= {"training": 'device = "cpu"\nthreads = 1\n', "policy": "allow_unprotected = true\n"}
    for seed, site in enumerate(SITES):
        rows = pd.DataFrame(np.random.default_rng(seed).normal(size=(40, 30)), columns=[f"x{n}" for n in range(30)])
        rows.assign(malignant=(rows["x0"] > 0).astype(int)).to_csv(heart.site(site) / "rows.csv", index=False)
        heart.write_site(site, tables | {"network": "gate = true\n"})
    network = f'gate = true\nproxy = "{proxy.url}"\n'
    heart.write_site("north", {"site": f'name = "north"\nserver = "{SERVER}:443"\n', "network": network})
    before = machine.without_route()
    quiet = [*machine.enter, sys.executable, "-c", QUIET, OUTER, str(proxy.port), WITNESS]
    try:
        with heart, subprocess.Popen(quiet) as witness:
            command.start(app, heart.server, name="r1", detach=False, console=Console(file=io.StringIO()))
            assert witness.wait(10) == 0  # its connection was cut
        store = Store(heart.server / "runs" / FILE)
        rounds, events = store.rounds("r1").query("kind == 'train'"), "\n".join(store.events("r1")["text"])
    finally:
        proxy.close()
        tap.close()
        for one in proxy.passages:
            cut = "" if one.cut_after is None else f", cut after {one.cut_after:.1f} s without traffic"
            print(f"{one.target}: {one.moved - one.began:.1f} s, {one.carried} bytes{cut}")
    print(events, rounds.to_string(), tap.seen, sep="\n")
    assert store.entry("r1")["state"] in DONE
    assert rounds["took_part"].tolist() == [2, 2]
    assert rounds["void"].isna().all()
    assert rounds["seconds"].min() >= EPOCH
    assert max(one.carried for one in proxy.passages) > 1 << 20  # vectors have a connection beside the session's
    assert " left: " not in events
    cuts = [one for one in proxy.passages if one.cut_after is not None]
    assert WITNESS in {one.target.rsplit(":", 1)[0] for one in cuts}
    assert all(one.cut_after is not None and one.cut_after >= IDLE for one in cuts)
    assert {one.target for one in proxy.passages} == {f"{SERVER}:443", f"{WITNESS}:1"}
    assert proxy.refused == []
    assert tap.seen == {(str(socket.IPPROTO_TCP), OUTER, proxy.port)}
    assert machine.without_route() == before
    with pytest.raises(subprocess.CalledProcessError):
        machine.run(sys.executable, "-c", ELSEWHERE)
    assert machine.without_route() == before + 1  # that is how it would have been seen
    assert "hunter2" not in heart.written()
