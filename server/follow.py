"""Follows a deployed run by what it enters into the run store."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console

from hansa.console import say
from hansa.errors import RunFailed, UserError
from hansa.supervise import lives, told
from server.launch import read_launch
from server.store import DONE, FILE, State, Store

POLL = 0.3  # seconds


class Follower:
    """Prints what is new in a run.

    Args:
        runs: the folder of runs.
        run: the run's id.
        console: where to.
        events: how many of its events are old.
        wait: sleeps for so many seconds.
    """

    def __init__(
        self,
        runs: Path,
        run: str,
        console: Console,
        events: int = 0,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self.store, self.folder, self.run, self.console = Store(runs / FILE), runs / run, run, console
        self.begun, self._wait = False, wait
        self._events, self._old = events, events
        self._told: set[tuple[int, str]] = set()  # of a round's number: "train", or the split of a score

    def follow(self) -> None:
        """Prints until the run is over.

        Raises:
            RunFailed: it failed, was stopped, did not begin, or its server is gone.
        """
        while True:
            launch = read_launch(self.folder)
            wanted = launch is not None and launch.wanted  # read first: what ends a run is in the store by then
            state, reason = self.news()
            if state in DONE:
                return
            if state in (State.FAILED, State.CRASHED):
                raise RunFailed(f"run {self.run} {state}: {reason}; see hansa logs {self.run}")
            if not wanted and self.begun:
                raise RunFailed(f"run {self.run} was interrupted: {reason}; go on with --resume --run {self.run}")
            if not wanted:
                raise RunFailed(f"run {self.run} did not begin; see hansa logs {self.run}")
            server = told(self.folder.parents[1], "server")
            if server is None or not lives(server):
                raise RunFailed(f"the server was stopped; run {self.run} goes on when hansa server up is back")
            self._wait(POLL)

    def news(self) -> tuple[State, str]:
        """Prints what is new; the run's state and its reason. A resumed run is running until it is reopened."""
        try:
            entry = self.store.entry(self.run)
        except UserError:
            return State.RUNNING, ""
        events = self.store.events(self.run)
        self.begun = self.begun or len(events) > self._old or entry["state"] == State.RUNNING
        self._print_rounds()
        self._print_events(events)
        return (State(entry["state"]), entry["reason"]) if self.begun else (State.RUNNING, "")

    def _print_events(self, events: pd.DataFrame) -> None:
        for event in _records(events.iloc[self._events :]):
            if event["kind"] == "resume":  # rounds after the last checkpoint are done again
                self._told = {key for key in self._told if key[0] <= event["round"]}
            say(self.console, f"{event['level']}: {event['text']}" if event["level"] != "info" else event["text"])
        self._events = len(events)

    def _print_rounds(self) -> None:
        for row in _records(self.store.rounds(self.run)):
            if row["kind"] == "train" and self._new(row["round"], "train"):
                void = f"; does not count: {row['void']}" if isinstance(row["void"], str) else ""  # else: missing
                sites = f"{row['took_part']} of {row['asked']} sites"
                say(self.console, f"round {row['round']}: {sites}, {row['seconds']:.1f} s{void}")
        scores: dict[tuple[int, str], list[str]] = {}
        for one in _records(self.store.frame(self.run)):
            if one["scope"] == "all" and one["split"] != "train":
                scores.setdefault((one["round"], one["split"]), []).append(f"{one['name']} {one['value']:.4g}")
        for (number, split), values in scores.items():
            if self._new(number, split):
                say(self.console, f"model of round {number}, {split}: {'  '.join(values)}")

    def _new(self, number: int, what: str) -> bool:
        new = (number, what) not in self._told
        self._told.add((number, what))
        return new


def _records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [dict(zip(frame.columns, row, strict=True)) for row in frame.astype(object).to_numpy().tolist()]
