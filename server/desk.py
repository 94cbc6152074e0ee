"""The gate's way to the server's control end: who calls is read in the certificate, and told there."""

import asyncio
import os
import re
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hansa.controlrules import PATH, QUIET
from hansa.errors import UserError
from hansa.roles import Role
from hansa.splice import CHUNK, LIMIT, Stream
from server.callers import Caller, Callers
from server.carrying import carry
from server.endtls import contexts, ended
from server.members import Unwelcome
from server.requestfilter import RequestFilter, Rules
from server.roles import ACTS

# Headers by which the gate tells who calls.
ROLE, NAME, CERTIFICATE = b"hansa-role", b"hansa-name", b"hansa-certificate"
SOCKET = "control.sock"

ASKING = 300.0  # seconds in which a question must have come whole
STRANGER = 30.0  # seconds that all takes with who shows no certificate
STRANGERS = 64  # connections at once of all strangers together
AT_ONCE = 8  # by one certificate, or of strangers from one address
WORD = 5.0  # seconds in which who is turned away is told why

_PASSED = re.compile(rb"content-type|content-length")
_RETURNED = re.compile(rb"content-type|content-length|date")


@contextmanager
def at_socket(folder: Path) -> Iterator[str]:
    """The path of the control end's socket in a server's folder, in a form that is never too long for one."""
    handle = os.open(folder / "run", os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{handle}/{SOCKET}"
    finally:
        os.close(handle)


def rules(caller: Caller) -> Rules:
    """What passes to the control end; whether the caller may do it is decided there, but for strangers."""
    stranger = caller.role is Role.NOBODY
    largest = {
        f"{PATH}{verb}".encode(): act.largest for verb, act in ACTS.items() if not stranger or caller.role in act.who
    }
    return Rules(
        largest=largest.get,
        otherwise="show a certificate of this consortium's"
        if stranger
        else "no such act here; update hansa at the server",
        passed=_PASSED,
        returned=_RETURNED,
        added=[
            (b"host", b"control"),
            (b"connection", b"close"),  # a connection is for one question
            (ROLE, caller.role.encode()),
            (NAME, caller.name.encode()),
            (CERTIFICATE, caller.certificate.encode()),
        ],
    )


class Desk:
    """Serves connections to `routes.CONTROL`.

    Args:
        folder: the server's.
        note: gets a line for the gate's log: who, and what there is to say of it.
    """

    def __init__(self, folder: Path, note: Callable[[str, str], None]) -> None:
        self.folder, self.note = folder, note
        self.callers = Callers(folder)
        self.contexts = contexts(folder, lambda line: note("gate", line), required=False)
        self.contexts.get()  # what is wrong from the start is told at the start
        self._now: Counter[str] = Counter()  # connections by certificate; of strangers by address, and under ""

    async def __call__(self, raw: Stream, first: bytes, caller: str) -> None:
        """Serves one connection.

        Args:
            raw: the connection.
            first: what was read from it.
            caller: where it comes from.
        """
        try:
            async with ended(raw, first, self.contexts.get(), QUIET) as (end, certificate):
                try:
                    who = self.callers.find(certificate)
                except Unwelcome as refusal:
                    self.note(caller, str(refusal))
                    await _turn_away(end, str(refusal))
                    return
                await self._serve(end, who, certificate, caller)
        except ssl.SSLError as error:
            self.note(caller, f"no certificate of this consortium's: {getattr(error, 'verify_message', error.reason)}")
        except (Unwelcome, UserError) as refusal:
            self.note(caller, str(refusal))

    async def _serve(self, end: Stream, who: Caller, certificate: bytes, caller: str) -> None:
        by = [who.certificate] if who.certificate else [caller, ""]
        if self._now[by[0]] >= AT_ONCE or (self._now[""] >= STRANGERS and not who.certificate):
            self.note(caller, f"{who}: too many questions at once")
            await _turn_away(end, "too many questions at once; try again")
            return
        self._now.update(by)
        try:
            sieve = RequestFilter(rules(who))
            with at_socket(self.folder) as path:
                server = Stream(*await asyncio.open_unix_connection(path, limit=LIMIT))
            await carry(
                (end, server),
                sieve,
                lambda: self.callers.find(certificate),  # again: it may have been revoked since
                lambda line: self.note(caller, f"{who}: {line}"),
                QUIET,
                _limit(sieve, who),
            )
        finally:
            self._now -= Counter(by)  # forgets who has none


def _limit(sieve: RequestFilter, who: Caller) -> Callable[[], Awaitable[bool]]:
    """Ends a connection whose question does not come whole in time."""

    async def limit() -> bool:
        await asyncio.sleep(STRANGER if who.role is Role.NOBODY else ASKING)
        if sieve.asked and who.role is not Role.NOBODY:
            await asyncio.Event().wait()
        return False

    return limit


async def _turn_away(end: Stream, line: str) -> None:
    """Answers whatever is asked with a line."""
    sieve = RequestFilter(Rules(lambda path: None, line, _PASSED, _RETURNED))
    async with asyncio.timeout(WORD):
        while True:
            moves = sieve.from_caller(await end.reader.read(CHUNK))
            await end.send(moves.to_caller)
            if moves.over:
                return
