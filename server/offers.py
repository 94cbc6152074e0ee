"""Vectors ready for download, by their content's hash."""

import hashlib
import threading
from collections.abc import Iterator, Mapping

from hansa.wire import rules
from hansa.wire.link_pb2 import Blob


class Offers:
    """What the plans in hand offer. Buffers are kept, not copied."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: dict[str, dict[bytes, memoryview]] = {}

    def offer(self, plan: str, vectors: Mapping[str, memoryview]) -> list[Blob]:
        """Adds a plan's vectors (contiguous bytes), and says how to ask for them; small ones are in the answer."""
        if sum(v.nbytes for v in vectors.values()) <= rules.INLINE:
            return [Blob(name=n, size=v.nbytes, data=bytes(v)) for n, v in vectors.items()]
        hashes = {n: hashlib.sha256(v).digest() if v.nbytes else b"" for n, v in vectors.items()}
        with self._lock:
            self._plans[plan] = {hashes[n]: v for n, v in vectors.items() if v.nbytes}
        return [Blob(name=n, sha256=hashes[n], size=v.nbytes) for n, v in vectors.items()]

    def retire(self, plan: str) -> None:
        """Lets a plan's vectors go, those that another plan offers too excepted."""
        with self._lock:
            self._plans.pop(plan, None)

    def find(self, sha256: bytes) -> memoryview | None:
        """The vector with a hash, if a plan offers it."""
        with self._lock:
            return next((v[sha256] for v in self._plans.values() if sha256 in v), None)


def chunks(vector: memoryview, offset: int) -> Iterator[bytes]:
    """A vector's bytes from an offset, in messages."""
    for start in range(offset, vector.nbytes, rules.CHUNK):
        yield bytes(vector[start : start + rules.CHUNK])
