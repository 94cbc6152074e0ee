"""What a verb of the control end gets: who asks what, and how to answer while the work goes on in a thread."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from dataclasses import field as own
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from hansa.errors import RunFailed, UserError
from hansa.files import FULL
from hansa.roles import Role
from hansa.tables import Table, is_name
from hansa.words import spoken
from server.acts import Acts
from server.callers import Caller
from server.roles import ACTS

WAITING = 64  # parts of an answer that wait for a slow reader before the work waits too

T = TypeVar("T", bound=Table)


class Denied(UserError):
    """The caller may not do that, or cannot now.

    Args:
        reason: a code, for the record of acts.
        line: for the caller.
    """

    def __init__(self, reason: str, line: str) -> None:
        super().__init__(line)
        self.reason = reason


class Gone(BaseException):
    """Nobody waits for the answer any more. No `except Exception` of a verb's is meant to stop it."""


@dataclass(frozen=True)
class Sent:
    """A file as an answer, from a byte on."""

    path: Path
    offset: int
    size: int  # of all of it, bytes


class Answer:
    """Takes an answer from the thread in which it is made to the event loop that sends it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parts: asyncio.Queue[Mapping[str, Any] | Sent] = asyncio.Queue(WAITING)
        self._closed = threading.Event()
        self._at_close: list[Callable[[], None]] = []

    # in the thread

    def put(self, part: Mapping[str, Any] | Sent) -> None:
        """Adds a part; waits while the reader is slow.

        Raises:
            Gone: there is no reader any more.
        """
        if self._closed.is_set():
            raise Gone
        done: Future[None] = asyncio.run_coroutine_threadsafe(self._parts.put(part), self._loop)
        done.result()

    def wait(self, seconds: float) -> None:
        """Sleeps.

        Raises:
            Gone: there is no reader any more.
        """
        if self._closed.wait(seconds):
            raise Gone

    def at_close(self, call: Callable[[], None]) -> None:
        """Has something called, in another thread, if the reader goes: it ends what the work waits for."""
        self._at_close.append(call)
        if self._closed.is_set():
            call()

    # in the event loop

    async def next(self, seconds: float) -> Mapping[str, Any] | Sent:
        """The next part; an empty one when there was none for a while."""
        try:
            async with asyncio.timeout(seconds):
                return await self._parts.get()
        except TimeoutError:
            return {}

    def close(self) -> None:
        """The reader is gone, or has all."""
        self._closed.set()
        while not self._parts.empty():  # lets a thread go that waits for room
            self._parts.get_nowait()
        for call in self._at_close:
            threading.Thread(target=call, daemon=True).start()


@dataclass
class Ask:
    """One question. A verb calls `permit` before it does anything, or raises.

    Args:
        folder: the server's.
        caller: who asks.
        verb: what for.
        body: with what.
        answer: to the caller.
        acts: the record.
    """

    folder: Path
    caller: Caller
    verb: str
    body: Mapping[str, Any] = own(repr=False)
    answer: Answer = own(repr=False)
    acts: Acts = own(repr=False)
    subject: str = ""  # the run or the site that it is about
    noted: bool = False  # whether it is in the record

    def say(self, line: str) -> None:
        """Shows a line to the caller.

        Raises:
            Gone: the caller is not there any more.
        """
        self.answer.put({"line": self.outward(line)})

    def outward(self, line: str) -> str:
        """A line without where the server's folder is on its machine."""
        return line.replace(f"{self.folder}/", "").replace(str(self.folder), "the server's folder")

    def permit(self, subject: str = "") -> None:
        """Enters into the record that it is allowed.

        Args:
            subject: the run or the site that it is about, if that is not known yet.

        Raises:
            RunFailed: the record cannot be written: it must not be done.
        """
        self.note("", subject)

    def note(self, reason: str, subject: str = "") -> None:
        """Enters into the record that it is refused, or, without a reason, allowed."""
        self.subject = subject or self.subject
        try:
            polled = ACTS[self.verb].polled
            self.acts.note(self.caller, self.verb, self.subject, reason, polled=polled)
        except OSError as error:
            if error.errno in FULL:
                why = "the server's disk is full: it cannot write its record of acts, and so does nothing"
                raise RunFailed(f"{why}; its operator must make room") from error
            why = "the server cannot write its record of acts, and so does nothing"
            raise RunFailed(f"{why}; its log, control.log, says why") from error
        self.noted = True

    def table(self, kind: type[T]) -> T:
        """The question's body, checked.

        Raises:
            Denied: it is not of that form.
        """
        try:
            return kind.model_validate(self.body)
        except ValidationError as error:
            one = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in one["loc"])
            raise Denied("form", f"{self.verb} {place}: {spoken(one)}; is hansa the same at both ends?") from None

    def run(self) -> str:
        """The run that it is about, by its name; it need not exist.

        Raises:
            Denied: it is no name.
        """
        run = self.body.get("run")
        if not isinstance(run, str) or not is_name(run):
            raise Denied("form", "that is no name of a run; hansa status lists them")
        self.subject = run
        return run

    def check_role(self) -> None:
        """Whether this role may ask for this verb at all.

        Raises:
            Denied: it may not.
        """
        who = ACTS[self.verb].who
        if self.caller.role not in who:
            may = " and ".join(f"{role}s" for role in Role if role in who and role is not Role.NOBODY)
            line = f"{self.caller.role}s may not {self.verb}; {f'only {may} may' if may else 'it takes an invitation'}"
            raise Denied("role", line)


Handler = Callable[[Ask], Mapping[str, Any] | Sent]  # does what is asked; the result
