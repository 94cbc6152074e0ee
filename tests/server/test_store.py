import hashlib
import math
import os
import resource
import sqlite3
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal
from sqlalchemy.exc import IntegrityError

from hansa.errors import UserError
from server.store import FILE, Metric, Round, State, Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / FILE)


def begin(store: Store, run: str = "r1") -> None:
    store.create(run, name="heart", config="[federation]\n", seed=7, engine="loop", threads=2, hardware="cpu")


def train(number: int, **changes: object) -> Round:
    facts = {"seconds": 0.5, "asked": 3, "took_part": 3, "dropped": 0, "examples": 90}
    return Round(number, "train", "valid", **{**facts, **changes})  # type: ignore[arg-type]


def loss(number: int, value: float | None, scope: str = "all") -> Metric:
    return Metric(number, "valid", scope, "loss", value)


TERMINAL = [state for state in State if state is not State.RUNNING]


def test_a_run_is_entered_with_all_that_a_resume_must_find(store: Store) -> None:
    begin(store)
    entry = store.entry("r1")
    assert entry["state"] == State.RUNNING
    assert (entry["seed"], entry["engine"], entry["threads"], entry["hardware"]) == (7, "loop", 2, "cpu")
    assert entry["config_digest"] == hashlib.sha256(entry["config"].encode()).hexdigest()
    with pytest.raises(UserError, match="exists already"):
        begin(store)


@pytest.mark.parametrize("first", TERMINAL)
def test_a_run_has_one_terminal_state(store: Store, first: State) -> None:
    begin(store)
    store.end("r1", first, "because")
    store.end("r1", first, "again")
    for second in set(State) - {first}:
        with pytest.raises(RuntimeError, match=f"is {first} and cannot become {second}"):
            store.end("r1", second)
    assert (store.entry("r1")["state"], store.entry("r1")["reason"]) == (first, "because")
    assert store.entry("r1")["ended"] >= store.entry("r1")["started"]
    assert store.events("r1")["text"].tolist() == [f"{first}: because"]


def test_running_is_no_end(store: Store) -> None:
    begin(store)
    with pytest.raises(RuntimeError):
        store.end("r1", State.RUNNING)


@pytest.mark.parametrize("state", [State.INTERRUPTED, State.FAILED, State.CRASHED])
def test_a_run_that_is_not_complete_is_reopened_and_may_end_anew(store: Store, state: State) -> None:
    begin(store)
    store.end("r1", state, "quorum")
    store.reopen("r1", 4)
    assert (store.entry("r1")["state"], store.entry("r1")["ended"]) == (State.RUNNING, None)
    assert store.events("r1")["text"].tolist()[-1] == f"resumed after round 4; it was {state}"
    store.end("r1", State.FINISHED)
    assert store.entry("r1")["state"] == State.FINISHED


@pytest.mark.parametrize("state", [State.FINISHED, State.STOPPED_EARLY])
def test_a_complete_run_is_not_reopened(store: Store, state: State) -> None:
    begin(store)
    store.end("r1", state)
    with pytest.raises(UserError, match="nothing is left to resume"):
        store.reopen("r1", 4)
    assert store.entry("r1")["state"] == state


def test_a_run_that_a_killed_process_left_running_is_reopened(store: Store) -> None:
    begin(store)
    store.reopen("r1", 0)
    assert "killed" in store.events("r1")["text"].tolist()[-1]


def test_latest_is_the_newest_run_that_is_not_complete(store: Store) -> None:
    assert store.latest() is None
    for run in ("b", "c", "a"):
        begin(store, run)
    assert store.latest() == "a"
    store.end("a", State.FINISHED)
    store.end("c", State.CRASHED)
    assert store.latest() == "c"
    assert store.runs()["run"].tolist() == ["b", "c", "a"]


def test_a_round_entered_twice_stands_once_as_it_was_last(store: Store) -> None:
    begin(store)
    store.round("r1", train(1), [loss(0, 0.9), loss(0, 0.8, "north"), loss(0, 0.7, "south")])
    store.round("r1", train(2), [loss(1, 0.5), loss(1, 0.4, "north")])
    first = store.frame("r1").query("round == 0")
    for _ in range(2):
        store.round("r1", train(2, took_part=2, dropped=1), [loss(1, 0.6)])
    assert store.rounds("r1")["took_part"].tolist() == [3, 2]
    assert store.frame("r1").query("round == 1 and scope == 'all'")["value"].tolist() == [0.6]
    assert_frame_equal(store.frame("r1").query("round == 0"), first)


def test_a_metric_that_is_gone_when_it_is_entered_again_does_not_linger(store: Store) -> None:
    begin(store)
    store.metrics("r1", [loss(1, 0.5), Metric(1, "valid", "all", "auc", 0.7)])
    store.metrics("r1", [loss(1, 0.6)])
    assert store.frame("r1")[["name", "value"]].to_numpy().tolist() == [["loss", 0.6]]


def test_reopening_takes_back_what_was_entered_about_rounds_that_were_not_committed(store: Store) -> None:
    begin(store)
    for number in (1, 2, 3):
        store.round("r1", train(number), [loss(number, 0.1 * number)])
    store.reopen("r1", 2)
    assert store.rounds("r1")["round"].tolist() == [1, 2]
    assert store.frame("r1")["round"].tolist() == [1, 2]


