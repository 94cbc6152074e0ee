"""The operators' pages are true: their commands run as they stand, each page's in one folder, against real processes.

The pages say in a block's first line what is special about it. A free port takes the place of the one that they name.
"""

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from clients.sitefile import SiteTrainingTable, load_site_file
from hansa.flower import free_port

ROOT = Path(__file__).parents[2]
SITE, SERVER = ((ROOT / "docs" / f"operate-a-{end}.md").read_text() for end in ("site", "server"))
PORT, FLOWER = "9443", "127.0.0.1:9092"
STAYS = re.compile(r'# stays in its terminal; says "(.+)" when it is there\n')
FIRST = re.compile(r'# first: Ctrl-C where "(.+)" runs\n')
NOT_HERE = "# not in the trial: "
EDIT = "# bern/site.toml\n"
WAIT = 600.0  # seconds for what takes a few on an idle machine


def blocks(page: str, kind: str = "sh") -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)


@dataclass
class Trial:
    """A folder in which blocks run, one after the other."""

    folder: Path
    port: int = field(default_factory=free_port)
    exports: str = ""
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)
    newest: dict[str, tuple[subprocess.Popen[bytes], Path]] = field(default_factory=dict)  # by the block's last line

    def start(self, script: str) -> None:
        """A shell in a session of its own, as a terminal has it; what it says is in a file."""
        log = self.folder / f"{len(list(self.folder.glob('*.log')))}.log"
        (self.folder / "answers").write_text("y\n")
        with log.open("wb") as out, (self.folder / "answers").open("rb") as answers:
            process = subprocess.Popen(
                ["bash", "-eu", "-c", self.exports + script.replace(PORT, str(self.port))],
                cwd=self.folder,
                env={**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])},
                stdin=answers,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        self.started.append(process)
        self.newest[script.splitlines()[-1]] = process, log

    def run(self, block: str) -> str:
        """What a block says that ends by itself, or until it says what it is to say."""
        if first := FIRST.match(block):
            end(self.newest[first[1]][0])
        self.start(block)
        process, log = self.newest[block.splitlines()[-1]]
        if stays := STAYS.match(block):
            until(lambda: stays[1] in log.read_text() or process.poll() is not None, log)
            assert process.poll() is None, log.read_text()
            return log.read_text()
        until(lambda: process.poll() is not None, log)
        assert process.returncode == 0, block + log.read_text()
        self.exports += "".join(line for line in block.splitlines(keepends=True) if line.startswith("export "))
        return log.read_text()

    def page(self, page: str, before: Mapping[str, Callable[[], object]]) -> list[str]:
        """Runs a page; what each block has said.

        Args:
            page: its text.
            before: what others do in the meantime, by a part of the block before which they begin.
        """
        said, left = [], dict(before)
        for block in blocks(page):
            if not block.startswith(NOT_HERE):
                for part in [part for part in left if part in block]:
                    left.pop(part)()
                said.append(self.run(block))
                own_flower_port(self.folder / "alliance" / "server" / "server.toml")
        assert not left
        return said

    def edit(self, site: Path) -> None:
        """Does what the site's page says of site.toml."""
        lay_in(site / "site.toml", edit(self.run("hansa digest heart\n").strip()))

    def approve(self) -> None:
        """The consortium, which waits for the site's telephone call."""
        self.start("until hansa approve alliance bern --yes; do sleep 1; done")


def end(process: subprocess.Popen[bytes]) -> None:
    """Ctrl-C."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
    process.wait(WAIT)


def until(condition: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)


def edit(digest: str) -> str:
    """The lines that the site's page puts into site.toml."""
    (found,) = [block for block in blocks(SITE, "toml") if block.startswith(EDIT)]
    assert '"sha256:..."' in found
    return found.replace("sha256:...", digest)


def lay_in(file: Path, lines: str) -> None:
    """Puts tables in the place of those that are there."""
    new, kept, table = set(re.findall(r"^\[.+\]", lines, re.MULTILINE)), list[str](), ""
    for line in file.read_text().splitlines(keepends=True):
        table = line.strip() if line.startswith("[") else table
        kept += [line] if table not in new else []
    file.write_text("".join(kept) + lines)


def own_flower_port(file: Path) -> None:
    if file.is_file() and FLOWER in (text := file.read_text()):
        file.write_text(text.replace(FLOWER, f"127.0.0.1:{free_port()}"))


@pytest.fixture
def trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trial]:
    for name in ("HANSA_PROXY", "HANSA_SERVER", "HANSA_SITE"):
        monkeypatch.delenv(name, raising=False)
    trial = Trial(tmp_path)
    try:
        yield trial
    finally:
        for process in reversed(trial.started):
            end(process)


