"""Both supervisors with Flower's own processes: nothing but the gate's port, and a proxy before it."""

import contextlib
import io
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pandas as pd
import pytest
from rich.console import Console
from sklearn.datasets import load_breast_cancer

from hansa.appfiles import app_digest, app_files
from hansa.processes import command_of, marked
from hansa.routes import FLEET
from hansa.supervise import told
from server import command
from server.store import DONE, FILE, Store
from simulations.datasets.breast_cancer import BreastCancer
from simulations.demo.consortium import Consortium
from simulations.demo.show import DATA, write_app

WAIT = 30.0  # seconds for what takes a few on an idle machine
SITES = ("north", "south")


class Behind(Consortium):
    """A consortium whose server has one public port; the name that it tells leads nowhere (RFC 5737)."""

    def __init__(self, folder: Path, proxy: str) -> None:
        super().__init__(folder, SITES)
        file = self.server / "server.toml"
        found = re.search(r'(?m)^flower = "127\.0\.0\.1:(\d+)"', text := file.read_text())
        assert found is not None
        self.port = int(found[1])  # that which the sites were given
        text = text.replace(found[0], f'flower = "127.0.0.1:0"\npublic = "127.0.0.1:{self.port}"\nname = "192.0.2.1"')
        file.write_text(re.sub(r"(?m)^session = .*\n", "", text))
        for site in SITES:
            self.write_site(site, {"network": f'gate = true\nproxy = "{proxy}"\n'})

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT
        while not self._holds(condition):
            assert time.monotonic() < deadline
            time.sleep(0.1)

    @staticmethod
    def _holds(condition: Callable[[], object]) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return bool(condition())
        return False

    def logs(self) -> str:
        """All that is written of it anywhere."""
        return "".join(path.read_text(errors="replace") for path in self.folder.rglob("logs/*"))


class CountingProxy:
    """A forwarding proxy in a process of its own, which notes what it is asked for."""

    CODE = """
import asyncio, base64, sys
async def serve(reader, writer):
    head = (await reader.readuntil(b"\\r\\n\\r\\n")).decode()
    assert base64.b64encode(b"clinic:hunter2").decode() in head
    print(head.split()[1], flush=True)
    ends = (reader, writer), await asyncio.open_connection(*head.split()[1].rsplit(":", 1))
    writer.write(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
    async def pump(source, sink):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    ways = [asyncio.create_task(pump(ends[a][0], ends[1 - a][1])) for a in (0, 1)]
    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    for _, end in ends:
        end.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "proxy.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-c", self.CODE], stdout=log, stderr=subprocess.DEVNULL)
        while not self.log.read_text().endswith("\n"):
            assert self.process.poll() is None
        self.url = f"http://clinic:hunter2@127.0.0.1:{self.log.read_text().split()[0]}"

    @property
    def asked(self) -> list[str]:
        return self.log.read_text().split()[1:]


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[CountingProxy]:
    one = CountingProxy(tmp_path)
    yield one
    one.process.kill()
    one.process.wait()


def post(address: str, name: str, own: Path, path: str) -> int:
    """The status that a site gets for a request of its own."""
    trusted = ssl.create_default_context(cafile=str(own / "ca.crt"))
    trusted.load_cert_chain(own / "tls.crt", own / "tls.key")
    with httpx.Client(verify=trusted, trust_env=False, timeout=20) as client:
        asked = client.build_request("POST", f"https://{address}{path}", extensions={"sni_hostname": name})
        return client.send(asked).status_code


def test_nodes_connect_by_the_one_port_which_leads_to_no_other_interface(tmp_path: Path, proxy: CountingProxy) -> None:
    with Behind(tmp_path / "heart", proxy.url) as heart:
        assert heart.connected() == set(SITES)
        assert set(proxy.asked) == {f"127.0.0.1:{heart.port}"}
        facts, own = told(heart.server, "server"), heart.site("north")
        assert facts is not None
        assert facts["public"] == f"127.0.0.1:{heart.port}"
        assert facts["address"] != facts["public"]
        path = "/v1/control/list-nodes"
        assert post(facts["address"], "localhost", own, path) != 403  # there it is, for whoever is on this machine
        assert post(facts["public"], FLEET, own, path) == 403
        gate = [gate for gate in marked(facts["mark"]) if "server.gate" in command_of(gate)]
        before = len(proxy.asked)
        os.kill(gate[0], signal.SIGKILL)
        heart.until(lambda: len(proxy.asked) >= before + len(SITES))  # the nodes find the gate's successor
        heart.until(lambda: post(facts["public"], FLEET, own, path) == 403)
    assert "hunter2" not in heart.logs()


@pytest.mark.long
def test_a_run_goes_through_the_gate_and_a_proxy(tmp_path: Path, proxy: CountingProxy) -> None:
    heart, app = Behind(tmp_path / "heart", proxy.url), write_app(tmp_path / "app", 'name = "fedavg"')
    toml = app / "federation.toml"
    toml.write_text(toml.read_text().replace("rounds = 10", "rounds = 3"))
    allowed = f"allowed = {json.dumps([app_digest(app_files(app))])}\n"
    for site in SITES:
        rows = BreastCancer().arrays()[site]
        columns = [str(name).replace(" ", "_") for name in load_breast_cancer().feature_names]
        frame = pd.DataFrame(rows.x_train.numpy(), columns=columns).assign(malignant=rows.y_train.numpy())
        frame.to_csv(heart.site(site) / "rows.csv", index=False)
        training = 'device = "cpu"\nthreads = 1\n'
        tables = {"apps": allowed, "data": DATA, "training": training, "policy": "allow_unprotected = true\n"}
        heart.write_site(site, tables)
    with heart:
        command.start(app, heart.server, name="r1", detach=False, console=Console(file=io.StringIO()))
        assert Store(heart.server / "runs" / FILE).entry("r1")["state"] in DONE
        assert set(proxy.asked) == {f"127.0.0.1:{heart.port}"}
    assert "hunter2" not in heart.logs()
