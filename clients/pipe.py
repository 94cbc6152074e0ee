"""Orders and answers between the process that holds the session and the training process, over a socket."""

import json
import socket
import struct
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

_HEAD = struct.Struct("<QQ")  # the sizes of what follows: an object in JSON, and bytes


class Pipe:
    """One end of a socket, which it does not close.

    Args:
        end: the socket, connected to the other process's.
    """

    def __init__(self, end: socket.socket) -> None:
        self._end, self._in = end, end.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._in.close()

    def send(self, said: Mapping[str, Any], frame: bytes = b"") -> None:
        """Sends an object, and bytes beside it.

        Raises:
            OSError: the other end is gone.
        """
        text = json.dumps(said).encode()
        self._end.sendall(_HEAD.pack(len(text), len(frame)) + text)
        self._end.sendall(frame)

    def receive(self) -> tuple[dict[str, Any], bytes] | None:
        """What the other end sends; None if it is gone, if only in the midst of it.

        Raises:
            OSError: the connection is broken.
        """
        if len(head := self._in.read(_HEAD.size)) < _HEAD.size:
            return None
        sizes = _HEAD.unpack(head)
        text, frame = (self._in.read(size) for size in sizes)
        return (json.loads(text), frame) if (len(text), len(frame)) == sizes else None
