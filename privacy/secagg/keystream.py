"""Masks: AES-256 keystreams, added to whole numbers chunk by chunk.

Chunk i of a key's stream is AES-256-CTR that starts at the block i (96 bits), 2 (32 bits). That is what AES-GCM with
nonce i makes of zeros, so that whichever of OpenSSL's two is faster on this machine may be used: the bits are the same.
The loop goes over chunks outside and over keys inside, so that a chunk stays in the processor's cache.
"""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from numpy.typing import NDArray

CHUNK = 1 << 18  # bytes of the stream
ZEROS = memoryview(bytes(CHUNK))
TAG = 16  # bytes that AES-GCM writes behind the stream

P = TypeVar("P")  # what a piece becomes
Words = NDArray[np.unsignedinteger[Any]]  # little-endian
Fill = Callable[[int, memoryview], None]  # writes a chunk of the stream, TAG bytes short of the end


@dataclass(frozen=True)
class Key:
    """Of one stream."""

    secret: bytes = field(repr=False)


@dataclass(frozen=True)
class Mask:
    """The streams of one pair of sites, or of one site alone."""

    bulk: Key
    scalars: Key
    sign: int  # 1: added, -1: subtracted


def _ctr(key: Key) -> Fill:
    cipher = algorithms.AES(key.secret)

    def fill(number: int, out: memoryview) -> None:
        start = modes.CTR(number.to_bytes(12) + (2).to_bytes(4))
        Cipher(cipher, start).encryptor().update_into(ZEROS[: len(out) - TAG], out)

    return fill


def _gcm(key: Key) -> Fill:
    cipher = AESGCM(key.secret)

    def fill(number: int, out: memoryview) -> None:
        cipher.encrypt_into(number.to_bytes(12), ZEROS[: len(out) - TAG], None, out)

    return fill


BACK_ENDS: dict[str, Callable[[Key], Fill]] = {"ctr": _ctr}
if hasattr(AESGCM, "encrypt_into"):  # not in older versions of cryptography
    BACK_ENDS["gcm"] = _gcm
_scratch = threading.local()


@dataclass(frozen=True)
class Keystream:
    """How masks are made; what comes out does not depend on it."""

    back_end: str = "ctr"
    threads: int = 1

    def fill(self, key: Key) -> Fill:
        """The stream of a key."""
        return BACK_ENDS[self.back_end](key)

    def add(self, words: Words, keys: Sequence[tuple[Key, int]]) -> None:
        """Adds (1) or subtracts (-1) the streams of some keys, in place."""
        fills, step = self._fills(keys), CHUNK // words.itemsize
        threads = self.threads if len(words) > step else 1

        def work(first: int) -> None:
            for start in range(first * step, len(words), threads * step):
                _add(words[start : start + step], start // step, fills)

        _each(work, threads)

    def pieces(self, words: Words, keys: Sequence[tuple[Key, int]], pack: Callable[[Words], P]) -> Iterator[P]:
        """The same, packed, a chunk at a time; the words stay as they are."""
        fills, step = self._fills(keys), CHUNK // words.itemsize

        def piece(start: int) -> P:
            copy = words[start : start + step].copy()
            _add(copy, start // step, fills)
            return pack(copy)

        return _in_order(piece, range(0, len(words), step), self.threads)

    def each(self, work: Callable[[int], None]) -> None:
        """Does some work once in each thread, which gets its number."""
        _each(work, self.threads)

    def _fills(self, keys: Sequence[tuple[Key, int]]) -> list[tuple[Fill, int]]:
        return [(self.fill(key), sign) for key, sign in keys]


def scratch() -> memoryview:
    """Room for a chunk of a stream, of this thread alone."""
    if not hasattr(_scratch, "room"):
        _scratch.room = memoryview(bytearray(CHUNK + TAG))
    room: memoryview = _scratch.room
    return room


def fastest(clock: Callable[[], float]) -> Keystream:
    """The fastest back end on this machine, tried for some milliseconds; on two threads, if there are two cores.

    Which number of threads is faster is not tried: that hangs on what else the machine does just then.

    Args:
        clock: tells seconds, e.g. `time.perf_counter`.
    """
    words, keys = np.zeros(4 * CHUNK, "<u4"), [(Key(bytes([number]) * 32), 1) for number in range(4)]
    threads = min(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)

    def seconds(stream: Keystream) -> float:
        start = clock()
        stream.add(words, keys)
        return clock() - start

    best = min(BACK_ENDS, key=lambda back_end: min(seconds(Keystream(back_end)) for _ in range(3)))
    return Keystream(best, threads)


def _each(work: Callable[[int], None], threads: int) -> None:
    if threads == 1:
        return work(0)
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, range(threads)):
            pass


def _add(words: Words, number: int, fills: Sequence[tuple[Fill, int]]) -> None:
    out = scratch()[: words.nbytes + TAG]
    stream = np.frombuffer(out, words.dtype, len(words))
    for fill, sign in fills:
        fill(number, out)
        (np.add if sign > 0 else np.subtract)(words, stream, out=words)


def _in_order(work: Callable[[int], P], starts: Sequence[int], threads: int) -> Iterator[P]:
    """Results one after the other; with threads, as many more are at work or waiting."""
    if threads == 1:
        yield from map(work, starts)
        return
    waiting: deque[Future[P]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for start in starts:
            waiting.append(pool.submit(work, start))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
