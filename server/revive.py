"""Notices that the process of a run has died, and starts the run again."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from hansa.errors import UserError
from server.flower import Control, Refused, Unreachable, begin
from server.launch import Launch, launching, read_launch, served, wanted, write_launch
from server.store import FILE, State, Store

DEATHS = 3  # without a new round between them, after which a run is left as it is
ASK = 2.0  # seconds between two questions to Flower about a run whose process has not announced itself


class Reviver:
    """Looks after the runs of a server folder.

    Args:
        runs: the folder of runs.
        control: of the SuperLink.
        say: shows a line.
        resume: whether a run whose process died is started again, or is left interrupted.
    """

    def __init__(self, runs: Path, control: Control, say: Callable[[str], None], resume: bool) -> None:
        self.runs, self.control, self.say, self.resume = runs, control, say, resume
        self._deaths: dict[str, tuple[int, int]] = {}  # run -> deaths without a new round, rounds committed by then
        self._asked: dict[int, float] = {}  # Flower run -> when it was last asked about
        self._damaged: set[str] = set()  # runs of which it was told

    def look(self) -> None:
        """Starts again what has died since the last look."""
        for name, launch in wanted(self.runs, self._pass_over):
            # The SuperLink is being started again, or somebody else starts or stops the run: the next look will tell.
            with suppress(Unreachable, Refused, UserError):
                if self._dead(name, launch):
                    with launching(self.runs / name, patience=0.0):
                        if read_launch(self.runs / name) == launch:
                            self._take_up(name, launch)

    def leave(self, control: Control) -> None:
        """Stops what runs, before the server stops."""
        for name, launch in wanted(self.runs):
            if self.resume:
                self.say(f"run {name} goes on when hansa server up is back")
            else:
                self._give_up(name, launch, State.INTERRUPTED, "the server was stopped")
            if launch.flower_run is not None:
                with suppress(Unreachable, Refused):
                    control.stop(launch.flower_run)

    def _pass_over(self, name: str) -> None:
        if name not in self._damaged:
            self._damaged.add(name)
            self.say(f"run {name}: its launch.json is damaged, so it is passed over; put it back from a copy")

    def _dead(self, name: str, launch: Launch) -> bool:
        if launch.starting or launch.flower_run is None:  # a start that was cut off
            return True
        if (alive := served(self.runs / name, launch.epoch)) is not None:
            return not alive
        if time.monotonic() < self._asked.get(launch.flower_run, 0.0) + ASK:
            return False
        self._asked[launch.flower_run] = time.monotonic()
        standing = self.control.standing(launch.flower_run)
        return standing is None or standing.over

    def _take_up(self, name: str, launch: Launch) -> None:
        try:
            state = State(self._store().entry(name)["state"])
        except UserError:  # it died before it was a run; `hansa run` shows its log
            state = State.CRASHED
        if state not in (State.RUNNING, State.INTERRUPTED):
            write_launch(self.runs / name, replace(launch, wanted=False))
            return
        self.control.nodes()  # raises while the SuperLink is down: that is no death of the run
        rounds = max(self._store().rounds(name)["round"].tolist(), default=0)
        deaths, before = self._deaths.get(name, (0, -1))
        deaths = deaths if launch.starting else deaths + 1 if rounds == before else 1
        self._deaths[name] = deaths, rounds
        if not self.resume:
            self._give_up(name, launch, State.INTERRUPTED, "its process died")
        elif deaths >= DEATHS:
            self._give_up(name, launch, State.CRASHED, f"its process died {deaths} times after round {rounds}")
        else:
            again = begin(self.control, self.runs / name)
            self._store().event(name, "restart", f"its process was gone; start {again.epoch} goes on", level="warning")
            self.say(f"run {name}: its process is gone after round {rounds}; it is started again (start {again.epoch})")

    def _give_up(self, name: str, launch: Launch, state: State, reason: str) -> None:
        write_launch(self.runs / name, replace(launch, wanted=False))
        with suppress(UserError):
            if self._store().entry(name)["state"] == State.RUNNING:
                self._store().end(name, state, reason)
            self.say(f"run {name}: {reason}; go on with hansa run --resume --run {name}")

    def _store(self) -> Store:
        return Store(self.runs / FILE)
