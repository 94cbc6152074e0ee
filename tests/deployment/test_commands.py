"""`hansa stop`, `hansa run --resume`, and Ctrl-C in `hansa demo`."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from server.store import FILE, State, Store

if TYPE_CHECKING:
    from tests.deployment.conftest import Federation


@pytest.mark.long
def test_a_run_that_was_stopped_frees_its_sites_and_can_be_resumed(federation: "Federation") -> None:
    first = federation.app("stopped", 'name = "scaffold"', rounds=8, pause=0.3)
    second = federation.app("meanwhile", rounds=2)
    for site in federation.sites:
        federation.write_site(site, apps=[first, second])
    run = federation.start(first)
    federation.in_round(run, 4)
    federation.stop(run)
    assert federation.state(run) is State.INTERRUPTED
    done = len(federation.rounds(run))
    assert done < 8
    federation.until(lambda: not any(map(federation.processes, federation.sites)), "the sites are free")
    other = federation.start(second)
    federation.finished(other)
    federation.resume(run)
    federation.until(lambda: "it was interrupted" in federation.events(run), "the run goes on")
    federation.finished(run)
    federation.assert_as_simulated(run, first)


def left_of(folder: Path) -> list[str]:
    """The processes that name a folder in their command line or their environment."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            what = [(process / name).read_bytes() for name in ("cmdline", "environ")] if process.name.isdigit() else []
        except OSError:
            continue
        if any(os.fsencode(folder) in one for one in what):
            found.append(what[0].replace(b"\0", b" ").decode())
    return found


def rounds(folder: Path, run: str) -> int:
    file = folder / "consortium" / "server" / "runs" / FILE
    if not file.is_file():
        return 0
    store = Store(file)
    return sum(len(store.rounds(name)) for name in store.runs()["run"] if str(name).startswith(run))


@pytest.mark.long
@pytest.mark.parametrize("moment", ["coming up", "first run", "second run"])
def test_ctrl_c_ends_the_demo_and_all_that_it_started(tmp_path: Path, moment: str) -> None:
    folder = tmp_path / "demo"
    command = [str(Path(sys.executable).with_name("hansa")), "demo", "--folder", str(folder)]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    reached: dict[str, Callable[[], object]] = {
        "coming up": lambda: list(folder.glob("consortium/sites/*/run/site.json")),
        "first run": lambda: rounds(folder, "fedavg") >= 1,
        "second run": lambda: rounds(folder, "fedprox") >= 1,
    }
    deadline = time.monotonic() + 180
    while not reached[moment]():
        assert demo.poll() is None, demo.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    began = time.monotonic()
    demo.send_signal(signal.SIGINT)
    said = demo.communicate(timeout=60.0)[0]
    print(f"{moment}: {time.monotonic() - began:.1f} s until the demo had ended")
    assert demo.returncode == 130, said
    assert left_of(folder) == []
    assert "Traceback" not in said