def test_plans_of_one_number_that_differ_in_kind_or_split_stand_side_by_side(store: Store) -> None:
    begin(store)
    facts = {"seconds": 0.1, "asked": 3, "took_part": 3, "dropped": 0, "examples": 0}
    rows = [train(2), Round(2, "evaluate", "valid", **facts), Round(2, "evaluate", "test", **facts)]  # type: ignore[arg-type]
    for row in reversed(rows):
        store.round("r1", row)
    assert store.rounds("r1")[["kind", "split"]].to_numpy().tolist() == [[r.kind, r.split] for r in rows]


def test_undefined_is_null_and_infinite_is_infinite(store: Store, tmp_path: Path) -> None:
    begin(store)
    store.metrics("r1", [loss(1, None), loss(2, math.inf), loss(3, math.nan)])
    values = store.frame("r1")["value"].tolist()
    assert values[1] == math.inf
    assert math.isnan(values[0])
    with sqlite3.connect(tmp_path / FILE) as db:
        assert db.execute("SELECT round FROM metrics WHERE value IS NULL ORDER BY round").fetchall() == [(1,), (3,)]
    db.close()


@pytest.mark.parametrize("metrics", [[], [loss(1, None)], [loss(1, 0.1 + 0.2), loss(2, None, "north")]])
def test_parquet_equals_frame(store: Store, tmp_path: Path, metrics: list[Metric]) -> None:
    begin(store)
    store.metrics("r1", metrics)
    path = store.export("r1", tmp_path / "out")
    assert_frame_equal(pd.read_parquet(path), store.frame("r1"))
    assert os.listdir(tmp_path / "out") == ["metrics.parquet"]


def test_a_round_that_cannot_be_entered_whole_is_not_entered(store: Store) -> None:
    """A metric that comes twice is our bug: the transaction leaves neither the round nor its other metrics."""
    begin(store)
    store.round("r1", train(1), [loss(1, 0.5)])
    with pytest.raises(IntegrityError, match="UNIQUE"):
        store.round("r1", train(1, took_part=1), [loss(1, 0.1), loss(1, 0.2)])
    assert store.rounds("r1")["took_part"].tolist() == [3]
    assert store.frame("r1")["value"].tolist() == [0.5]


def test_an_unknown_run_is_an_error_that_names_the_nearest(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there are none yet"):
        store.frame("heart-1")
    for run in ("heart-1", "bank-1"):
        begin(store, run)
    for call in (
        lambda: store.frame("hart-1"),
        lambda: store.rounds("hart-1"),
        lambda: store.events("hart-1"),
        lambda: store.entry("hart-1"),
        lambda: store.reopen("hart-1", 0),
        lambda: store.end("hart-1", State.FAILED),
        lambda: store.export("hart-1", tmp_path),
    ):
        with pytest.raises(UserError, match="no run hart-1; there are heart-1"):
            call()


def one_line(caught: pytest.ExceptionInfo[UserError], path: Path) -> bool:
    return str(path) in str(caught.value) and len(str(caught.value).splitlines()) == 1


def test_a_file_that_is_not_a_store_is_named_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_text("my notes, a good deal longer than nothing\n" * 100)
    with pytest.raises(UserError, match="not a database") as caught:
        Store(path)
    assert one_line(caught, path)
    assert path.read_text().startswith("my notes")


def test_a_store_of_another_version_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE) as db:
        db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(UserError, match="another version of Hansa"):
        Store(tmp_path / FILE)


def test_a_folder_that_cannot_be_made_or_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError) as caught:
        Store(tmp_path / "file" / FILE)
    assert one_line(caught, tmp_path / "file")
    (tmp_path / FILE).mkdir()
    with pytest.raises(UserError, match="unable to open") as caught:
        Store(tmp_path / FILE)
    assert one_line(caught, tmp_path / FILE)


def test_a_damaged_store_is_one_line_when_it_is_read(store: Store, tmp_path: Path) -> None:
    begin(store)
    store.metrics("r1", [loss(n, 0.5) for n in range(2000)])
    data = bytearray((tmp_path / FILE).read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    (tmp_path / FILE).write_bytes(data)
    with pytest.raises(UserError, match="malformed") as caught:
        store.frame("r1")
    assert one_line(caught, tmp_path / FILE)


def test_a_disk_that_takes_no_more_is_one_line_and_loses_nothing(store: Store, tmp_path: Path) -> None:
    begin(store)
    store.round("r1", train(1), [loss(1, 0.5)])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (80_000, hard))
    try:
        with pytest.raises(UserError) as caught:
            store.round("r1", train(2), [loss(1, 0.1, f"site-{n}") for n in range(2000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert one_line(caught, tmp_path / FILE)
    assert store.rounds("r1")["round"].tolist() == [1]
    assert store.frame("r1")["value"].tolist() == [0.5]


WRITER = """
import sys
from pathlib import Path
from server.store import Metric, Round, Store
path, run = Path(sys.argv[1]), sys.argv[2]
store = Store(path)
store.create(run, name="n", config="", seed=1, engine="loop", threads=1, hardware="cpu")
print(flush=True)
sys.stdin.readline()
for n in range(1, 41):
    store.round(run, Round(n, "train", "valid", 0.1, 3, 3, 0, 9), [Metric(n, "valid", "all", "loss", 1 / n)])
    store.event(run, "note", f"round {n}", round=n)
"""


def test_two_processes_that_write_two_runs_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs" / FILE
    command = [sys.executable, "-c", WRITER, str(path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([*command, run], **pipes) for run in ("a", "b")]  # type: ignore[call-overload]
    for process in processes:
        process.stdout.readline()
    for process in processes:  # both are ready: they write at once
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    store = Store(path)
    for run in ("a", "b"):
        assert store.frame(run)["value"].tolist() == [1 / n for n in range(1, 41)]
        assert store.events(run)["round"].tolist() == list(range(1, 41))