@pytest.mark.long
def test_a_site_goes_from_its_kit_to_its_first_round_as_its_page_says(trial: Trial) -> None:
    trial.run(f"hansa init heart; hansa provision alliance --host 127.0.0.1 --port {PORT} --researcher ann\n")
    own_flower_port(trial.folder / "alliance" / "server" / "server.toml")
    trial.run('# stays in its terminal; says "ready" when it is there\nhansa server up alliance/server\n')
    trial.run("hansa invite alliance bern; cp alliance/invitations/bern.kit heart/data/boston.csv .\n")
    (trial.folder / "boston.csv").rename(trial.folder / "patients.csv")

    def first_round() -> None:
        assert "round 1: 1 of 1 sites" in trial.run("hansa run heart --server alliance/people/ann --run first\n")
        _, log = trial.newest["hansa site up bern"]
        until(lambda: "run first: the run is over" in log.read_text(), log)
        assert "run first: bern takes part" in log.read_text()

    meanwhile = {
        "site join": trial.approve,
        "site doctor": lambda: trial.edit(trial.folder / "bern"),
        "cat bern/audit": first_round,
    }
    said = trial.page(SITE, {**meanwhile, "site renew": trial.approve})
    joined, looked, _, examined, _, audit, renewed = said
    assert "bern is a member of alliance" in joined
    assert "task.py: " in looked
    assert "mend" not in examined
    assert '"what":"admitted"' in audit
    assert "renewed, good until" in renewed


@pytest.mark.long
def test_a_consortium_is_founded_and_its_server_run_as_the_page_says(trial: Trial) -> None:
    join = '# stays in its terminal; says "waiting to be approved" when it is there\n'
    join += "hansa site join alliance/invitations/bern.kit\n"
    up = '# stays in its terminal; says "is connected to" when it is there\nhansa site up {}\n'

    def sites_up() -> None:
        trial.newest[join.splitlines()[-1]][0].wait(WAIT)
        for site, rows in (("bern", "lyon.csv"), ("alliance/sites/boston", "boston.csv")):
            shutil.copy(trial.folder / "heart" / "data" / rows, trial.folder / site / "patients.csv")
            trial.edit(trial.folder / site)
            trial.run(up.format(site))

    meanwhile = {"hansa approve": lambda: trial.run(join), "--run first": sites_up}
    said = "\n".join(trial.page(SERVER, meanwhile))
    for line in (
        "approved: bern",
        "round 20: 2 of 2 sites",
        "results/model.safetensors: ",
        "run second ",
        "researcher ann",
        "lets boston in no more",
        "people/eva: for researcher eva",
        "run first: finished, 20 rounds",
        "model and metrics: hansa fetch fourth",
    ):
        assert line in said
    before, after = ((trial.folder / name / "model.safetensors").read_bytes() for name in ("results", "results-again"))
    assert before == after


def test_only_what_needs_a_registry_systemd_or_more_machines_is_not_in_the_trial() -> None:
    left_out = [block for page in (SITE, SERVER) for block in blocks(page) if block.startswith(NOT_HERE)]
    assert len(left_out) == 5
    assert all(any(what in block for what in ("pip install", "systemctl", "site agent")) for block in left_out)


def test_each_message_of_the_site_s_table_is_said_somewhere() -> None:
    said = [
        node.value
        for package in ("clients", "hansa", "server")
        for path in (ROOT / package).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    table = SITE.split("| it says | mend |\n")[1].splitlines()[1:]
    messages = [message for row in table for message in re.findall("`(.+?)`", row.split("|")[1])]
    assert len(messages) > 25
    assert [message for message in messages if not any(message in text for text in said)] == []


def test_the_lines_for_a_proxy_and_for_several_processes_and_machines_are_understood(tmp_path: Path) -> None:
    file, found = tmp_path / "site.toml", []
    for lines in blocks(SITE, "toml"):
        if not lines.startswith(EDIT):
            file.write_text(f'[site]\nname = "bern"\nserver = "fl.example.org:9443"\n{lines}')
            found.append(load_site_file(file))
    processes, machines = (next(file for file in found if file.training.procs == procs) for procs in (4, 8))
    assert processes.training == SiteTrainingTable(procs=4)  # what else stands there are the defaults
    assert machines.training == SiteTrainingTable(procs=8, mode="agents", nodes=2, listen="10.0.0.5:7443")
    assert found[-1].network.proxy is not None


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
@pytest.mark.parametrize("end", ["site", "server"])
def test_the_unit_is_one_that_systemd_takes(end: str, tmp_path: Path) -> None:
    unit, own = f"hansa-{end}.service", str(Path(sys.executable).with_name("hansa"))
    text = (ROOT / "deploy" / "systemd" / unit).read_text()
    assert f"ExecStart=/opt/hansa/bin/hansa {end} up /srv/hansa/{end}\n" in text
    (tmp_path / unit).write_text(text.replace("/opt/hansa/bin/hansa", own))
    done = subprocess.run(["systemd-analyze", "verify", tmp_path / unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
