"""What the ClientApp believes of an invitation, and what it answers."""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, RecordDict

import simulations.demo.show
from clients.app import DELIVERED, Answer, invited, take_part
from hansa.appfiles import app_digest, app_files
from hansa.errors import UserError
from hansa.processes import only_one
from server.provision import Founding, provision


def invitation(run: str) -> RecordDict:
    return RecordDict({"invitation": ConfigRecord({"address": "127.0.0.1:9", "run": run, "epoch": 1, "token": "00"})})


@pytest.mark.parametrize("run", ["..", ".", "", "../../elsewhere", "/tmp", "a/b", "a\n"])
def test_a_run_s_name_cannot_lead_out_of_the_site_s_folders(run: str) -> None:
    """The site names its spool by it, and removes that at the end of the run."""
    with pytest.raises(UserError, match="gives no name for a run"):
        invited(invitation(run))


def test_an_invitation_is_taken_as_it_stands() -> None:
    assert invited(invitation("heart-20260101-120000-ab12"))["run"] == "heart-20260101-120000-ab12"


def test_a_site_does_not_take_part_twice_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another of its nodes has the run in hand, and so the lock: no training process is started."""
    provision(tmp_path / "heart", ["boston"], Founding(), datetime.now(UTC), nodes=2)
    boston, app = tmp_path / "heart" / "sites" / "boston", tmp_path / "app"
    shutil.copytree(simulations.demo.show.APP, app)
    allowed = f'allowed = {json.dumps([app_digest(app_files(app))])}\n\n[data]\ncsv = "rows.csv"\ntarget = "ill"'
    text = (boston / "site.toml").read_text().replace("allowed = []", allowed)
    (boston / "site.toml").write_text(text.replace("allow_unprotected = false", "allow_unprotected = true"))
    monkeypatch.setenv("HANSA_SITE", str(boston))
    monkeypatch.setenv(DELIVERED, str(app))
    (boston / "run" / "runs").mkdir(parents=True)
    said = invited(invitation("r1"))
    with only_one(boston / "run" / "runs" / "r1.lock", ""):
        answer = take_part(said, 5)
    assert answer == Answer("the site takes part in run r1 already, by another of its nodes", "here")
    assert not (boston / "logs").exists()
    assert not (boston / "audit.jsonl").exists()
