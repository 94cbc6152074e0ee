"""Memory that two processes share: what one lays in it the other reads without a copy."""

import mmap
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.shared_memory import SharedMemory
from typing import Any

LEAST = 4096  # bytes from which an array lies in the arena; smaller ones go with the message
ALIGNED = 64  # bytes, a line of the cache


@dataclass(frozen=True)
class Message:
    """A pickle, and where in the arena its large arrays lie."""

    data: bytes
    spans: list[tuple[int, int]]


class Arena:
    """One message at a time: the next one that is put in overwrites it.

    Both ends are processes of one program, and pickles go between them only.

    Args:
        size: bytes.
        named: whether a process that is not forked can find it.
    """

    def __init__(self, size: int, *, named: bool) -> None:
        self.size = max(size, ALIGNED)
        self._shared = SharedMemory(create=True, size=self.size) if named else None
        self._view = memoryview(mmap.mmap(-1, self.size)) if self._shared is None else _view(self._shared)

    def __reduce__(self) -> tuple[Callable[[str, int], "Arena"], tuple[str, int]]:
        assert self._shared is not None
        return attached, (self._shared.name, self.size)

    def put(self, thing: Any) -> Message:
        """A message for the other end; arrays for which there is no room go with it."""
        spans: list[tuple[int, int]] = []
        free = 0

        def stays(buffer: pickle.PickleBuffer) -> bool:
            nonlocal free
            raw = buffer.raw()
            if raw.nbytes < LEAST or free + raw.nbytes > self.size:
                return True
            self._view[free : free + raw.nbytes] = raw
            spans.append((free, free + raw.nbytes))
            free += -(-raw.nbytes // ALIGNED) * ALIGNED
            return False

        return Message(pickle.dumps(thing, protocol=5, buffer_callback=stays), spans)

    def get(self, message: Message) -> Any:
        """What was put in at the other end; its large arrays are valid until the next message."""
        return pickle.loads(message.data, buffers=[self._view[start:stop] for start, stop in message.spans])

    def close(self) -> None:
        """Lets the memory go, once nothing in it is used."""
        if self._shared is not None:
            self._shared.unlink()


def attached(name: str, size: int) -> Arena:
    """The arena that another process has made under a name."""
    arena = Arena.__new__(Arena)
    arena.size, arena._shared = size, SharedMemory(name)
    arena._view = _view(arena._shared)
    return arena


def _view(shared: SharedMemory) -> memoryview:
    view = shared.buf
    assert view is not None  # it is open
    return view
