import json
import os
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import Mock

import pytest
from rich.console import Console

from hansa.appfiles import app_digest
from hansa.cli import main
from hansa.errors import UserError
from hansa.processes import started
from server.appcheck import check_app
from server.command import begin_new, fetch, logs, resume, status, stop
from server.flower import Control
from server.launch import Launch, announce, read_launch, served, wanted, write_launch
from server.nodes import Nodes
from server.provision import Founding, provision
from server.revive import Reviver
from server.store import FILE, State, Store

GOOD = """
[tool.flwr.app.components]
serverapp = "server.app:app"
clientapp = "clients.app:app"
[tool.flwr.app.config]
hansa-run = ""
hansa-epoch = 1
"""


@pytest.fixture
def server(tmp_path: Path) -> Path:
    provision(tmp_path / "fed", ["east"], Founding(), datetime.now(UTC))
    return tmp_path / "fed" / "server"


def deployed(server: Path, run: str = "r1") -> Store:
    (server / "runs" / run).mkdir(parents=True)
    write_launch(server / "runs" / run, Launch(1, 7))
    store = Store(server / "runs" / FILE)
    store.create(run, name="heart", config="", seed=0, engine="deployed", threads=1, hardware="cpu")
    return store


def test_an_app_that_says_all_is_taken() -> None:
    check_app({"pyproject.toml": GOOD.encode()}, Path("app"))


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        (None, ["app: no pyproject.toml, by which Flower knows an app; copy that of an example"]),
        (
            "[tool",
            ["app/pyproject.toml: not TOML: Expected ']' at the end of a table declaration (at end of document)"],
        ),
        (
            GOOD.replace("clients.app:app", "mine:app").replace("hansa-epoch = 1", ""),
            [
                'app/pyproject.toml [tool.flwr.app.components]: write clientapp = "clients.app:app"',
                "app/pyproject.toml [tool.flwr.app.config]: write hansa-epoch = 1",
            ],
        ),
    ],
)
def test_an_app_that_flower_could_not_start_is_refused_in_words(text: str | None, problems: list[str]) -> None:
    with pytest.raises(UserError) as refused:
        check_app({} if text is None else {"pyproject.toml": text.encode()}, Path("app"))
    assert list(refused.value.problems) == problems


@pytest.mark.parametrize(
    "text", ["tool = 1", "[tool]\nflwr = 1", "[tool.flwr]\napp = []", "[tool.flwr.app]\nconfig = 3"]
)
def test_an_app_that_has_something_else_where_a_table_belongs_is_told_what_to_write(text: str) -> None:
    with pytest.raises(UserError) as refused:
        check_app({"pyproject.toml": text.encode()}, Path("app"))
    assert len(refused.value.problems) == 4
    assert all(": write " in problem for problem in refused.value.problems)


def test_an_app_that_is_nested_too_deeply_is_refused_in_one_line() -> None:
    files = {"pyproject.toml": b"a = " + b"[" * 100_000}
    with pytest.raises(UserError, match=r"^app/pyproject.toml: nested too deeply; mend it$"):
        check_app(files, Path("app"))
    with pytest.raises(UserError, match=r"^pyproject.toml: not TOML; mend it$"):
        app_digest(files)


def test_a_run_needs_a_server(server: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    app = tmp_path / "app"
    app.mkdir()
    (app / "pyproject.toml").write_text(GOOD)
    (app / "federation.toml").write_text('[federation]\nname = "heart"\ntask = "task.py:Heart"\n')
    (app / "task.py").touch()
    assert main(["run", str(app), "--server", str(server)]) == 2
    line = f"error: {server}: no server runs on it; start one with hansa server up {server}\n"
    assert capsys.readouterr().err == line
    assert not (server / "runs").exists()


def test_a_resumed_run_brings_its_app_itself(server: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "elsewhere", "--resume", "--server", str(server)]) == 2
    assert "leave the folder out" in capsys.readouterr().err


def test_a_complete_run_is_not_resumed(server: Path) -> None:
    deployed(server).end("r1", State.FINISHED)
    with pytest.raises(UserError, match="is complete"):
        resume(server, name="r1", detach=True, console=Console())


