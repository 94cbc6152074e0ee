"""Asks the server's control end, through its gate, and a proxy if there is one.

What a question and its answer are stands in `hansa.controlrules`.
"""

import asyncio
import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h11

from hansa.controlrules import BYTES, JSON_LINES, PATH, QUIET
from hansa.dial import Way, in_words
from hansa.errors import RunFailed, UserError
from hansa.routes import CONTROL
from hansa.startup import CA, TLS_CERTIFICATE, TLS_KEY

READ = 1 << 18  # bytes that are taken at once
LONGEST = 8 << 20  # bytes of a line


class Unanswered(RunFailed):
    """No answer, or only a part of one: the cause is on the way, or at the server's machine."""

    def __init__(self, server: str, error: OSError) -> None:
        nobody = isinstance(error, ConnectionRefusedError | TimeoutError)
        mend = "; is the server up, and is that its public port?" if nobody else ""
        super().__init__(f"{server}: {in_words(error)}{mend}")
        self.error = error


@dataclass(frozen=True)
class ControlClient:
    """The control end of a server.

    Args:
        way: to the server's public port.
        ca: the file of the consortium's authority.
        pair: the files of the certificate that is shown and of its key; None: none is.
    """

    way: Way
    ca: Path
    pair: tuple[Path, Path] | None = None

    def ask(self, verb: str, body: Mapping[str, Any], say: Callable[[str], None]) -> dict[str, Any]:
        """Asks, shows what comes, and returns the result. Not to be called in an event loop.

        Args:
            verb: what for, e.g. "status".
            body: with what; JSON.
            say: shows a line.

        Raises:
            UserError: the server refuses it.
            RunFailed: it failed there; an `Unanswered`: there is no answer.
        """
        with self._asked(verb, body) as (head, parts):
            if _type(head) != JSON_LINES:
                raise UserError(f"{self.way.server} refuses: {_plain(b''.join(parts).decode(errors='replace'))}")
            for part in self._whole_lines(parts):
                if "error" in part:
                    raise _error(part)
                if "result" in part:
                    return dict(part["result"])
                if "line" in part:
                    say(_plain(str(part["line"])))
        raise Unanswered(self.way.server, ConnectionError("cut"))

    @contextmanager
    def file(self, verb: str, body: Mapping[str, Any]) -> Iterator[Iterator[bytes]]:
        """Asks for a file: its bytes from where the question says. Raises as `ask` does."""
        with self._asked(verb, body) as (head, parts):
            if _type(head) != BYTES:
                for part in self._whole_lines(parts):
                    if "error" in part:
                        raise _error(part)
                raise UserError(f"{self.way.server}: sends no file; is hansa the same at both ends?")
            yield parts

    def date(self, verb: str, body: Mapping[str, Any]) -> str:
        """The header Date of whatever answer there is, "" without one. Raises as `ask` does."""
        with self._asked(verb, body) as (head, _):
            return _header(head, "date")

    def connect(self) -> ssl.SSLSocket:
        """A connection to it, both certificates shown.

        Raises:
            OSError: there is none; ssl.SSLCertVerificationError where what answers is not the consortium's server.
            UserError: the certificate that is to be shown cannot be read.
        """
        context = _context(self.ca, self.pair)
        end = asyncio.run(self.way.dial())
        try:
            end.settimeout(QUIET)
            return context.wrap_socket(end, server_hostname=CONTROL)
        except BaseException:
            end.close()
            raise

    @contextmanager
    def _asked(self, verb: str, body: Mapping[str, Any]) -> Iterator[tuple[h11.Response, Iterator[bytes]]]:
        content, http = json.dumps(body, allow_nan=False).encode(), h11.Connection(h11.CLIENT)
        heads = [("host", CONTROL), ("content-type", "application/json"), ("content-length", str(len(content)))]
        request = http.send(h11.Request(method="POST", target=f"{PATH}{verb}", headers=heads)) or b""
        http.send(h11.Data(data=content))
        http.send(h11.EndOfMessage())
        with self._telling():
            end = self.connect()
        with end:
            with self._telling(), suppress(BrokenPipeError, ConnectionResetError):  # it may answer before it has all
                end.sendall(request + content)
            while isinstance(head := self._next(http, end), h11.InformationalResponse):
                pass
            if not isinstance(head, h11.Response):
                raise Unanswered(self.way.server, ConnectionError("cut"))
            yield head, self._body(http, end)

    def _body(self, http: h11.Connection, end: ssl.SSLSocket) -> Iterator[bytes]:
        while isinstance(event := self._next(http, end), h11.Data):
            yield bytes(event.data)
        if not isinstance(event, h11.EndOfMessage):
            raise Unanswered(self.way.server, ConnectionError("cut"))

    def _next(self, http: h11.Connection, end: ssl.SSLSocket) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        with self._telling():
            while (event := http.next_event()) is h11.NEED_DATA:
                http.receive_data(end.recv(READ))
            return event

    @contextmanager
    def _telling(self) -> Iterator[None]:
        try:
            yield
        except h11.ProtocolError:
            raise Unanswered(self.way.server, ConnectionError("cut")) from None
        except OSError as error:
            raise Unanswered(self.way.server, error) from None

    def _whole_lines(self, parts: Iterator[bytes]) -> Iterator[dict[str, Any]]:
        rest = b""
        for part in parts:
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                try:
                    found = json.loads(line)
                except (ValueError, RecursionError):
                    found = None
                if not isinstance(found, dict):
                    raise UserError(f"{self.way.server}: answers what makes no sense here; update hansa at both ends")
                yield found
            if len(rest) > LONGEST:
                raise UserError(f"{self.way.server}: answers with a line that is too long; update hansa at both ends")


def in_folder(way: Way, folder: Path) -> ControlClient:
    """The control end as somebody reaches it whose folder holds the authority, a certificate and its key."""
    return ControlClient(way, folder / CA, (folder / TLS_CERTIFICATE, folder / TLS_KEY))


def _context(ca: Path, pair: tuple[Path, Path] | None) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        made.load_verify_locations(ca)
        if pair:
            made.load_cert_chain(*pair)
    except OSError as error:
        files = ", ".join(map(str, (ca, *(pair or ()))))
        raise UserError(f"{files}: cannot be used ({error.strerror}); copy them anew") from None
    return made


def _header(head: h11.Response, name: str) -> str:
    """A header's value, "" without one."""
    return dict(head.headers).get(name.encode("ascii"), b"").decode("ascii", errors="replace")


def _type(head: h11.Response) -> str:
    return _header(head, "content-type").partition(";")[0]


def _error(part: Mapping[str, Any]) -> UserError | RunFailed:
    lines = [_plain(str(line)) for line in part["error"]]
    return UserError(*lines) if part.get("code") == 2 else RunFailed("; ".join(lines))


def _plain(line: str) -> str:
    """A line without what moves a terminal's cursor or colours: somebody else's code may have written it."""
    return "".join(one for one in line.rstrip() if one.isprintable() or one == "\t")
