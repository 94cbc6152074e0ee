"""The audit file: what was said once stays."""

import json
import stat
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from clients.audit import Audit, opened_in

START = datetime(2026, 1, 31, 12, tzinfo=UTC)


def audit(path: Path) -> Audit:
    def times() -> Iterator[datetime]:
        now = START
        while True:
            yield now
            now += timedelta(seconds=1)

    return Audit(path, clock=times().__next__)


def test_each_line_says_when_which_run_and_what(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    log = audit(path)
    log.append("heart-1", "admitted", digest="sha256:0")
    log.append("heart-1", "trained", round=3, loss=0.5, dp=None)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"time": "2026-01-31T12:00:00+00:00", "run": "heart-1", "what": "admitted", "facts": {"digest": "sha256:0"}},
        {
            "time": "2026-01-31T12:00:01+00:00",
            "run": "heart-1",
            "what": "trained",
            "facts": {"round": 3, "loss": 0.5, "dp": None},
        },
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_lines_are_only_ever_added(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit(path).append("a", "first")
    before = path.read_bytes()
    audit(path).append("b", "second")
    assert path.read_bytes().startswith(before)
    assert path.read_text().count("\n") == 2


def test_a_line_that_was_cut_short_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_text('{"time":"2026-01-')
    audit(path).append("a", "after")
    assert json.loads(path.read_text().splitlines()[1])["what"] == "after"


def test_nobody_writes_a_line_of_his_own_by_a_name(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    audit(path).append('x"}\n{"run": "forged', "admitted\u2028\n")
    (line,) = path.read_text().splitlines()
    assert json.loads(line)["run"] == 'x"}\n{"run": "forged'


def test_what_cannot_be_written_raises(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="directory"):
        audit(tmp_path / "gone" / "audit.jsonl").append("a", "b")


def test_the_newest_sums_of_a_run_are_found_again(tmp_path: Path) -> None:
    """Whatever else is in the file, a line that a crash has cut among it."""
    path = tmp_path / "audit.jsonl"
    assert opened_in(path, "heart-1") == {}
    log = audit(path)
    log.append("heart-1", "admitted", app="sha256:0", epoch=1)
    for run, round, purpose in (("heart-1", 2, "train-valid"), ("heart-2", 9, "train-valid"), ("heart-1", 1, "x")):
        log.append(run, "opened", round=round, purpose=purpose)
    path.write_bytes(path.read_bytes() + b'{"time": "2026-\n[]\n')
    log.append("heart-1", "refused", round=7, purpose="train-valid")
    log.append("heart-1", "opened", round=3, purpose="train-valid")
    assert opened_in(path, "heart-1") == {"train-valid": 3, "x": 1}
