"""A consortium with people, whose gate and control end run as the processes that `hansa server up` starts."""

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from hansa.controlclient import ControlClient, Unanswered
from hansa.dial import Way
from hansa.flower import free_port
from hansa.person import open_person
from hansa.roles import Role
from hansa.routes import CONTROL
from server import control as control_end
from server.asking import Handler
from server.desk import Desk, at_socket
from server.gate import Gate
from server.launch import Launch, write_launch
from server.owners import write_owner
from server.provision import Founding, provision
from server.sessions import Sessions
from server.store import FILE, State, Store

WAIT = 60.0  # seconds for what takes less than one on an idle machine
PEOPLE = [(Role.RESEARCHER, "ann"), (Role.RESEARCHER, "amy"), (Role.AUDITOR, "bob"), (Role.ADMINISTRATOR, "eve")]


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


@dataclass
class Heart:
    """A consortium's folder, and a port of its gate."""

    folder: Path
    port: int
    notes: list[str] = field(default_factory=list)  # of the gate, where it runs in this process

    @property
    def server(self) -> Path:
        return self.folder / "server"

    def home(self, who: str) -> Path:
        """The folder of somebody; a site is one of them."""
        return self.folder / ("sites" if who == "boston" else "people") / who

    def control(self, who: str | None) -> ControlClient:
        """The control end as somebody reaches it; None: a stranger."""
        own = self.home(who) if who else None
        return ControlClient(
            Way(f"127.0.0.1:{self.port}", None),
            self.server / "ca.crt",
            (own / "tls.crt", own / "tls.key") if own else None,
        )

    def ask(self, who: str | None, verb: str, body: Mapping[str, Any] | None = None) -> list[str]:
        """The lines of an answer."""
        said: list[str] = []
        self.control(who).ask(verb, body or {}, said.append)
        return said

    def acts(self) -> list[dict[str, str]]:
        """The record, the oldest first."""
        path = self.server / "acts.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def run(self, name: str, owner: str | None, state: State = State.FINISHED, model: bytes = b"model") -> Path:
        """A run as it stands on disk; its folder."""
        home = self.server / "runs" / name
        home.mkdir(parents=True)
        write_launch(home, Launch(1, None, wanted=False))
        if owner:
            write_owner(home, owner)
        store = Store(self.server / "runs" / FILE)
        store.create(name, name="heart", config="", seed=0, engine="deployed", threads=1, hardware="sites")
        if state is not State.RUNNING:
            store.end(name, state)
        (home / "app").mkdir()
        (home / "app" / "federation.toml").write_text("[federation]\n")
        (home / "app" / "pyproject.toml").write_text("")
        (home / "model.safetensors").write_bytes(model)
        store.export(name, home)
        return home


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "heart"
    provision(folder, ["boston"], Founding(), datetime.now(UTC), PEOPLE)
    for _, name in PEOPLE:
        open_person(folder / "people" / name, datetime.now(UTC))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may change, with a path that is too long for a Unix socket."""
    folder = Path(shutil.copytree(made, tmp_path / ("long" * 20) / "heart"))
    (folder / "server" / "run").mkdir(mode=0o700)
    return folder


@pytest.fixture(scope="module")
def processes(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Heart]:
    """Both ends as processes of their own."""
    folder = Path(shutil.copytree(made, tmp_path_factory.mktemp("processes") / "heart"))
    heart = Heart(folder, free_port())
    (heart.server / "run").mkdir(mode=0o700)
    start = [sys.executable, "-P", "-m"]
    commands = [
        [*start, "server.control", str(heart.server)],
        [*start, "server.gate", str(heart.server), f"127.0.0.1:{heart.port}", f"127.0.0.1:{free_port()}"],
    ]
    with (heart.server / "log").open("ab") as log:
        started = [subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL) for command in commands]
        try:
            until(lambda: answers(heart))
            yield heart
        finally:
            for process in started:
                process.terminate()
            for process in started:
                process.wait()
    assert "Traceback" not in (heart.server / "log").read_text()


def answers(heart: Heart) -> bool:
    with contextlib.suppress(Unanswered):
        heart.ask("ann", "status")
        return True
    return False


@pytest.fixture
def here(folder: Path) -> Iterator[Callable[..., Heart]]:
    """Starts both ends in this process, with verbs of a test's own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    with contextlib.ExitStack() as stack:

        def start(**verbs: Handler) -> Heart:
            heart = Heart(folder, 0)

            def note(who: str, line: str) -> None:
                heart.notes.append(line)

            async def listen() -> asyncio.Server:
                gate = Gate({CONTROL: Desk(heart.server, note)}, Sessions(heart.server / "runs", ""), note, 1000)
                return await gate.listen(("127.0.0.1", 0))

            served = uvicorn.Server(control_end.settings(control_end.Control(heart.server, verbs)))
            end = stack.enter_context(control_end.listening(heart.server))
            serving = threading.Thread(target=served.run, args=([end],))
            serving.start()
            server = asyncio.run_coroutine_threadsafe(listen(), loop).result(WAIT)
            heart.port = server.sockets[0].getsockname()[1]

            def stop() -> None:
                loop.call_soon_threadsafe(server.close)
                served.should_exit = served.force_exit = True
                serving.join()

            stack.callback(stop)
            return heart

        yield start

    async def cancel() -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(cancel(), loop).result(WAIT)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@contextlib.contextmanager
def socket_of(heart: Heart) -> Iterator[str]:
    with at_socket(heart.server) as path:
        yield path
