"""Runs from elsewhere: an app that is sent, a model that is fetched, and the commands in a person's folder."""

import base64
import io
import json
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from hansa.appfiles import LARGEST, MOST_FILES, app_digest, app_files, packed, unpacked
from hansa.cli import main
from hansa.errors import RunFailed, UserError
from hansa.roles import Role
from server import command, remote
from server.asking import Ask, Gone
from server.fetch import There, fetch
from server.owners import owner
from server.results import Here
from server.store import State
from server.verbs import VERBS

if TYPE_CHECKING:
    from tests.control.conftest import Heart

Start = Callable[..., "Heart"]
APP = {
    "task.py": b"x = 1\n",
    "models/net.py": b"",
    "federation.toml": b'[federation]\nname = "heart"\ntask = "task.py:Heart"\n',
    "pyproject.toml": textwrap.dedent("""
        [project]
        name = "heart"
        version = "1.0.0"
        [tool.flwr.app]
        publisher = "test"
        [tool.flwr.app.components]
        serverapp = "server.app:app"
        clientapp = "clients.app:app"
        [tool.flwr.app.config]
        hansa-run = ""
        hansa-epoch = 1
    """).encode(),
}
NAMES = ["model.safetensors", "metrics.parquet", "federation.toml"]


@pytest.fixture
def heart(here: Start) -> "Heart":
    return here(**VERBS)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    for name, content in APP.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def test_an_app_s_files_come_as_they_are(app: Path) -> None:
    files = app_files(app)
    assert unpacked(packed(files)) == files == APP


PATHS = [
    "../task.py",
    "a/../../task.py",
    "/etc/cron.d/x.py",
    "a//b.py",
    "./a.py",
    "a/./b.py",
    ".hidden.py",
    "a/.git/config.toml",
    "..",
    "",
    "a\\b.py",
    "C:\\a.py",
    "a\nb.py",
    "a\0.py",
    "\ud800.py",
    "a.so",
    "conftest",
    "lib/x.py",
    "__pycache__/x.py",
    "test_x.py",
    "a/" * 200 + "x.py",
]


@pytest.mark.parametrize("path", PATHS, ids=range(len(PATHS)))
def test_no_path_leads_out_of_an_app_or_to_what_no_app_has(path: str) -> None:
    with pytest.raises(UserError, match="a path that no app's has"):
        unpacked({"task.py": "", path: ""})


@given(st.text(st.sampled_from("./\\ab~%\0\n:" + "é"), max_size=12).map(lambda text: f"{text}.py"))
@example("a.py")
def test_what_is_unpacked_stays_in_its_folder(name: str) -> None:
    try:
        (found,) = unpacked({name: ""})
    except UserError:
        return
    home = Path("/srv/app")
    assert (home / found).resolve().is_relative_to(home)
    assert all(not part.startswith(".") for part in Path(found).parts)


