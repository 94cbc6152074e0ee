"""Masks: the same bits by whichever way, and nothing of them left when they are taken off."""

import itertools
import time
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.secagg.keystream import BACK_ENDS, CHUNK, TAG, Key, Keystream, fastest

WAYS = [Keystream(back_end, threads) for back_end in BACK_ENDS for threads in (1, 2)]
KEYS = [(Key(bytes([number]) * 32), sign) for number, sign in ((1, 1), (2, -1), (3, 1))]
SIZES = st.sampled_from([0, 1, 7, CHUNK // 4 - 1, CHUNK // 4, CHUNK // 4 + 1, CHUNK + 3, CHUNK])


def stream(way: Keystream, key: Key, number: int, size: int) -> bytes:
    room = bytearray(size + TAG)
    way.fill(key)(number, memoryview(room))
    return bytes(room[:size])


@pytest.mark.parametrize("way", WAYS)
def test_a_stream_is_aes_of_a_counter(way: Keystream) -> None:
    """NIST SP 800-38A 6.5 and 800-38D 6.5, block by block: AES(key, chunk number (96 bits), 2 + block (32 bits))."""
    key, number = Key(bytes(range(32))), 0x010203
    block = Cipher(algorithms.AES(key.secret), modes.ECB()).encryptor()
    expected = b"".join(block.update(number.to_bytes(12) + (2 + i).to_bytes(4)) for i in range(40))
    assert stream(way, key, number, 630) == expected[:630]


@pytest.mark.parametrize("dtype", ["<u2", "<u4", "<u8"])
@settings(max_examples=30)
@given(size=SIZES, seed=st.integers(0, 2**32 - 1))
def test_all_ways_give_the_same_bits(dtype: str, size: int, seed: int) -> None:
    words = np.random.default_rng(seed).integers(0, 2**16, size).astype(dtype)
    results = []
    for way in WAYS:
        added = words.copy()
        way.add(added, KEYS)
        results += [added.tobytes(), b"".join(way.pieces(words, KEYS, lambda piece: piece.tobytes()))]
    assert len(set(results)) == 1


@given(size=SIZES, way=st.sampled_from(WAYS))
def test_what_is_added_can_be_taken_off(size: int, way: Keystream) -> None:
    words: np.ndarray[Any, Any] = np.arange(size, dtype="<u4")
    before = words.copy()
    way.add(words, KEYS)
    assert size < 2 or not np.array_equal(words, before)
    way.add(words, [(key, -sign) for key, sign in reversed(KEYS)])
    assert np.array_equal(words, before)


def test_pieces_leave_the_words_as_they_are() -> None:
    words = np.arange(CHUNK, dtype="<u4")
    pieces = list(Keystream().pieces(words, KEYS, lambda piece: piece.tobytes()))
    assert np.array_equal(words, np.arange(CHUNK))
    assert max(map(len, pieces)) == CHUNK


def test_no_two_chunks_and_no_two_keys_have_a_stream_in_common() -> None:
    """Over 2 chunks of 257 keys that differ in one bit: each first block of 16 bytes is there once."""
    base = bytes(range(32))
    secrets = [base] + [(int.from_bytes(base) ^ 1 << bit).to_bytes(32) for bit in range(256)]
    blocks = {stream(WAYS[0], Key(secret), number, 16) for secret, number in itertools.product(secrets, (0, 1))}
    assert len(blocks) == 2 * 257


def test_the_fastest_is_one_of_the_ways() -> None:
    assert fastest(time.perf_counter) in WAYS


def test_the_fastest_is_the_one_that_took_least_time() -> None:
    """A clock by which the last of the back ends, tried three times each, is the fastest."""
    spans = [5.0] * 3 * (len(BACK_ENDS) - 1) + [1.0] * 3
    ticks = itertools.chain.from_iterable((0.0, span) for span in spans)
    assert fastest(lambda: next(ticks)).back_end == list(BACK_ENDS)[-1]
