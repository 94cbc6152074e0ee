"""The ServerApp where it was not `hansa run` that started the run."""

import io
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

import simulations.demo.show
from hansa.appfiles import app_digest, app_files
from hansa.errors import UserError
from hansa.supervise import lives, told
from hansa.tables import is_name
from server.app import ELSEWHERE, main, seated
from server.launch import APP, Launch, read_launch, served, write_launch
from server.provision import Founding, provision
from server.store import FILE, Store

START = "import sys; from hansa.cli import main; sys.exit(main())"
PLAIN: dict[str, bool | float | int | str] = {"hansa-run": "", "hansa-epoch": 1}
WAIT = 60.0  # seconds for what takes a few on an idle machine


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return Path(shutil.copytree(simulations.demo.show.APP, tmp_path / "app"))


def test_a_run_of_flower_s_own_command_gets_a_name_and_is_looked_after(app: Path, tmp_path: Path) -> None:
    """The launch is what the supervisor goes by, app.zip what it would start again."""
    seats = [seated(tmp_path, PLAIN, number, app) for number in (7, 2**63 + 1)]
    assert seats[0].run != seats[1].run
    for seat, number in zip(seats, (7, 2**63 + 1), strict=True):
        assert re.fullmatch(r"breast-cancer-\d{8}-\d{6}-[0-9a-f]{4}", seat.run)
        assert (seat.folder, seat.epoch) == (tmp_path, 1)
        assert read_launch(seat.home) == Launch(1, number)
        with zipfile.ZipFile(io.BytesIO((seat.home / APP).read_bytes())) as archive:
            archive.extractall(tmp_path / f"unpacked-{number}")
        assert app_digest(app_files(tmp_path / f"unpacked-{number}")) == app_digest(app_files(app))


def test_a_run_that_the_supervisor_knows_is_left_as_it_is(app: Path, tmp_path: Path) -> None:
    home = tmp_path / "runs" / "r1"
    home.mkdir(parents=True)
    write_launch(home, Launch(3, 9))
    assert seated(tmp_path, {"hansa-run": "r1", "hansa-epoch": 3}, 10, app).epoch == 3
    assert read_launch(home) == Launch(3, 9)
    assert not (home / APP).exists()


def test_a_long_name_of_a_federation_makes_a_name_for_a_run(app: Path, tmp_path: Path) -> None:
    toml = app / "federation.toml"
    toml.write_text(toml.read_text().replace('"breast-cancer"', f'"{"x" * 64}"'))
    assert is_name(seated(tmp_path, PLAIN, 7, app).run)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "../r1",
            "run ../r1: is no name for a run (letters, digits, dots, dashes); choose another name, or leave it out",
        ),
        ("taken", "run taken: exists already; choose another name, or leave it out"),
    ],
)
def test_a_name_that_will_not_do_is_a_line(app: Path, tmp_path: Path, name: str, line: str) -> None:
    (tmp_path / "runs" / "taken").mkdir(parents=True)
    with pytest.raises(UserError) as raised:
        seated(tmp_path, {**PLAIN, "hansa-run": name}, 7, app)
    assert raised.value.problems == (line,)


def test_an_app_whose_runs_could_not_be_started_again_is_refused(app: Path, tmp_path: Path) -> None:
    """Hansa names a run by these keys, and Flower overrides no key that the app does not have."""
    project = app / "pyproject.toml"
    project.write_text(project.read_text().replace('hansa-run = ""\n', ""))
    with pytest.raises(UserError, match='write hansa-run = ""'):
        seated(tmp_path, {}, 7, app)
    assert not (tmp_path / "runs").exists()


def test_without_a_server_it_says_in_one_line_what_to_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So it is on Flower's own simulation runtime, where the sites' sessions would wait for ever."""
    monkeypatch.delenv("HANSA_SERVER", raising=False)
    grid: Any = None
    main(grid, Context(1, 1, {}, RecordDict(), PLAIN))
    said = capsys.readouterr().out
    assert said == f"{ELSEWHERE}\n"
    assert said.count("\n") == 1
    assert "`hansa simulate`" in said


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Path]:
    """The folder of a server that is up."""
    provision(tmp_path / "fed", ["east"], Founding(), datetime.now(UTC))
    folder = tmp_path / "fed" / "server"
    file = folder / "server.toml"
    file.write_text(re.sub("(?m)^(public|flower|session) = .*", r'\1 = "127.0.0.1:0"', file.read_text()))
    with (tmp_path / "up.log").open("wb") as log:
        up = subprocess.Popen([sys.executable, "-c", START, "server", "up", str(folder)], stdout=log, stderr=log)
    try:
        until(lambda: "ready;" in (tmp_path / "up.log").read_text())
        yield folder
    finally:
        up.terminate()
        up.wait(WAIT)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.mark.long
def test_flwr_run_gives_a_run_to_the_server_and_its_death_is_noticed(app: Path, server: Path, tmp_path: Path) -> None:
    there = told(server, "server")
    assert there is not None
    assert lives(there)
    (home := tmp_path / "flwr").mkdir()
    (home / "config.toml").write_text(
        f'[superlink.fed]\naddress = "{there["address"]}"\nroot-certificates = "{server / "ca.crt"}"\n'
    )
    flwr = Path(sys.executable).with_name("flwr")
    environment = {**os.environ, "FLWR_HOME": str(home)}
    done = subprocess.run([flwr, "run", app, "fed"], env=environment, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 0, done.stdout + done.stderr

    until(lambda: (server / "runs" / FILE).is_file() and len(Store(server / "runs" / FILE).runs()))
    store = Store(server / "runs" / FILE)
    (run,) = store.runs()["run"]
    assert run.startswith("breast-cancer-")
    until(lambda: served(server / "runs" / run, 1))
    os.kill(int((server / "runs" / run / "process.json").read_text().strip("[]").split(",")[1]), 9)
    until(lambda: served(server / "runs" / run, 2))
    assert store.runs()["run"].tolist() == [run]

    hansa = [sys.executable, "-c", START]
    shown = subprocess.run([*hansa, "status", "--server", str(server)], capture_output=True, text=True, timeout=WAIT)
    assert f"run {run}: running, 0 rounds" in shown.stdout
    stopped = subprocess.run(
        [*hansa, "stop", run, "--server", str(server)], capture_output=True, text=True, timeout=WAIT
    )
    assert stopped.stdout == f"run {run} is interrupted\n"
    assert not served(server / "runs" / run, 2)