def test_an_app_has_an_end() -> None:
    big = base64.b64encode(bytes(LARGEST // 2 + 1)).decode()
    for files in ({"a.py": big, "b.py": big}, {f"a{number}.py": "" for number in range(MOST_FILES + 1)}):
        with pytest.raises(UserError, match="an app is code, keep data out"):
            unpacked(files)
    with pytest.raises(UserError, match="no base64"):
        unpacked({"a.py": "%%"})
    with pytest.raises(UserError, match="lies in what is a file itself"):
        unpacked({"a.py": "", "a.py/b.py": ""})


def test_an_app_that_is_sent_is_checked_before_anything_is_made_of_it(heart: "Heart") -> None:
    def sent(run: Any = "r1", **change: bytes) -> list[str]:
        return heart.ask("ann", "run", {"run": run, "files": packed(APP | change)})

    with pytest.raises(UserError, match=r"app/pyproject.toml: not TOML"):
        sent(**{"pyproject.toml": b"["})
    for run in ("../r1", "a b", "", None):
        with pytest.raises(UserError):
            sent(run)
    for run in ("hansa.sqlite", "hansa.sqlite-wal"):  # would be in the run store's way
        with pytest.raises(UserError, match="is no name for a run"):
            sent(run)
    assert {line["outcome"] for line in heart.acts()} == {"refused"}
    assert not (heart.server / "runs").exists()


def test_a_server_runs_only_what_its_own_file_allows_if_that_says_so(heart: "Heart") -> None:
    digest, file = app_digest(APP), heart.server / "server.toml"
    said = {"run": "r1", "files": packed(APP)}
    for allowed, line in (
        ([], rf"list {digest} in \[apps\] allowed of server.toml"),
        ([digest], "no server runs on it"),
    ):
        text = file.read_text().partition("\n[apps]")[0]
        file.write_text(f"{text}\n[apps]\nallowed = {json.dumps(allowed)}\n")
        with pytest.raises(UserError, match=line):
            heart.ask("ann", "run", said)
    assert [line["reason"] for line in heart.acts()] == ["app_not_allowed", ""]


def test_a_name_that_is_taken_is_not_taken_again(heart: "Heart") -> None:
    heart.run("r1", "amy")
    with pytest.raises(UserError, match="run r1: exists already"):
        heart.ask("ann", "run", {"run": "r1", "files": packed(APP)})
    assert owner(heart.server / "runs" / "r1") == "amy"


@pytest.mark.parametrize("damage", [b"", b"[", b"3", b"{}", b"\xff", b"[" * 100_000, b'{"researcher": 3}'])
def test_a_run_whose_owner_is_unknown_is_nobody_s_to_take(heart: "Heart", damage: bytes) -> None:
    heart.run("r1", "ann", State.INTERRUPTED)
    heart.run("r2", "amy", State.INTERRUPTED)
    (heart.server / "runs" / "r2" / "owner.json").write_bytes(damage)
    for verb in ("fetch", "resume", "stop"):
        with pytest.raises(UserError, match=r"^run r2: owner unknown: its owner\.json is damaged; put it back"):
            heart.ask("amy", verb, {"run": "r2"})
    with pytest.raises(UserError, match="no server runs on it"):
        heart.ask("ann", "resume")  # her newest, which is r1
    assert heart.ask("eve", "stop", {"run": "r2"})[-1] == "run r2 is interrupted"


def console() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=200), out


def test_status_says_there_what_it_says_at_the_server(heart: "Heart") -> None:
    heart.run("r1", "ann")
    heart.run("r2", None, State.FAILED)
    at_server, far = console(), console()
    command.status(heart.server, at_server[0])
    for line in heart.ask("bob", "status"):
        far[0].print(line, highlight=False, markup=False, soft_wrap=True)
    assert far[1].getvalue() == at_server[1].getvalue()
    assert "run r1: finished" in far[1].getvalue()


def person(heart: "Heart", who: str, into: Path) -> Path:
    """A copy of somebody's folder, which knows where this test's gate is."""
    folder = Path(shutil.copytree(heart.home(who), into / who))
    file = folder / "person.toml"
    file.write_text(file.read_text().replace("127.0.0.1:9443", f"127.0.0.1:{heart.port}"))
    return folder


def test_the_commands_ask_the_server_from_a_person_s_folder(
    heart: "Heart", tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heart.run("r1", "ann")
    ann, bob = (str(person(heart, who, tmp_path)) for who in ("ann", "bob"))
    assert main(["status", "--server", bob]) == 0
    assert "run r1: finished, 0 rounds" in capsys.readouterr().out
    monkeypatch.chdir(tmp_path)
    assert main(["fetch", "r1", "--server", ann]) == 0
    assert sorted(path.name for path in (tmp_path / "r1").iterdir()) == sorted([*NAMES, "manifest.json"])
    assert main(["audit", "--server", ann]) == 2
    assert capsys.readouterr().err == "error: researchers may not audit; only auditors and administrators may\n"
    assert main(["audit", "--server", bob]) == 0
    said = capsys.readouterr().out
    assert "auditor bob sha256:" in said
    assert "researcher ann sha256:" in said
    assert ": audit: refused role\n" in said
    monkeypatch.setenv("HANSA_SERVER", bob)
    assert main(["stop", "r1"]) == 2
    assert "auditors may not stop" in capsys.readouterr().err


def test_the_record_is_the_same_at_the_server(heart: "Heart") -> None:
    heart.ask("ann", "status")
    with (heart.server / "acts.jsonl").open("a") as file:
        file.write("half a li")
    heart.ask("bob", "status")  # ends the line that a crash has left open
    out, text = console()
    command.audit(heart.server, out)
    lines = text.getvalue().splitlines()
    assert [line.rpartition("status: ")[2] for line in lines] == ["allowed", "half a li", "allowed"]
    assert heart.ask("eve", "audit")[:3] == lines


def test_ctrl_c_ends_the_report_and_says_that_the_run_goes_on(
    here: Start, app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: list[bool] = []

    def runs(ask: Ask) -> dict[str, Any]:
        ask.permit("r1")
        ask.say("run r1; its app is x")
        try:
            while True:
                ask.answer.wait(1.0)
        except Gone:
            gone.append(True)
            raise

    heart = here(**{**VERBS, "run": runs})
    ann, script = person(heart, "ann", tmp_path), tmp_path / "ask.py"
    script.write_text("import sys; from hansa.cli import main; sys.exit(main())")
    command = [sys.executable, str(script), "run", str(app), "--run", "r1", "--server", str(ann)]
    asked = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert asked.stdout is not None
    assert asked.stdout.readline() == "run r1; its app is x\n"
    asked.send_signal(2)
    said, _ = asked.communicate(timeout=60)
    assert said.splitlines()[-2:] == [
        "run r1 goes on; follow it with hansa logs r1, end it with hansa stop r1",
        "interrupted",
    ]
    assert asked.returncode == 130


@pytest.mark.parametrize(("privacy", "lacks"), [("", "clip and max_weight are"), ("clip = 1.0", "max_weight is")])
def test_what_secure_aggregation_needs_is_asked_for_before_the_app_is_sent(
    here: Start, app: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], privacy: str, lacks: str
) -> None:
    """Of two sites nothing is needed: of itself it is on from three."""
    sites, sent = 3, list[str]()

    def status(ask: Ask) -> dict[str, Any]:
        ask.permit()
        return {"sites": sites}

    def runs(ask: Ask) -> dict[str, Any]:
        sent.append(ask.caller.name)
        ask.permit("r1")
        return {}

    heart = here(run=runs, status=status)
    with (app / "federation.toml").open("a") as file:
        file.write(f"[privacy]\n{privacy}\n")
    command = ["run", str(app), "--run", "r1", "--server", str(person(heart, "ann", tmp_path))]
    assert main(command) == 2
    assert f"[privacy] {lacks} not set" in capsys.readouterr().err
    assert sent == []
    sites = 2
    assert main(command) == 0
    assert sent == ["ann"]


def test_a_cut_on_the_way_says_that_the_run_goes_on(here: Start, tmp_path: Path) -> None:
    out, text = console()

    def begins(ask: Ask) -> dict[str, Any]:
        ask.permit("r1")
        ask.say("run r1 goes on where it was")
        while not text.getvalue():
            ask.answer.wait(0.02)
        (ask.folder / "revoked.json").write_text("{")  # whatever ends the connection
        ask.say("more")
        return {}

    heart = here(resume=begins)
    ann = person(heart, "ann", tmp_path)
    with pytest.raises(RunFailed, match="run r1 goes on; follow it with hansa logs r1"):
        remote.resume(ann, name="r1", detach=False, console=out)


# fetch


def fetched(heart: "Heart", to: Path, who: str = "ann", run: str = "r1") -> list[str]:
    said: list[str] = []
    fetch(There(heart.control(who)), run, to, said.append)
    return said


def test_what_is_fetched_is_what_the_run_has_left_here_and_there(heart: "Heart", tmp_path: Path) -> None:
    home = heart.run("r1", "ann", model=bytes(range(256)) * 10_000)
    fetched(heart, tmp_path / "far")
    fetch(Here(heart.server), "r1", tmp_path / "near", print)
    for folder in (tmp_path / "far", tmp_path / "near"):
        assert sorted(path.name for path in folder.iterdir()) == sorted([*NAMES, "manifest.json"])
        for name in NAMES:
            theirs = home / ("app/federation.toml" if name == "federation.toml" else name)
            assert (folder / name).read_bytes() == theirs.read_bytes()
    manifest = json.loads((tmp_path / "far" / "manifest.json").read_text())
    assert (manifest["run"], manifest["state"], set(manifest["files"])) == ("r1", "finished", set(NAMES))
    assert fetched(heart, tmp_path / "far") == [f"{tmp_path}/far/{name}: is there already" for name in NAMES]


def test_nothing_else_that_is_there_is_overwritten(heart: "Heart", tmp_path: Path) -> None:
    heart.run("r1", "ann")
    (tmp_path / "metrics.parquet").write_text("mine")
    with pytest.raises(UserError, match=r"metrics.parquet: is there with other content; give another folder by --to"):
        fetched(heart, tmp_path)
    assert (tmp_path / "metrics.parquet").read_text() == "mine"


@pytest.mark.parametrize("left", [b"", b"mod", b"model", b"wrong", b"wr", b"more than the model has"])
def test_a_fetch_that_was_cut_off_goes_on_or_begins_again(heart: "Heart", tmp_path: Path, left: bytes) -> None:
    heart.run("r1", "ann")
    (tmp_path / ".model.safetensors.part").write_bytes(left)
    fetched(heart, tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == b"model"
    assert not list(tmp_path.glob(".*"))


def test_only_what_lacks_is_sent(heart: "Heart", tmp_path: Path) -> None:
    heart.run("r1", "ann")
    body = {"run": "r1", "file": "model.safetensors", "offset": 3}
    with heart.control("ann").file("fetch", body) as parts:
        assert b"".join(parts) == b"el"


@pytest.mark.parametrize(
    "file", ["../../server.toml", "server.toml", "/etc/passwd", "app/federation.toml", "secret", ""]
)
def test_no_other_file_of_the_server_s_can_be_fetched(heart: "Heart", file: str) -> None:
    heart.run("r1", "ann")
    with pytest.raises(UserError), heart.control("ann").file("fetch", {"run": "r1", "file": file, "offset": 0}):
        pass


def test_a_link_that_the_run_has_laid_is_not_followed(heart: "Heart", tmp_path: Path) -> None:
    home = heart.run("r1", "ann")
    (home / "model.safetensors").unlink()
    (home / "model.safetensors").symlink_to(heart.server / "tls.key")
    with pytest.raises(UserError, match="is a link"):
        fetched(heart, tmp_path)


def test_a_run_that_is_not_complete_has_no_model_to_fetch(heart: "Heart", tmp_path: Path) -> None:
    heart.run("r1", "ann", State.FAILED)
    with pytest.raises(UserError, match="run r1 is failed: there is a model to fetch when it is complete"):
        fetched(heart, tmp_path)


def test_a_server_cannot_choose_where_a_file_goes(here: Start, tmp_path: Path) -> None:
    def lies(ask: Ask) -> dict[str, Any]:
        ask.permit()
        files = {name: {"size": 1, "sha256": "a" * 64} for name in ("../evil", "/tmp/evil", ".bashrc")}
        return {"files": files, "manifest": {}}

    heart = here(fetch=lies)
    with pytest.raises(UserError, match="has left no files"):
        fetched(heart, tmp_path / "to")
    assert not (tmp_path / "to").exists()


def test_what_comes_with_another_digest_is_not_kept(here: Start, tmp_path: Path) -> None:
    from server import runverbs

    def lies(ask: Ask) -> Any:
        answer = runverbs.fetch(ask)
        if isinstance(answer, dict):
            answer["files"]["model.safetensors"]["sha256"] = "a" * 64
        return answer

    heart = here(fetch=lies)
    heart.run("r1", "ann")
    with pytest.raises(RunFailed, match="has not the digest that the server says"):
        fetched(heart, tmp_path)
    assert not (tmp_path / "model.safetensors").exists()


def test_people_are_who_they_are(heart: "Heart") -> None:
    assert [role for role in Role if role not in ("site", "nobody")] == ["researcher", "auditor", "administrator"]
    heart.run("r1", "ann")
    with pytest.raises(UserError, match="is not yours"):
        fetched(heart, Path("/nowhere"), "amy")
