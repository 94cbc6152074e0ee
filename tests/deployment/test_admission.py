"""What a site lets in and out: only the app that it allows, and of its own errors only a code and a fixed line."""

import os
from typing import TYPE_CHECKING

import pandas as pd
import pytest

from clients.failures import LINES, Failure
from clients.refusals import LINES as REFUSALS
from clients.refusals import Reason
from server.command import control
from server.flower import begin, bundle
from server.launch import APP

if TYPE_CHECKING:
    from tests.deployment.conftest import Federation

MARKING = """
import os, sys
from pathlib import Path
site = Path(os.environ.get("HANSA_SITE", "server")).name
Path({marks!r}, f"{{site}}-{file}-{{os.getpid()}}").write_text(" ".join(sys.orig_argv))
"""
INVITING = """
import time
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp

server = ServerApp()

@server.main()
def main(grid, context):
    facts = {"address": "127.0.0.1:9", "run": context.run_config["hansa-run"], "epoch": 1, "token": "00"}
    record = RecordDict({"invitation": ConfigRecord(facts)})
    list(grid.push_messages([Message(record, dst_node_id=n, message_type="train") for n in grid.get_node_ids()]))
    while True:
        time.sleep(0.5)
"""


def test_an_app_that_a_site_does_not_allow_is_not_run_there_and_the_run_goes_on(federation: "Federation") -> None:
    app = federation.app("not-everywhere", rounds=3, quorum=3)
    federation.write_site("coral")
    run = federation.start(app)
    federation.finished(run)
    refused = f"{REFUSALS[Reason.APP]} (app_not_allowed)"
    assert f"coral takes no part: {refused}" in federation.events(run)
    assert f"coral: {refused}" in federation.logs(run)
    assert [line["what"] for line in federation.audit("coral", run)] == ["refused"]
    assert not (federation.consortium.site("coral") / "reports" / run).exists()
    assert federation.rounds(run)["took_part"].tolist() == [3, 3, 3]


@pytest.mark.long
def test_a_run_that_too_many_sites_decline_ends_and_says_why(federation: "Federation") -> None:
    app = federation.app("nowhere", quorum=3)
    for site in ("amber", "coral"):
        federation.write_site(site)
    run = federation.start(app)
    federation.until(lambda: federation.state(run) == "failed", f"run {run} has failed")
    reason = federation.store.entry(run)["reason"]
    assert reason.startswith("too few of 4 sites take part, the quorum is 3: amber: this app is not among those")


def test_no_delivered_file_runs_in_the_process_that_holds_the_session(federation: "Federation") -> None:
    """The app brings a `clients` package, names another ClientApp, and plants what Python imports by itself."""
    folder, marks = federation.folder / "apps" / "rogue", federation.folder / "marks"
    marks.mkdir()
    planted = ("clients/__init__.py", "clients/app.py", "evil.py", "sitecustomize.py", "task.py", "flwr/__init__.py")
    files = {name: MARKING.format(marks=str(marks), file=name.replace("/", ".")) for name in planted}
    honest = federation.app("honest")
    pyproject = (honest / "pyproject.toml").read_text().replace('"server.app:app"', '"standin:server"')
    files["pyproject.toml"] = pyproject.replace('"clients.app:app"', '"evil:app"')
    files |= {"standin.py": INVITING, "federation.toml": (honest / "federation.toml").read_text()}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    federation.write_site("beryl", apps=[folder])

    run = federation.server / "runs" / "rogue"
    run.mkdir()
    (run / APP).write_bytes(bundle({name: text.encode() for name, text in files.items()}))
    with control(federation.server) as calls:
        begin(calls, run)
    federation.until(lambda: federation.noted("amber", "rogue", "refused"), "amber has refused")
    # Where it is allowed, too, it finds no task in task.py.
    federation.until(lambda: federation.noted("beryl", "rogue", "ended"), "beryl's training process has failed")
    federation.stop("rogue")
    ran = {path.name: path.read_text() for path in marks.iterdir()}
    assert [name for name in ran if name.startswith("amber")] == []
    assert [name for name in ran if name.startswith("beryl") and "clients.workers.serve" not in ran[name]] == []
    assert [name for name in ran if name.startswith("beryl-task.py")], "the allowed app's task is run, for training"


@pytest.mark.long
def test_of_a_site_s_broken_data_the_server_learns_a_code_and_a_fixed_line(federation: "Federation") -> None:
    app = federation.app("broken-data", rounds=2, quorum=3)
    place = federation.consortium.site("dolomite")
    pd.read_csv(place / "rows.csv").rename(columns={"ill": "secretcolumn"}).to_csv(place / "broken.csv", index=False)
    federation.write_site("dolomite", apps=[app], csv="broken.csv")
    run = federation.start(app)
    federation.finished(run)
    fixed = f"dolomite took no part: {LINES[Failure.INPUT]} (input_unusable)"
    assert federation.events(run).count(fixed) == 2
    own = (place / "logs" / "training.log").read_text()
    assert "broken.csv" in own
    assert "'ill'" in own
    for path in federation.server.rglob("*"):
        if path.is_file():
            content = path.read_bytes()
            assert b"broken.csv" not in content, path
            assert b"secretcolumn" not in content, path
            assert os.fsencode(place) not in content, path
