"""The server name that a TLS client asks for, read from the first bytes that it sends. Pure.

RFC 8446, sections 4.1.2 and 5.1; RFC 6066, section 3. What follows the name is for whoever ends the TLS to judge.
"""

import re

LARGEST = 32_768  # bytes before the end of a ClientHello, with the heads of the records; today's have about 2,000
_RECORD_HEAD, _MESSAGE_HEAD = 5, 4
_TLS = bytes([22, 3])  # a record of the handshake; of any version 3.x, which is TLS
_CLIENT_HELLO = bytes([1])
_LARGEST_RECORD = 1 << 14
_SERVER_NAME, _HOST_NAME = 0, 0
_NAME = re.compile(rb"(?=.{1,253}$)[A-Za-z0-9_-]{1,63}(\.[A-Za-z0-9_-]{1,63})*")


class NoName(ValueError):
    """What comes is no TLS, or asks for no name; the text is fit to print."""


class HelloReader:
    """Takes what a client sends, in pieces of any size, until it has made a ClientHello."""

    def __init__(self) -> None:
        self.taken = bytearray()  # all of it: whoever ends the TLS begins with these bytes
        self._message = bytearray()  # the fragments of the handshake message, joined
        self._record = 0  # where in `taken` the next record begins

    def feed(self, data: bytes) -> str | None:
        """Takes the next bytes.

        Returns:
            The server name in lower case; None: more is to come.

        Raises:
            NoName: there will be none.
        """
        self.taken += data
        while (length := self._length()) is None:
            if not self._next_record():
                if len(self.taken) > LARGEST:
                    raise NoName("a hello that is too long")
                return None
        return _server_name(bytes(self._message[_MESSAGE_HEAD:length]))

    def _next_record(self) -> bool:
        """Takes in the next record; False if it is not all there."""
        head = self.taken[self._record : self._record + _RECORD_HEAD]
        if not _TLS.startswith(bytes(head[: len(_TLS)])):
            raise NoName("no TLS")
        if len(head) < _RECORD_HEAD:
            return False
        size = int.from_bytes(head[3:5], "big")
        if not 0 < size <= _LARGEST_RECORD:
            raise NoName("no TLS")
        begin = self._record + _RECORD_HEAD
        if len(self.taken) < begin + size:
            return False
        self._message += self.taken[begin : begin + size]
        self._record = begin + size
        return True

    def _length(self) -> int | None:
        """The length of the message with its head; None if it is not all there."""
        if not _CLIENT_HELLO.startswith(bytes(self._message[:1])):
            raise NoName("no hello")
        if len(self._message) < _MESSAGE_HEAD:
            return None
        length = _MESSAGE_HEAD + int.from_bytes(self._message[1:_MESSAGE_HEAD], "big")
        if length > LARGEST:
            raise NoName("a hello that is too long")
        return length if len(self._message) >= length else None


class _Reader:
    """Reads a structure from its beginning to its end."""

    def __init__(self, data: bytes) -> None:
        self.rest = data

    def take(self, size: int) -> bytes:
        if len(self.rest) < size:
            raise NoName("a hello that is cut short")
        data, self.rest = self.rest[:size], self.rest[size:]
        return data

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size: int) -> bytes:
        """A vector whose length stands before it, in so many bytes."""
        return self.take(self.number(size))


def _server_name(body: bytes) -> str:
    hello = _Reader(body)
    hello.take(2 + 32)  # version, random
    for size in (1, 2, 1):  # session id, cipher suites, compression methods
        hello.vector(size)
    found, extensions = {}, _Reader(hello.vector(2) if hello.rest else b"")
    while extensions.rest:
        kind, content = extensions.number(2), extensions.vector(2)
        if kind in found:
            raise NoName("a hello with an extension that stands twice")
        found[kind] = content
    if hello.rest:
        raise NoName("a hello with more behind it")
    if _SERVER_NAME not in found:
        raise NoName("no server name")
    outer = _Reader(found[_SERVER_NAME])
    names = _Reader(outer.vector(2))
    kind, name = names.number(1), names.vector(2)
    if kind != _HOST_NAME or names.rest or outer.rest or not _NAME.fullmatch(name):
        raise NoName("a server name that makes no sense")
    return name.decode("ascii").lower()
