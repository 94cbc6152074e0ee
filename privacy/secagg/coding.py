"""Bytes in and out: big-endian, of one form only; nothing is made of a size before its bytes are seen."""

import struct
from collections.abc import Sequence
from itertools import pairwise

SIZES = {"B": 1, "H": 2, "I": 4, "Q": 8}
MOST_SITES = 1024  # of an attempt: the work of a site grows with their number, that of the server with its square


class Malformed(ValueError):
    """Bytes that are not of the form that is expected; says in which way."""


class Reader:
    """Reads a message from its start to its end.

    Args:
        data: the message.
        kind: the text that it must begin with.
    """

    def __init__(self, data: bytes | memoryview, kind: bytes) -> None:
        self.data, self.at = memoryview(data), 0
        if self.take(len(kind)) != kind:
            raise Malformed(f"not a message of kind {kind.decode()}")

    def take(self, size: int) -> bytes:
        """The next bytes."""
        if size > len(self.data) - self.at:
            raise Malformed(f"{len(self.data)} bytes, which ends too early")
        self.at += size
        return bytes(self.data[self.at - size : self.at])

    def number(self, form: str) -> int:
        """An unsigned number: "B", "H", "I" or "Q" as in `struct`."""
        return int.from_bytes(self.take(SIZES[form]))

    def real(self) -> float:
        """A float64."""
        (value,) = struct.unpack(">d", self.take(8))
        return float(value)

    def text(self) -> str:
        """UTF-8 of at most 255 bytes."""
        try:
            return self.take(self.number("B")).decode()
        except UnicodeDecodeError as error:
            raise Malformed("a name that is not UTF-8") from error

    def count(self, most: int) -> int:
        """The length of a list."""
        if (value := self.number("H")) > most:
            raise Malformed(f"a list of {value}, at most {most} are allowed")
        return value

    def rows(self, size: int) -> tuple[tuple[int, bytes], ...]:
        """A list of numbers of sites, each once and in order, with some bytes for each."""
        found = tuple((self.number("H"), self.take(size)) for _ in range(self.count(MOST_SITES)))
        if any(a >= b for (a, _), (b, _) in pairwise(found)):
            raise Malformed("sites that are not in order, each once")
        return found

    def end(self) -> None:
        """Raises Malformed if anything is left."""
        if self.at != len(self.data):
            raise Malformed(f"{len(self.data) - self.at} bytes too many")


def text(value: str) -> bytes:
    """What `Reader.text` reads."""
    data = value.encode()
    return struct.pack(">B", len(data)) + data


def rows(values: Sequence[tuple[int, bytes]]) -> bytes:
    """What `Reader.rows` reads."""
    return struct.pack(">H", len(values)) + b"".join(struct.pack(">H", number) + data for number, data in values)
