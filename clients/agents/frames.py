"""What the head and its agents say to each other, over TLS: an object in JSON, and bytes beside it.

agent -> head    hello: version, node, address, devices; ready, or refused with the line why
head -> agent    run, app, mark and what it is to hold, limit: the heartbeat in seconds
head -> agent    start: a rank's number, its number on the machine, how many there are, of which term
head -> agent    tell: an order for a rank of a term; kill: a term; over: the run is
agent -> head    rank, term: its pid; what it says; that it hangs; that it is gone
both             beat: a sign of life
"""

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

VERSION = 1
TEXT, BYTES = 1 << 20, 1 << 26  # the most that an object in JSON, and the bytes beside it, may take
_HEAD = struct.Struct("<QQ")  # their sizes

Frame = tuple[dict[str, Any], bytes]
T = TypeVar("T")


class Broken(ValueError):
    """What came is no frame of ours."""


def framed(said: Mapping[str, Any], frame: bytes = b"") -> bytes:
    """An object, and bytes beside it, as they travel."""
    text = json.dumps(said).encode()
    return _HEAD.pack(len(text), len(frame)) + text + frame


class Frames:
    """Takes a stream of bytes apart. No more of it is kept than one frame may have."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are whole with these bytes.

        Raises:
            Broken: it is no such stream, or a frame is too large; nothing after it can be read.
        """
        self._held += data
        while len(self._held) >= _HEAD.size:
            text, frame = _HEAD.unpack_from(self._held)
            if text > TEXT or frame > BYTES:
                raise Broken(f"a frame of {text} and {frame} bytes")
            if len(self._held) < (end := _HEAD.size + text + frame):
                return
            whole = bytes(self._held[_HEAD.size : end])
            del self._held[:end]
            yield _object(whole[:text]), whole[text:]


def had(said: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """A value of an object.

    Raises:
        Broken: it is not there, or is of another kind.
    """
    found = said.get(key)
    if type(found) is not kind:
        raise Broken(f"{key} is no {kind.__name__}")
    return found


def _object(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Broken("no JSON") from error
    if not isinstance(found, dict):
        raise Broken("no object")
    return found
