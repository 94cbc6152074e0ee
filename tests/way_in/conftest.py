"""A consortium's folders, and its gate on loopback with what stands behind it."""

import asyncio
import contextlib
import json
import shutil
import socket
import ssl
import threading
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvicorn

from clients import link as site_end
from clients.forwarder import Forwarder, write_local
from clients.link import Invitation, Link
from hansa import identity
from hansa.dial import Way
from hansa.identity import Credential
from hansa.proxy import Proxy
from hansa.roster import Roster
from hansa.routes import FLEET, session_name
from hansa.startup import read_roster
from server import link as server_end
from server.fleet import Fleet
from server.gate import Gate
from server.hello import Terms, token
from server.launch import announce
from server.link import Links
from server.provision import Founding, provision
from server.revoked import Revoked
from server.sessions import SESSION, Sessions

T = TypeVar("T")
SECRET = b"of the run"
BEAT = 0.5  # seconds
WAIT = 20.0  # seconds for what takes less than one on an idle machine


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.start(work).result(WAIT)

    def close(self, servers: Sequence[asyncio.Server]) -> None:
        async def cancel() -> None:
            for server in servers:
                server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.loop.shutdown_default_executor()

        self.run(cancel())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


class Flower:
    """uvicorn, which serves Flower's SuperLink, with the server's certificate; it notes which requests reach it."""

    def __init__(self, folder: Path) -> None:
        self.seen: list[tuple[str, str, bytes]] = []
        tls = {"ssl_certfile": str(folder / "tls.crt"), "ssl_keyfile": str(folder / "tls.key")}
        config = uvicorn.Config(
            self.app,
            interface="asgi3",
            ws="none",
            lifespan="off",
            log_level="critical",
            **tls,  # type: ignore[arg-type]
        )
        self.server, self.listener = uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.thread = threading.Thread(target=self.server.run, args=([self.listener],))
        self.thread.start()

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.seen.append((scope["method"], scope["path"], body))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})

    def close(self) -> None:
        self.server.should_exit = self.server.force_exit = True
        self.thread.join()
        self.listener.close()


@dataclass
class Run:
    """A run's end of sessions, as the ServerApp holds it."""

    name: str
    links: Links
    port: int

    def close(self) -> None:
        self.links.stop(0)


@dataclass
class Consortium:
    """The folders that `hansa provision` made, and what is up of them."""

    folder: Path
    loop: Loop
    notes: list[tuple[str, str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)  # by forwarders
    runs: list[Run] = field(default_factory=list)
    servers: list[asyncio.Server] = field(default_factory=list)

    @property
    def server(self) -> Path:
        return self.folder / "server"

    def site(self, name: str) -> Path:
        return self.folder / "sites" / name

    @property
    def authority(self) -> Credential:
        own = self.folder / "consortium"
        return Credential((own / "ca.crt").read_bytes(), (own / "ca.key").read_bytes())

    @property
    def roster(self) -> Roster:
        return read_roster(self.server)

    def revoke(self, name: str) -> None:
        member = self.roster.member(name)
        assert member is not None
        Revoked(self.server).add(member.tls)

    def gate(self, superlink: int, **change: Any) -> int:
        """Starts a gate; its port."""

        def note(who: str, line: str) -> None:
            self.notes.append((who, line))

        async def listen() -> int:
            fleet = Fleet(self.server, ("127.0.0.1", superlink), note)
            sessions = Sessions(self.server / "runs", "127.0.0.1")
            gate = Gate({FLEET: fleet}, sessions, note, **{"most": 1000, **change})
            server = await gate.listen(("127.0.0.1", 0))
            self.servers.append(server)
            return int(server.sockets[0].getsockname()[1])

        return self.loop.run(listen())

    def run(self, name: str) -> Run:
        """Begins a run: its end listens, and its folder says where."""
        home = self.server / "runs" / name
        home.mkdir(parents=True)
        announce(home, 1)
        files = (self.server / file for file in ("ca.crt", "tls.crt", "tls.key"))
        terms = Terms(name, 1, [site.name for site in self.roster.sites], "layout", "strategy", SECRET)
        revoked = Revoked(self.server).fingerprints
        links = Links(terms, server_end.Identity(*files), home / "spool", BEAT, 10.0, revoked)
        port = links.start("127.0.0.1:0")
        (home / SESSION).write_text(json.dumps({"port": port, "epoch": 1}))
        self.runs.append(Run(name, links, port))
        return self.runs[-1]

    def link(self, site: str, run: str, port: int, spool: Path, orphan_after: float = 10.0) -> Link:
        """A site's end of a session, by a port that leads to the gate."""
        said = {"run": run, "epoch": 1, "node": 5, "layout": "layout", "strategy": "strategy"}
        invitation = Invitation(f"127.0.0.1:{port}", **said, token=token(SECRET, run, site, 5))  # type: ignore[arg-type]
        own = self.site(site)
        shown = site_end.Identity(own / "ca.crt", own / "tls.crt", own / "tls.key", session_name(run))
        return Link(invitation, shown, spool, orphan_after)

    def forwarder(self, site: str, gate: int, proxy: Proxy | None = None, idle: float = 90.0) -> tuple[int, int]:
        """Starts a site's forwarder; the ports of the node and of sessions."""
        write_local(self.site(site))

        async def listen() -> tuple[int, int]:
            forwarder = Forwarder(self.site(site), Way(f"127.0.0.1:{gate}", proxy), self.said.append, idle)
            node, session = await forwarder.listen(0, 0)
            self.servers += [node, session]
            return int(node.sockets[0].getsockname()[1]), int(session.sockets[0].getsockname()[1])

        return self.loop.run(listen())

    def context(self, who: Path | Credential | None) -> ssl.SSLContext:
        """The TLS of a client of the server's that shows a certificate, or none."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.server / "ca.crt")
        if isinstance(who, Credential):
            path = self.folder / "shown.pem"
            path.write_bytes(who.certificate + who.key)
            context.load_cert_chain(path)
        elif who is not None:
            context.load_cert_chain(who / "tls.crt", who / "tls.key")
        return context

    def expired(self, name: str) -> Credential:
        """A site's certificate that ended yesterday."""
        return identity.make_site(self.authority, name, datetime.now(UTC) - identity.LEAF_VALID - timedelta(days=1))


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "heart"
    provision(folder, ["boston", "lyon"], Founding(), datetime.now(UTC))
    return folder


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another consortium, with a site of the same name."""
    folder = tmp_path_factory.mktemp("strangers") / "heart"
    provision(folder, ["boston"], Founding(), datetime.now(UTC))
    return folder


@pytest.fixture
def consortium(made: Path, tmp_path: Path) -> Iterator[Consortium]:
    loop = Loop()
    consortium = Consortium(Path(shutil.copytree(made, tmp_path / "heart")), loop)
    yield consortium
    for run in consortium.runs:
        with contextlib.suppress(Exception):
            run.close()
    loop.close(consortium.servers)


@pytest.fixture
def flower(consortium: Consortium) -> Iterator[Flower]:
    flower = Flower(consortium.server)
    yield flower
    flower.close()
