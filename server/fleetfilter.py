"""What a site may say to Flower, request by request. Pure: bytes in, bytes out.

Flower's interfaces share one port, and all but the sites' trust whoever reaches them. So nothing is passed on as it
came: a request is read, held against a narrow form, and written anew from what was read. The server has no second way
to read it, whatever tricks are in the path, the heads or their ends.
"""

import base64
import re
from dataclasses import dataclass
from typing import TypeVar

import h11

LARGEST_HEAD = 16_384  # bytes
LARGEST_BODY = 64 << 20  # bytes; Flower sends 5 MB at once
MOST_HEADERS = 64
END = b"\r\n\r\n"

# All that Flower has there, and nothing that needs to be normalised: no dot, no percent sign, no query.
_PATH = re.compile(rb"/v1/fleet/[a-z]+(-[a-z]+)*")
_PASSED = re.compile(rb"content-type|content-length|accept|accept-encoding|user-agent|(x-)?flwr-[a-z0-9-]+")
_RETURNED = re.compile(rb"content-type|content-length|content-encoding|retry-after|(x-)?flwr-[a-z0-9-]+")
_NODE = b"flwr-public-key"
_REASONS = {400: "Bad Request", 403: "Forbidden", 413: "Content Too Large", 431: "Request Header Fields Too Large"}

E = TypeVar("E", h11.Request, h11.Response)


@dataclass(frozen=True)
class Moves:
    """What is to be done now."""

    to_server: bytes = b""
    to_site: bytes = b""
    over: bool = False  # close both ends, once this has left
    refused: str = ""  # why, for the log


class _Refused(Exception):
    def __init__(self, code: int, line: str) -> None:
        super().__init__(line)
        self.code = code


class FleetFilter:
    """One connection of a site's, and the one to the SuperLink that belongs to it.

    Args:
        host: the SuperLink's address, for the requests' Host.
        node: the public key by which Flower knows the site (SPKI, PEM): it speaks for no other node.
    """

    def __init__(self, host: str, node: str) -> None:
        self._host, self._node = host.encode("ascii"), base64.b64encode(node.encode("ascii"))
        self._site = h11.Connection(h11.SERVER, max_incomplete_event_size=2 * LARGEST_HEAD)
        self._server = h11.Connection(h11.CLIENT)
        self._head = b""  # of the next request, as far as it has come
        self._begun = False  # whether the server has a part of a request that it has not answered
        self._asked = False  # whether it has all of it

    def from_site(self, data: bytes) -> Moves:
        """Takes what the site sends; b"": it has closed."""
        try:
            if not data:
                return Moves(over=True)
            if self._asked:
                raise _Refused(400, "a request before the last one was answered")
            return Moves(to_server=self._requested(data))
        except _Refused as refused:
            # In the midst of a request or an answer, an answer of ours would be taken for the server's.
            answer = b"" if self._begun else _answer(refused.code, str(refused))
            return Moves(to_site=answer, over=True, refused=str(refused))

    def from_server(self, data: bytes) -> Moves:
        """Takes what the SuperLink answers; b"": it has closed."""
        if not self._begun:
            return Moves(over=True)  # it tires of a quiet connection
        try:
            self._server.receive_data(data)
            return self._answered()
        except h11.ProtocolError:
            return Moves(over=True, refused="an answer that is no HTTP")

    def _requested(self, data: bytes) -> bytes:
        """What goes on to the server."""
        if self._site.their_state is h11.IDLE:
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
            self._site.receive_data(data)
            while (event := self._site.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
                out.append(self._passed(event))
        except h11.ProtocolError:
            raise _Refused(400, "no HTTP request") from None
        if self._asked and self._site.trailing_data[0]:
            raise _Refused(400, "a request before the last one was answered")
        return b"".join(out)

    def _passed(self, event: h11.Event | type) -> bytes:
        if isinstance(event, h11.Request):
            self._check(event)
            self._begun = True
            kept = [(b"host", self._host), *_kept(event, _PASSED)]
            event = h11.Request(method=event.method, target=event.target, headers=kept)
        elif isinstance(event, h11.EndOfMessage):
            self._asked = True
        return self._server.send(event) or b""  # type: ignore[arg-type]

    def _check(self, request: h11.Request) -> None:
        said = dict(request.headers)
        if request.http_version != b"1.1":
            raise _Refused(400, "another HTTP than 1.1")
        if request.method != b"POST" or not _PATH.fullmatch(request.target):
            raise _Refused(403, "only POST to /v1/fleet/ passes here")
        if said.get(_NODE) != self._node:
            raise _Refused(403, "the node's key is not the one that the roster has for this certificate's site")
        if int(said.get(b"content-length", b"0")) > LARGEST_BODY:
            raise _Refused(413, "a body that is too long")

    def _answered(self) -> Moves:
        out: list[bytes] = []
        while (event := self._server.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
            if isinstance(event, h11.ConnectionClosed):
                return Moves(to_site=b"".join(out), over=True)
            if isinstance(event, h11.Response):
                kept = _kept(event, _RETURNED)
                event = h11.Response(status_code=event.status_code, reason=event.reason, headers=kept)
            if not isinstance(event, h11.InformationalResponse):
                out.append(self._site.send(event) or b"")  # type: ignore[arg-type]
            if isinstance(event, h11.EndOfMessage) and not self._next_cycle():
                return Moves(to_site=b"".join(out), over=True)
        return Moves(to_site=b"".join(out))

    def _next_cycle(self) -> bool:
        """Readies both ends for another request; False if one of them wants no other, or its request is not whole."""
        ends = (self._site, self._server)
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
