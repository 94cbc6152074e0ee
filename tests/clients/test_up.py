import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from clients.forwarder import write_local
from clients.node import HELD, NodeLog
from clients.up import up
from hansa.errors import UserError
from hansa.supervise import Supervisor
from server.provision import Founding, provision

# Lines of Flower 1.42's node, as its log has them.
REFUSED = [
    "[91mERROR[0m:      Exit Code: 305",
    "Failed to initialize the connection to the SuperLink.",
    "[code: 2004] The SuperNode could not be activated.",
]
ONLINE = "[92mINFO[0m:      SuperNode ID: 16093318340239312388"
RECEIVED = "[92mINFO[0m:      Received successfully"
SENDING = "[92mINFO[0m:      Sending: train message (ID: ae8a)"
FAILED = "[93mWARNING[0m:   Connection attempt failed, retrying in 1.52 seconds"
BACK = "[93mWARNING[0m:   Connection successful after 4.21 seconds and 3 tries."


@pytest.fixture
def log() -> NodeLog:
    return NodeLog("lyon", "fl.example.org:9092")


def test_a_node_is_busy_from_a_message_to_its_answer(log: NodeLog) -> None:
    assert not log.busy
    log.shown(RECEIVED)
    assert log.busy
    log.shown(SENDING)
    assert not log.busy


def test_a_server_that_is_away_is_told_once(log: NodeLog) -> None:
    assert [log.shown(line) for line in (FAILED, FAILED, BACK, BACK)] == [
        "fl.example.org:9092 does not answer; trying on",
        None,
        "fl.example.org:9092 answers again",
        None,
    ]
    assert log.shown(ONLINE) == "lyon is connected to fl.example.org:9092"


def test_a_refusal_is_excused_and_told_once_before_and_once_after_the_old_connection_lapses(
    log: NodeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert log.excuse(REFUSED) == f"the server still holds an old connection of lyon; trying again for {HELD} s"
    now += HELD
    assert log.excuse(REFUSED) == ""
    now += HELD
    assert "is it in the server's roster" in (log.excuse(REFUSED) or "")
    assert log.excuse(REFUSED) == ""


def test_any_other_end_of_a_node_is_a_failure(log: NodeLog) -> None:
    assert log.excuse(["Traceback (most recent call last):", "OSError"]) is None


def test_a_second_supervisor_leaves_what_the_first_one_runs_with(tmp_path: Path) -> None:
    provision(tmp_path / "alliance", ["bern"], Founding(), datetime.now(UTC))
    folder = (tmp_path / "alliance" / "sites" / "bern").resolve()
    write_local(folder)  # as the first one does
    with Supervisor(folder, "site", print, {}):
        before = {path.name: path.read_bytes() for path in (folder / "run").iterdir() if path.is_file()}
        with pytest.raises(UserError, match="runs there already"):
            up(folder, print)
        assert {path.name: path.read_bytes() for path in (folder / "run").iterdir() if path.is_file()} == before
