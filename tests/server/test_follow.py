import io
import os
from pathlib import Path

import pytest
from rich.console import Console

from hansa.errors import RunFailed
from hansa.supervise import Supervisor
from server.follow import Follower
from server.launch import Launch, write_launch
from server.store import FILE, Metric, Round, State, Store


class Case:
    """A server folder with one run in it."""

    def __init__(self, folder: Path) -> None:
        self.runs = folder / "runs"
        (self.runs / "r1").mkdir(parents=True)
        self.store = Store(self.runs / FILE)
        self.out = io.StringIO()
        self.launch(wanted=True)

    def launch(self, wanted: bool) -> None:
        write_launch(self.runs / "r1", Launch(1, 7, wanted=wanted))

    def create(self) -> None:
        self.store.create("r1", name="heart", config="", seed=0, engine="deployed", threads=1, hardware="cpu")

    def round(self, number: int, void: str | None = None) -> None:
        row = Round(number, "train", "valid", 1.0, asked=3, took_part=2, dropped=1, examples=9, void=void)
        self.store.round("r1", row, [Metric(number - 1, "valid", "all", "loss", 0.5 / number)])

    def follower(self, events: int = 0) -> Follower:
        return Follower(self.runs, "r1", Console(file=self.out, width=200), events)

    def lines(self) -> list[str]:
        return self.out.getvalue().splitlines()


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_each_round_and_score_is_told_once(case: Case) -> None:
    case.create()
    follower = case.follower()
    case.round(1)
    follower.news()
    follower.news()
    case.round(2, void="no quorum")
    case.store.end("r1", State.FINISHED)
    follower.follow()
    assert case.lines() == [
        "round 1: 2 of 3 sites, 1.0 s",
        "model of round 0, valid: loss 0.5",
        "round 2: 2 of 3 sites, 1.0 s; does not count: no quorum",
        "model of round 1, valid: loss 0.25",
        "finished",
    ]


def test_rounds_that_are_done_again_are_told_again(case: Case) -> None:
    case.create()
    follower = case.follower()
    case.round(1)
    case.round(2)
    follower.news()
    case.store.reopen("r1", 1)
    follower.news()
    case.round(2)
    follower.news()
    told = [line.split(":")[0] for line in case.lines() if line.startswith("round")]
    assert told == ["round 1", "round 2", "round 2"]
    assert sum(line.startswith("model of round 0") for line in case.lines()) == 1


@pytest.mark.parametrize("state", [State.FAILED, State.CRASHED])
def test_a_run_that_failed_fails_the_command(case: Case, state: State) -> None:
    case.create()
    case.store.end("r1", state, "quorum not met")
    with pytest.raises(RunFailed, match=f"{state}: quorum not met"):
        case.follower().follow()


def test_a_run_that_was_stopped_fails_the_command_and_says_how_to_go_on(case: Case) -> None:
    case.create()
    case.store.end("r1", State.INTERRUPTED, "hansa stop")
    case.launch(wanted=False)
    with pytest.raises(RunFailed, match="interrupted: hansa stop; go on with --resume --run r1"):
        case.follower().follow()


def test_a_run_that_never_was_entered_did_not_begin(case: Case) -> None:
    case.launch(wanted=False)
    with pytest.raises(RunFailed, match="did not begin; see hansa logs r1"):
        case.follower().follow()


def test_how_a_resumed_run_had_ended_before_is_not_how_it_ends(case: Case, tmp_path: Path) -> None:
    """Until the new start reopens it, the store holds the end of the start before."""
    case.create()
    case.store.end("r1", State.FAILED, "quorum not met")
    follower = case.follower(events=len(case.store.events("r1")))
    assert follower.news() == (State.RUNNING, "")
    case.store.reopen("r1", 0)
    case.store.end("r1", State.FINISHED)
    follower.follow()


def test_a_server_that_is_gone_ends_the_report(case: Case, tmp_path: Path) -> None:
    case.create()
    with pytest.raises(RunFailed, match="the server was stopped"):
        case.follower().follow()
    with Supervisor(tmp_path, "server", print, os.environ):
        case.store.end("r1", State.FINISHED)
        case.follower().follow()
