"""A consortium whose gate and control end run as the processes that `hansa server up` starts; and ways to them."""

import base64
import contextlib
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from clients.joining import join
from hansa.controlclient import ControlClient
from hansa.dial import Way
from hansa.errors import RunFailed
from hansa.flower import free_port
from server.approve import administrator_asks, approve, revoke
from server.invite import invite
from server.provision import Founding, provision

WAIT = 120.0  # seconds for what takes a few on an idle machine


@dataclass
class Joining:
    """`hansa site join` as it runs, and what it says."""

    folder: Path
    said: list[str] = field(default_factory=list)
    thread: threading.Thread | None = None
    error: BaseException | None = None

    def start(self, kit: Path, proxy: str | None = None) -> None:
        def work() -> None:
            try:
                join(kit, self.folder, proxy, self.said.append)
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=work, daemon=True)
        self.thread.start()

    def until(self, text: str) -> str:
        """The first line that has it."""
        found = until(lambda: next((line for line in self.said if text in line), None), lambda: self.error)
        return str(found)

    def end(self) -> None:
        assert self.thread is not None
        self.thread.join(WAIT)
        if self.error is not None:
            raise self.error
        assert not self.thread.is_alive()


@dataclass
class Heart:
    """A founder's folder, and its server, up."""

    folder: Path
    port: int

    @property
    def server(self) -> Path:
        return self.folder / "server"

    def kit(self, site: str) -> Path:
        invite(self.folder, site, datetime.now(UTC))
        return self.folder / "invitations" / f"{site}.kit"

    def approve(self, *names: str) -> list[str]:
        said: list[str] = []
        now = datetime.now(UTC)

        def agreed(line: str) -> bool:
            said.append(line)
            return True

        approve(self.folder, names, now, administrator_asks(self.folder, now, said.append), agreed, said.append)
        return said

    def joining(self, folder: Path) -> Joining:
        return Joining(folder)

    def relay(self, reach: Callable[[socket.socket], socket.socket | None]) -> "Relay":
        return Relay(reach)

    def until(self, condition: Callable[[], Any]) -> Any:
        return until(condition)

    def revoke(self, name: str) -> None:
        now = datetime.now(UTC)
        revoke(self.folder, name, now, administrator_asks(self.folder, now, print), print)

    def joined(self, site: str, folder: Path, proxy: str | None = None) -> Path:
        """A site that was invited, has asked, and was approved; its folder."""
        joining = Joining(folder)
        joining.start(self.kit(site), proxy)
        joining.until("waiting to be approved")
        self.approve(site)
        joining.end()
        return folder

    def stranger(self) -> ControlClient:
        """The control end as somebody reaches it who shows no certificate."""
        return ControlClient(Way(f"127.0.0.1:{self.port}", None), self.server / "ca.crt")

    def acts(self) -> str:
        return (self.server / "acts.jsonl").read_text()


def until(condition: Callable[[], Any], failed: Callable[[], BaseException | None] = lambda: None) -> Any:
    deadline = time.monotonic() + WAIT
    while not (found := condition()):
        if error := failed():
            raise error
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


@contextlib.contextmanager
def running(*commands: list[str], log: Path) -> Iterator[None]:
    with log.open("ab") as out:
        started = [subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL) for command in commands]
        try:
            yield
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait()


@pytest.fixture(scope="module")
def heart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heart]:
    folder, port = tmp_path_factory.mktemp("made") / "heart", free_port()
    provision(folder, ["boston"], Founding(hosts=("127.0.0.1",), port=port), datetime.now(UTC))
    heart = Heart(folder, port)
    (heart.server / "run").mkdir(mode=0o700)
    start = [sys.executable, "-P", "-m"]
    gate = [*start, "server.gate", str(heart.server), f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}"]
    with running([*start, "server.control", str(heart.server)], gate, log=heart.server / "log"):

        def answers() -> bool:
            with contextlib.suppress(RunFailed):
                administrator_asks(folder, datetime.now(UTC), print)("requests", {})
                return True
            return False

        until(answers)
        yield heart


class Relay:
    """Takes connections on loopback, in threads, and joins each with another one.

    Args:
        reach: makes the other end of a connection, when the first bytes allow it; None refuses.
    """

    def __init__(self, reach: Callable[[socket.socket], socket.socket | None]) -> None:
        self.reach, self.listener = reach, socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        threading.Thread(target=self._take, daemon=True).start()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self.listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with contextlib.suppress(OSError), near:
            if (far := self.reach(near)) is not None:
                with far:
                    carry(near, far)

    def close(self) -> None:
        self.listener.close()


def carry(near: socket.socket, far: socket.socket) -> None:
    while True:
        for end, other in ((near, far), (far, near)):
            if select.select([end], [], [], 0.05)[0]:
                if not (data := end.recv(65_536)):
                    return
                other.sendall(data)


class HttpProxy(Relay):
    """An HTTP proxy that wants a user and a password, and knows CONNECT only."""

    user, password = "clinic", "hunter2:@"

    def __init__(self) -> None:
        self.asked: list[str] = []
        super().__init__(self._connect)

    def url(self, password: str = "hunter2%3A%40") -> str:
        return f"http://{self.user}:{password}@127.0.0.1:{self.port}"

    def _connect(self, near: socket.socket) -> socket.socket | None:
        head = b""
        while b"\r\n\r\n" not in head:
            if not (data := near.recv(4096)):
                return None
            head += data
        method, target, _ = head.split(b"\r\n")[0].decode().split(" ")
        shown = base64.b64encode(f"{self.user}:{self.password}".encode())
        if method != "CONNECT" or shown not in head:
            near.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
            return None
        self.asked.append(target)
        host, _, port = target.rpartition(":")
        far = socket.create_connection((host, int(port)))
        near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
        return far


@pytest.fixture
def proxy() -> Iterator[HttpProxy]:
    one = HttpProxy()
    yield one
    one.close()


@pytest.fixture(autouse=True, scope="module")
def impatient() -> Iterator[None]:
    """Sites ask every moment, so that a test does not wait for them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("clients.joining.OFTEN", "clients.renewal.OFTEN"):
            patch.setattr(name, 0.1)
        yield


@pytest.fixture(autouse=True)
def no_proxy_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HANSA_PROXY", raising=False)