def test_a_run_can_be_stopped_without_a_server(server: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a killed server left running: it is not to go on when the server is back."""
    store = deployed(server)
    stop(server, "r1", Console())
    assert store.entry("r1")["state"] == State.INTERRUPTED
    assert list(wanted(server / "runs")) == []
    assert "run r1 is interrupted" in capsys.readouterr().out


@pytest.mark.parametrize("command", [stop, logs])
def test_an_unknown_run_is_said_to_be_one(server: Path, command: object) -> None:
    with pytest.raises(UserError, match=r"r9|no runs yet"):
        command(server, "r9", Console())  # type: ignore[operator]


def test_status_without_a_server_shows_sites_and_runs(server: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deployed(server)
    status(server, Console(width=200))
    assert capsys.readouterr().out.splitlines() == [
        "server: down",
        "site east: not connected",
        "run r1: running, 0 rounds",
    ]


def test_status_says_in_which_runs_a_site_is(server: Path, capsys: pytest.CaptureFixture[str]) -> None:
    deployed(server)
    (server / "runs" / "r2").mkdir()
    write_launch(server / "runs" / "r2", Launch(1, 8))
    for run in ("r1", "r2"):
        Nodes(server / "runs" / run).look([], ["east"], {"east": [5, 6]})
    status(server, Console(width=200))
    assert capsys.readouterr().out.splitlines()[1] == "site east: not connected, in runs r1 and r2"
    write_launch(server / "runs" / "r2", Launch(1, 8, wanted=False))
    status(server, Console(width=200))
    assert capsys.readouterr().out.splitlines()[1] == "site east: not connected, in run r1"


def test_where_all_runs_have_one_port_a_second_is_refused_by_the_name_of_the_first(tmp_path: Path) -> None:
    provision(tmp_path / "fed", ["east"], Founding(direct=True), datetime.now(UTC))
    server = tmp_path / "fed" / "server"
    store, out = deployed(server), Console()
    (server / "run").mkdir()
    alive = {"pid": os.getpid(), "started": started(os.getpid()), "mark": "", "address": "127.0.0.1:1"}
    (server / "run" / "server.json").write_text(json.dumps(alive))
    with pytest.raises(UserError) as refused:
        begin_new(server, "r2", {}, out)
    assert str(refused.value) == (
        "run r1 has the one port for sessions, 127.0.0.1:9093: wait for its end, or have several runs at once by a "
        "public port ([server] public in server.toml)"
    )
    assert not (server / "runs" / "r2").exists()
    store.end("r1", State.FINISHED)
    with pytest.raises(UserError, match="cannot be shipped"):  # it gets further: this one has no files
        begin_new(server, "r2", {}, out)
    file = server / "server.toml"
    store.create("r3", name="heart", config="", seed=0, engine="deployed", threads=1, hardware="cpu")
    (server / "runs" / "r3").mkdir()
    write_launch(server / "runs" / "r3", Launch(1, 9))
    file.write_text(file.read_text().replace('"127.0.0.1:9093"', '"127.0.0.1:0"'))  # each run has one of its own
    with pytest.raises(UserError, match="cannot be shipped"):
        begin_new(server, "r2", {}, out)


def test_a_process_serves_the_start_that_it_announced_and_no_other(tmp_path: Path) -> None:
    assert served(tmp_path, 1) is None
    announce(tmp_path, 1)
    assert served(tmp_path, 1) is True
    assert served(tmp_path, 2) is None


def test_a_launch_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_launch(tmp_path) is None
    for launch in (Launch(3, None, starting=True), Launch(3, 2**63 + 1, wanted=False)):
        write_launch(tmp_path, launch)
        assert read_launch(tmp_path) == launch


@pytest.mark.parametrize("place", ["/tmp/planted.py:X", "../planted.py:X", "missing.py:X"])
def test_an_app_names_no_code_but_its_own(place: str) -> None:
    """What is allowed by the digest of its files would else run other code."""
    toml = f'[federation]\ntask = "{place}"\n'
    files = {"pyproject.toml": GOOD.encode(), "task.py": b"", "federation.toml": toml.encode()}
    with pytest.raises(UserError, match=rf"federation\.toml: {re.escape(place)} is no file of the app"):
        check_app(files, Path("app"))


DAMAGED = [b"", b"{", b"[]", b"3", b"{}", b"\xff", b"[" * 100_000, b"9" * 5000, b'{"epoch": "x", "flower_run": 7}']
DAMAGED += [
    b'{"epoch": 1, "flower_run": -1}',
    b'{"epoch": 1, "flower_run": 7, "wanted": 3}',
    b'[1, "x", 3]',
    b"[1, -1, 3]",
]


@pytest.mark.parametrize("damage", DAMAGED, ids=range(len(DAMAGED)))
def test_a_run_whose_files_are_damaged_is_passed_over_and_the_others_go_on(server: Path, damage: bytes) -> None:
    for run in ("bad", "good"):
        deployed(server, run)
        announce(server / "runs" / run, 1)
    (server / "runs" / "bad" / "launch.json").write_bytes(damage)
    assert read_launch(server / "runs" / "bad") is None
    assert [run for run, _ in wanted(server / "runs")] == ["good"]
    said: list[str] = []
    reviver = Reviver(server / "runs", Mock(Control), said.append, resume=True)
    for _ in range(2):
        reviver.look()
    reviver.leave(Mock(Control))
    assert said == [
        "run bad: its launch.json is damaged, so it is passed over; put it back from a copy",
        "run good goes on when hansa server up is back",
    ]
    (server / "runs" / "good" / "process.json").write_bytes(damage)
    assert served(server / "runs" / "good", 1) is None
    status(server, Console())


@pytest.mark.parametrize("name", [FILE, f"{FILE}-wal"])
def test_the_store_s_own_files_are_no_runs(server: Path, tmp_path: Path, name: str) -> None:
    deployed(server)
    (server / "runs" / f"{FILE}-wal").touch()
    calls: list[Callable[[], object]] = [
        lambda: logs(server, name, Console()),
        lambda: stop(server, name, Console()),
        lambda: resume(server, name=name, detach=True, console=Console()),
        lambda: fetch(server, name, tmp_path / "to", Console()),
    ]
    for call in calls:
        with pytest.raises(UserError, match=f"there is no run '?{name}"):
            call()
