"""Whole numbers of 16, 20, 24 or 32 bits, without gaps, least significant byte first.

A sum mod 2^32 holds the sum mod 2^b for each smaller b: 20 and 24 bits are reckoned with in 32 and cut on the way out.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from privacy.secagg.keystream import Words


def word(bits: int) -> np.dtype[np.unsignedinteger[Any]]:
    """What a ring's numbers are reckoned in."""
    return np.dtype("<u2" if bits == 16 else "<u4")


def packed(count: int, bits: int) -> int:
    """Bytes of so many numbers."""
    return (count * bits + 7) // 8


def pack(words: Words, bits: int) -> bytes | memoryview:
    """The lowest bits of some words; the words themselves where they are just as wide."""
    if bits == 8 * words.itemsize:
        return words.view("u1").data
    if bits == 24:
        return words.view("u1").reshape(-1, 4)[:, :3].tobytes()
    pairs = np.zeros((len(words) + 1) // 2, "<u8")  # of 20 bits
    pairs |= words[0::2] & 0xFFFFF
    pairs[: len(words) // 2] |= (words[1::2] & 0xFFFFF).astype("<u8") << 20
    return pairs.view("u1").reshape(-1, 8)[:, :5].tobytes()[: packed(len(words), bits)]


def unpack(data: memoryview, count: int, bits: int) -> Words:
    """So many words from their lowest bits; their others are 0."""
    dtype = word(bits)
    if bits == 8 * dtype.itemsize:
        return np.frombuffer(data, dtype, count)
    if bits == 24:
        words = np.zeros(count, dtype)
        words.view("u1").reshape(-1, 4)[:, :3] = np.frombuffer(data, "u1", 3 * count).reshape(-1, 3)
        return words
    pairs = np.zeros(((count + 1) // 2, 8), "u1")  # of 20 bits
    whole = count // 2
    pairs[:whole, :5] = np.frombuffer(data, "u1", 5 * whole).reshape(-1, 5)
    pairs[whole:, :3] = np.frombuffer(data, "u1", 3 * (count % 2), 5 * whole).reshape(-1, 3)
    joined = pairs.view("<u8").reshape(-1)
    words = np.empty(2 * len(joined), dtype)
    words[0::2], words[1::2] = joined & 0xFFFFF, joined >> 20
    return words[:count]


def is_packed(data: memoryview, count: int, bits: int) -> bool:
    """Whether some bytes are so many numbers: of their length, and nothing behind the last."""
    spare = 8 * packed(count, bits) - count * bits
    return len(data) == packed(count, bits) and (not spare or data[-1] >> 8 - spare == 0)


def signed(words: Words, bits: int) -> NDArray[np.signedinteger[Any]]:
    """The numbers from -2^(b-1) to 2^(b-1) - 1 for which words of b bits stand."""
    dtype = np.dtype("<i2" if words.itemsize == 2 else "<i4")
    spare = 8 * words.itemsize - bits
    shifted: NDArray[np.signedinteger[Any]] = (words << words.dtype.type(spare)).view(dtype)
    return shifted >> dtype.type(spare)
