"""By the commands alone: a consortium, its server up, a site that joins, connects, renews, and is taken out."""

import contextlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hansa.flower import free_port

pytestmark = pytest.mark.long

START = "import sys; from hansa.cli import main; sys.exit(main())"
WAIT = 240.0  # seconds for what takes a few on an idle machine


def hansa(*arguments: str | Path) -> str:
    """What a command that must succeed prints."""
    command = [sys.executable, "-c", START, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Running:
    """A command that goes on."""

    def __init__(self, log: Path, *arguments: str | Path) -> None:
        self.log = log
        with log.open("wb") as out:
            command = [sys.executable, "-u", "-c", START, *map(str, arguments)]
            self.process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)

    def until(self, text: str) -> None:
        until(lambda: text in self.log.read_text(), self.log.read_text)

    def end(self) -> None:
        self.process.terminate()
        self.process.wait(WAIT)


def until(condition: Callable[[], bool], told: Callable[[], str]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline, told()
        time.sleep(0.1)


@contextlib.contextmanager
def running(log: Path, *arguments: str | Path) -> Iterator[Running]:
    one = Running(log, *arguments)
    try:
        yield one
    finally:
        one.end()


def test_a_site_joins_by_its_kit_connects_renews_and_is_out_when_it_is_revoked(tmp_path: Path) -> None:
    heart, bern = tmp_path / "heart", tmp_path / "bern"
    server, sites = heart / "server", str(free_port())
    hansa("provision", heart, "--site", "boston", "--host", "127.0.0.1", "--port", sites)
    file = server / "server.toml"
    file.write_text(re.sub("(?m)^flower = .*", 'flower = "127.0.0.1:0"', file.read_text()))
    with running(tmp_path / "server.log", "server", "up", server) as up:
        up.until("ready;")
        hansa("invite", heart, "bern")
        with running(tmp_path / "join.log", "site", "join", heart / "invitations" / "bern.kit", bern) as join:
            join.until("waiting to be approved")
            assert "approved: bern" in hansa("approve", heart, "--yes")
            join.until("is a member of heart")
        up.until("the roster is now of edition 2; new: bern")
        assert "ok    the server lets this site in" in doctor(bern)
        with running(tmp_path / "site.log", "site", "up", bern) as site:
            site.until("bern is connected")
            assert "site bern: connected" in hansa("status", "--server", server)
            before = (bern / "tls.crt").read_bytes()
            with running(tmp_path / "renew.log", "site", "renew", bern) as renewal:
                renewal.until("waiting to be approved")
                hansa("approve", heart, "bern", "--yes")
                renewal.until("renewed, good until")
            assert (bern / "tls.crt").read_bytes() != before
            assert "site bern: connected" in hansa("status", "--server", server)
            assert "lets bern in no more" in hansa("revoke", heart, "bern")
            up.until("bern is not in the roster any more, and may not connect")
            site.until("takes this site's certificate no longer")
        assert "the certificate was revoked" in doctor(bern)


def doctor(folder: Path) -> str:
    """What it finds; no app is allowed yet, so its exit code is 1."""
    command = [sys.executable, "-c", START, "site", "doctor", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    return done.stdout
