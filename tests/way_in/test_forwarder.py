"""From a site's loopback to what stands behind the server's gate, also through a proxy that cuts quiet connections."""

import asyncio
import base64
import hashlib
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest

from clients.forwarder import LOCAL_CA, LOCAL_PAIR
from clients.link import Link, Orphaned
from hansa.proxy import parse
from hansa.splice import Stream, splice
from hansa.wire.link_pb2 import Plan, Result, ServerFrame, SiteFrame
from server.arrivals import Answered, Joined
from server.revoked import NOBODY

if TYPE_CHECKING:
    from tests.way_in.conftest import Consortium, Flower, Loop

USER, PASSWORD = "clinic", "hunter2:@"
SECRETS = ("hunter2", base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode())
PATH = "/v1/fleet/pull-messages"
WAIT = 20.0


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class ForwardProxy:
    """A proxy that asks who comes, connects, and cuts what is quiet."""

    def __init__(self, loop: "Loop", idle: float) -> None:
        self.loop, self.idle = loop, idle
        self.asked: list[str] = []
        self.cut = 0
        self.server = loop.run(self._listen())
        self.port = int(self.server.sockets[0].getsockname()[1])

    def url(self, password: str = "hunter2%3A%40") -> str:
        return f"http://{USER}:{password}@127.0.0.1:{self.port}"

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(lambda *ends: self._serve(Stream(*ends)), "127.0.0.1", 0)

    async def _serve(self, near: Stream) -> None:
        request, *heads = (await near.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, target, _ = request.split(" ")
        assert method == "CONNECT"
        if f"proxy-authorization: Basic {SECRETS[1]}".lower() not in [head.lower() for head in heads]:
            near.writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            await near.close()
            return
        self.asked.append(target)
        far = Stream(*await asyncio.open_connection(*target.rsplit(":", 1)))
        near.writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await splice(near, far, self.idle)
        self.cut += 1


@pytest.fixture
def proxy(consortium: "Consortium") -> Iterator[ForwardProxy]:
    one = ForwardProxy(consortium.loop, 1.0)
    yield one
    one.loop.loop.call_soon_threadsafe(one.server.close)


def call(consortium: "Consortium", port: int, node: str = "boston", path: str = PATH) -> httpx.Response:
    """What Flower's node does: HTTP over TLS to loopback, one authority trusted, no certificate shown."""
    member = consortium.roster.member(node)
    assert member is not None
    trusted = ssl.create_default_context(cafile=str(consortium.site("boston") / LOCAL_CA))
    key = base64.b64encode(member.nodes[0].encode()).decode()
    with httpx.Client(verify=trusted, trust_env=False, timeout=WAIT) as client:
        url = f"https://127.0.0.1:{port}{path}"
        return client.post(url, content=b"hello", headers={"flwr-public-key": key})


def exchange(consortium: "Consortium", link: Link, pause: float = 0.0) -> None:
    """A vector down, and an upload up, both byte for byte."""
    (run,) = consortium.runs
    vector, update = np.arange(300_000, dtype="<f4").tobytes(), np.arange(200_000, dtype="<f4").tobytes()
    assert isinstance(run.links.events.get(timeout=WAIT), Joined)
    run.links.expect("p", 200_000, 0)
    run.links.send("boston", ServerFrame(plan=Plan(id="p", vectors=run.links.offer("p", {"w": memoryview(vector)}))))
    frame = link.next(WAIT)
    assert frame is not None
    assert link.fetch(frame.plan)["w"].read_bytes() == vector
    time.sleep(pause)
    (path := consortium.folder / "update").write_bytes(update)
    blob = link.upload("p", path)
    assert blob.sha256 == hashlib.sha256(update).digest()
    link.send(SiteFrame(result=Result(plan="p", round=1, examples=3, upload=blob)))
    answer = run.links.events.get(timeout=WAIT)  # the next event: nobody has left meanwhile
    assert isinstance(answer, Answered)
    assert isinstance(answer.upload, Path)
    assert answer.upload.read_bytes() == update


def test_a_node_reaches_flower_and_a_session_its_run(consortium: "Consortium", flower: "Flower") -> None:
    consortium.run("run")
    node, session = consortium.forwarder("boston", consortium.gate(flower.port))
    assert call(consortium, node).content == b"hello"
    assert call(consortium, node, path="/v1/control/list-runs").status_code == 403
    with consortium.link("boston", "run", session, consortium.folder / "spool") as link:
        exchange(consortium, link)
    assert flower.seen == [("POST", PATH, b"hello")]
    assert consortium.said == []


def test_both_go_through_a_proxy_that_cuts_what_is_quiet(
    consortium: "Consortium", flower: "Flower", proxy: ForwardProxy
) -> None:
    """The session beats twice as often as the proxy would cut it; the connection for vectors is cut, and made anew."""
    gate = consortium.gate(flower.port)
    consortium.run("run")
    node, session = consortium.forwarder("boston", gate, parse(proxy.url()))
    assert call(consortium, node).status_code == 200
    with consortium.link("boston", "run", session, consortium.folder / "spool") as link:
        exchange(consortium, link, pause=2.5)
    assert call(consortium, node).status_code == 200
    assert {*proxy.asked} == {f"127.0.0.1:{gate}"}
    assert proxy.cut
    assert consortium.said == []


def test_a_proxy_that_wants_another_password_is_told_once_without_it(
    consortium: "Consortium", flower: "Flower", proxy: ForwardProxy, capfd: pytest.CaptureFixture[str]
) -> None:
    gate = consortium.gate(flower.port)
    node, session = consortium.forwarder("boston", gate, parse(proxy.url("hunter2")))
    for _ in range(2):
        with pytest.raises(httpx.TransportError):
            call(consortium, node)
    link = consortium.link("boston", "run", session, consortium.folder / "spool", orphan_after=0.5)
    with link, pytest.raises(Orphaned) as orphaned:
        link.next(WAIT)
    assert consortium.said == [f"127.0.0.1:{gate}: proxy 127.0.0.1:{proxy.port} wants another user or password (407)"]
    told = "".join([*consortium.said, str(orphaned.value), *capfd.readouterr()])
    assert not [secret for secret in (*SECRETS, "Basic") if secret in told]


def test_who_answers_in_the_server_s_place_gets_nothing(
    consortium: "Consortium", flower: "Flower", strangers: Path
) -> None:
    """A server of another consortium's, found at the address: the site does not show it a request."""
    for name in ("tls.crt", "tls.key", "ca.crt"):
        (consortium.site("boston") / name).write_bytes((strangers / "sites" / "boston" / name).read_bytes())
    node, _ = consortium.forwarder("boston", gate := consortium.gate(flower.port))
    with pytest.raises(httpx.TransportError):
        call(consortium, node)
    (line,) = consortium.said
    assert line.startswith(f"127.0.0.1:{gate}: what answers there is not this consortium's server: ")
    assert flower.seen == []


def test_a_server_that_is_away_is_told_once_and_so_is_its_return(consortium: "Consortium", flower: "Flower") -> None:
    gate = consortium.gate(flower.port)
    consortium.revoke("boston")
    node, _ = consortium.forwarder("boston", gate)
    for _ in range(2):
        with pytest.raises(httpx.TransportError):
            call(consortium, node)
    until(lambda: consortium.said)
    (consortium.server / "revoked.json").write_bytes(NOBODY)
    assert call(consortium, node).status_code == 200
    assert consortium.said == [
        f"127.0.0.1:{gate}: it answers nothing: its Flower is down, or it takes this site's certificate no longer",
        f"127.0.0.1:{gate}: reached again",
    ]


def test_a_site_s_new_certificate_counts_without_a_restart(consortium: "Consortium", flower: "Flower") -> None:
    node, _ = consortium.forwarder("boston", consortium.gate(flower.port))
    assert call(consortium, node).status_code == 200
    for name, status in (("tls.crt", 200), ("tls.key", 403)):  # half of it is not yet a new one
        (consortium.site("boston") / name).write_bytes((consortium.site("lyon") / name).read_bytes())
        assert call(consortium, node).status_code == status
    assert call(consortium, node).status_code == 403  # lyon's certificate, boston's node
    assert call(consortium, node, "lyon").status_code == 200


def test_only_its_owner_reads_the_key_that_stands_on_loopback(consortium: "Consortium", flower: "Flower") -> None:
    consortium.forwarder("boston", consortium.gate(flower.port))
    assert (consortium.site("boston") / LOCAL_PAIR).stat().st_mode & 0o777 == 0o600
    assert b"PRIVATE" not in (consortium.site("boston") / LOCAL_CA).read_bytes()
