"""Keeps programs running: starts them, shows what they say, starts them again when they die, ends them all.

Everything happens in the main thread, in `Supervisor.wait`. Programs write to their log files themselves, so that they
and the sessions they hold outlive a killed supervisor; the next one on the folder ends them first.
"""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

from hansa.errors import RunFailed, UserError
from hansa.files import write_atomically
from hansa.logs import Log
from hansa.processes import MARK, die_with_parent, end, in_session, marked, only_one, send, started

TICK = 0.05  # seconds between two looks at the programs
QUICK = 10.0  # seconds: a program that ends sooner after its start has failed to start
TRIES = 5  # failures to start, one after the other, after which a supervisor gives up
EXCUSED = 2.0  # seconds until a program is tried again whose end was no failure
FORCE = 4.0  # seconds after which a stop is forced


@dataclass(frozen=True)
class Program:
    """What is kept running.

    Args:
        name: as the user sees it; in lower case, the name of its log.
        command: the program and its arguments.
        shown: a line of its output as the terminal shows it; None leaves it out.
        excuse: of its last lines, when it has ended: why that is no failure, in words ("": unsaid); None if it is one.
        stop: the signals that end it, each so many seconds after the stop began.
        orphaned: the signal that it gets when the supervisor is killed; None: it lives on.
        env: variables of its own, beside those that all have.
    """

    name: str
    command: Sequence[str]
    shown: Callable[[str], str | None] = field(default=lambda line: line)
    excuse: Callable[[Sequence[str]], str | None] = field(default=lambda lines: None)
    stop: Sequence[tuple[float, signal.Signals]] = ((0.0, signal.SIGTERM),)
    orphaned: signal.Signals | None = None
    env: Mapping[str, str] = field(default_factory=dict)


