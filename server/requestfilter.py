"""What passes the gate to a server behind it, request by request. Pure: bytes in, bytes out.

What stands behind the gate trusts whoever reaches it. So nothing is passed on as it came: a request is read, held
against a narrow form, and written anew from what was read. The server has no second way to read it, whatever tricks are
in the path, the heads or their ends.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import h11

LARGEST_HEAD = 16_384  # bytes
MOST_HEADERS = 64
END = b"\r\n\r\n"

_REASONS = {400: "Bad Request", 403: "Forbidden", 413: "Content Too Large", 431: "Request Header Fields Too Large"}

E = TypeVar("E", h11.Request, h11.Response)


Header = tuple[bytes, bytes]  # the name in lower case


@dataclass(frozen=True)
class Needed:
    """A header that a request must have."""

    name: bytes  # in lower case
    values: frozenset[bytes] = field(repr=False)  # of which it must be one
    otherwise: str  # what is said where it is not


@dataclass(frozen=True)
class Rules:
    """What may pass.

    Args:
        largest: of a path: the bytes that a POST to it may bring; None: it does not pass. A path that passes has
            nothing in it that could be normalised: no dot, no percent sign, no query.
        otherwise: what is said to who asks for another path.
        passed: the names of headers that go on to the server.
        returned: the names of headers that come back.
        added: headers of the gate's own, whose names no `passed` matches.
        needed: what a request must have.
    """

    largest: Callable[[bytes], int | None]
    otherwise: str
    passed: re.Pattern[bytes]
    returned: re.Pattern[bytes]
    added: Sequence[Header] = ()
    needed: Needed | None = None


@dataclass(frozen=True)
class Moves:
    """What is to be done now."""

    to_server: bytes = b""
    to_caller: bytes = b""
    over: bool = False  # close both ends, once this has left
    refused: str = ""  # why, for the log


class _Refused(Exception):
    def __init__(self, code: int, line: str) -> None:
        super().__init__(line)
        self.code = code


class RequestFilter:
    """One connection of a caller's, and the one to the server that belongs to it.

    Args:
        rules: what may pass.
    """

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._caller = h11.Connection(h11.SERVER, max_incomplete_event_size=2 * LARGEST_HEAD)
        self._server = h11.Connection(h11.CLIENT)
        self._head = b""  # of the next request, as far as it has come
        self._begun = False  # whether the server has a part of a request that it has not answered
        self._asked = False  # whether it has all of it

    @property
    def asked(self) -> bool:
        """Whether a whole request waits for its answer."""
        return self._asked

    def from_caller(self, data: bytes) -> Moves:
        """Takes what the caller sends; b"": it has closed."""
        try:
            if not data:
                return Moves(over=True)
            if self._asked:
                raise _Refused(400, "a request before the last one was answered")
            return Moves(to_server=self._requested(data))
        except _Refused as refused:
            # In the midst of a request or an answer, an answer of ours would be taken for the server's.
            answer = b"" if self._begun else _answer(refused.code, str(refused))
            return Moves(to_caller=answer, over=True, refused=str(refused))

    def from_server(self, data: bytes) -> Moves:
        """Takes what the server answers; b"": it has closed."""
        if not self._begun:
            return Moves(over=True)  # it tires of a quiet connection
        try:
            self._server.receive_data(data)
            return self._answered()
        except h11.ProtocolError:
            return Moves(over=True, refused="an answer that is no HTTP")

    def _requested(self, data: bytes) -> bytes:
        """What goes on to the server."""
        if self._caller.their_state is h11.IDLE:
            self._head += data
            head, end, _ = self._head.partition(END)
            if len(head) > LARGEST_HEAD:
                raise _Refused(431, "a head that is too long")
            if not end:
                return b""
            _check_head(head)
            data, self._head = self._head, b""
        out: list[bytes] = []
        try:
            self._caller.receive_data(data)
            while (event := self._caller.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                out.append(self._passed(event))
        except h11.ProtocolError:
            raise _Refused(400, "no HTTP request") from None
        if self._asked and self._caller.trailing_data[0]:
            raise _Refused(400, "a request before the last one was answered")
        return b"".join(out)

    def _passed(self, event: h11.Event | type) -> bytes:
        if isinstance(event, h11.Request):
            self._check(event)
            self._begun = True
            kept = [*self._rules.added, *_kept(event, self._rules.passed)]
            event = h11.Request(method=event.method, target=event.target, headers=kept)
        elif isinstance(event, h11.EndOfMessage):
            self._asked = True
        return self._server.send(event) or b""  # type: ignore[arg-type]

    def _check(self, request: h11.Request) -> None:
        said, needed = dict(request.headers), self._rules.needed
        if request.http_version != b"1.1":
            raise _Refused(400, "another HTTP than 1.1")
        largest = self._rules.largest(request.target) if request.method == b"POST" else None
        if largest is None:
            raise _Refused(403, self._rules.otherwise)
        if needed is not None and said.get(needed.name) not in needed.values:
            raise _Refused(403, needed.otherwise)
        if int(said.get(b"content-length", b"0")) > largest:
            raise _Refused(413, "a body that is too long")

    def _answered(self) -> Moves:
        out: list[bytes] = []
        while (event := self._server.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(event, h11.ConnectionClosed):
                return Moves(to_caller=b"".join(out), over=True)
            if isinstance(event, h11.Response):
                kept = _kept(event, self._rules.returned)
                event = h11.Response(status_code=event.status_code, reason=event.reason, headers=kept)
            if not isinstance(event, h11.InformationalResponse):
                out.append(self._caller.send(event) or b"")  # type: ignore[arg-type]
            if isinstance(event, h11.EndOfMessage) and not self._next_cycle():
                return Moves(to_caller=b"".join(out), over=True)
        return Moves(to_caller=b"".join(out))

    def _next_cycle(self) -> bool:
        """Readies both ends for another request; False if one of them wants no other, or its request is not whole."""
        ends = (self._caller, self._server)
        if any(end.our_state is not h11.DONE or end.their_state is not h11.DONE for end in ends):
            return False
        for end in ends:
            end.start_next_cycle()
        self._begun = self._asked = False
        return True


def _kept(event: E, names: re.Pattern[bytes]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in event.headers if names.fullmatch(name)]


def _check_head(head: bytes) -> None:
    """Refuses what a lenient reader might take otherwise than h11 does."""
    request, *lines = head.split(b"\r\n")
    if any(mark in line for line in (request, *lines) for mark in (b"\r", b"\n", b"\0")):
        raise _Refused(400, "a head with odd ends of lines")
    if any(line[:1] in (b" ", b"\t") for line in lines):
        raise _Refused(400, "a header over several lines")
    if len(lines) > MOST_HEADERS:
        raise _Refused(431, "too many headers")
    fields = [(name.strip().lower(), value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
    names = {name for name, _ in fields}
    if b"transfer-encoding" in names or len(names) < len(fields):
        raise _Refused(400, "a header that stands twice, or Transfer-Encoding")
    if not dict(fields).get(b"content-length", b"0").isdigit():
        raise _Refused(400, "a Content-Length that is no number")


def _answer(code: int, line: str) -> bytes:
    body = f"{line}\n".encode()
    heads = [f"HTTP/1.1 {code} {_REASONS[code]}", "connection: close", "content-type: text/plain; charset=utf-8"]
    return "\r\n".join([*heads, f"content-length: {len(body)}", "", ""]).encode() + body