class Child:
    """A program, and the process that runs it just now."""

    def __init__(self, program: Program, log: Path, env: Mapping[str, str]) -> None:
        self.program, self.log, self.env = program, Log(log), {**env, **program.env}
        self.failures = 0  # to start, one after the other
        self.due = 0.0  # when it is started next, if it is down
        self.last_words: list[str] = []  # the end of the log when it last died
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it in a session of its own: Ctrl-C in the terminal is for the supervisor alone."""
        self.log.last.clear()
        with self.log.path.open("ab") as log:
            self.process = subprocess.Popen(
                self.program.command,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=self._tie_to_parent,
            )
        self.since = time.monotonic()

    @property
    def pid(self) -> int | None:
        """Its process id; None while it is down."""
        return self.process.pid if self.process is not None and self.process.poll() is None else None

    def _tie_to_parent(self) -> None:
        """Runs in the new process, before the program."""
        if self.program.orphaned is not None:
            die_with_parent(self.program.orphaned)


class Stopping(Exception):
    """A signal asked the supervisor to stop; raised in `wait`, it ends the `with` block quietly."""


class Supervisor:
    """Keeps programs on one folder running while its `with` block lasts, and leaves no process behind.

    Args:
        folder: its run/ gets a lock and a file that says what runs, its logs/ the logs.
        name: of the file, and of the command `hansa NAME up` whose work this is.
        say: shows a line.
        env: the environment of the programs.

    Raises:
        UserError: another supervisor is on the folder.
        RunFailed: a program failed to start, again and again; in `wait`.
    """

    def __init__(self, folder: Path, name: str, say: Callable[[str], None], env: Mapping[str, str]) -> None:
        if sys.platform != "linux":
            raise UserError(f"hansa {name} up: needs Linux; on this machine, run the federation with hansa simulate")
        self.folder, self.name, self.say = folder, name, say
        self.mark = secrets.token_hex(8)
        self.env = {**env, MARK: self.mark}
        self.children: dict[str, Child] = {}
        self.at_stop: list[Callable[[], None]] = []  # called before the programs are ended
        self._facts: dict[str, Any] = {}
        self._signals = 0
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for name in ("run", "logs"):
            (self.folder / name).mkdir(exist_ok=True)
        refusal = f"{self.folder}: hansa {self.name} up runs there already; stop that one first, by Ctrl-C or SIGTERM"
        self._stack.enter_context(only_one(self.folder / "run" / f"{self.name}.lock", refusal))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup leaves SIGHUP
                self._stack.callback(signal.signal, number, signal.signal(number, self._on_signal))
        if (before := told(self.folder, self.name)) and (count := end(before["mark"], FORCE)):
            self.say(f"ended {count} processes that an earlier hansa {self.name} up had left when it was killed")
        self.tell()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        with self._stack:
            try:
                for call in self.at_stop:
                    call()
            finally:
                self._end(list(self.children.values()), strays=True)
                _file(self.folder, self.name).unlink(missing_ok=True)
        return isinstance(error, Stopping)

    def start(self, program: Program) -> Child:
        """Starts a program, and from then on keeps it running."""
        log = self.folder / "logs" / f"{program.name.lower()}.log"
        child = self.children[program.name] = Child(program, log, self.env)
        child.start()
        self.tell()
        return child

    def drop(self, child: Child) -> None:
        """Ends a program for good."""
        del self.children[child.program.name]
        self._end([child])

    def tell(self, **facts: Any) -> None:
        """Writes what runs, for the commands on this machine, and for the next supervisor if this one is killed."""
        self._facts.update(facts)
        programs = {name: child.pid for name, child in self.children.items()}
        own = {"pid": os.getpid(), "started": started(os.getpid()), "mark": self.mark, "programs": programs}
        write_atomically(_file(self.folder, self.name), json.dumps({**own, **self._facts}).encode())

    def wait(self, seconds: float) -> None:
        """Looks after the programs for a while.

        Raises:
            Stopping: a signal came.
            RunFailed: a program failed to start TRIES times in a row.
        """
        deadline = time.monotonic() + seconds
        while True:
            if self._signals:
                raise Stopping
            for child in list(self.children.values()):
                self._look_after(child)
            if (left := deadline - time.monotonic()) <= 0:
                return
            time.sleep(min(TICK, left))

    def members(self, child: Child) -> list[int]:
        """The live processes of a program: itself, and those that it started."""
        return in_session(child.process.pid) if child.process else []

    def _look_after(self, child: Child) -> None:
        code = child.process.poll() if child.process else None
        self._show(child)
        if child.process is None and time.monotonic() >= child.due:
            child.start()
            self.tell()
        elif code is not None:
            self._has_ended(child, code)

    def _has_ended(self, child: Child, code: int) -> None:
        child.process, lived = None, time.monotonic() - child.since
        child.last_words = list(child.log.last)
        if (reason := child.program.excuse(child.last_words)) is not None:
            child.failures, child.due = 0, time.monotonic() + EXCUSED
            if reason:
                self.say(reason)
            return
        name, how = child.program.name, f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        child.failures = child.failures + 1 if lived < QUICK else 1
        if child.failures >= TRIES:
            raise RunFailed(f"{name} ended {TRIES} times soon after its start ({how}); see {child.log.path}")
        child.due = time.monotonic() + 0.1 * 2 ** (child.failures - 1)
        self.say(f"{name} ended ({how}); starting it again")

    def _show(self, child: Child) -> None:
        for line in child.log.new_lines():
            if (shown := child.program.shown(line)) is not None:
                self.say(f"{child.program.name}: {shown}")

    def _end(self, children: Sequence[Child], strays: bool = False) -> None:
        """Ends programs and what they started as they ask for it; in the end, or at a second signal, by force.

        Args:
            children: the programs.
            strays: also whatever else bears our mark, e.g. what a program had started that died since.
        """
        programs = [(child.process, child.program.stop) for child in children if child.process]
        leaders = {process.pid for process, _ in programs}
        plan = sorted((after, process.pid, number) for process, stop in programs for after, number in stop)
        began, before, first = time.monotonic(), self._signals, strays
        while True:
            for process, _ in programs:
                process.poll()  # reaps it: Flower takes a zombie for a living parent
            sessions = {p: s for p, s in marked(self.mark).items() if strays or s in leaders}
            if not sessions:
                break
            passed = time.monotonic() - began
            if first:
                send(signal.SIGTERM, [pid for pid, session in sessions.items() if session not in leaders])
            while plan and passed >= plan[0][0]:
                _, leader, number = plan.pop(0)
                send(number, [pid for pid, session in sessions.items() if session == leader])
            if passed >= FORCE or self._signals > max(before, 1):
                send(signal.SIGKILL, sessions)
            first = False
            time.sleep(TICK)
        for process, _ in programs:
            process.wait()
        for child in children:
            self._show(child)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1


def told(folder: Path, name: str) -> dict[str, Any] | None:
    """What a supervisor told of itself; None where none did. It may have been killed since: see `lives`."""
    try:
        found = json.loads(_file(folder, name).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"pid", "started", "mark"} <= found.keys() else None


def lives(told: Mapping[str, Any]) -> bool:
    """Whether the supervisor that told this still runs."""
    return bool(told["started"] == started(told["pid"]))


def _file(folder: Path, name: str) -> Path:
    return folder / "run" / f"{name}.json"
