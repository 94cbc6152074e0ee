"""Whole numbers without gaps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.secagg.packing import is_packed, pack, packed, signed, unpack, word
from privacy.secagg.ring import RINGS

NUMBERS = st.lists(st.integers(0, 2**32 - 1), max_size=41)


@pytest.mark.parametrize("bits", RINGS)
@settings(max_examples=50)
@given(numbers=NUMBERS)
def test_packing_is_undone_by_unpacking(bits: int, numbers: list[int]) -> None:
    words = np.array([number % 2 ** (8 * word(bits).itemsize) for number in numbers], word(bits))
    data = pack(words, bits)
    assert len(data) == packed(len(words), bits) == -(-len(words) * bits // 8)
    assert is_packed(memoryview(data), len(words), bits)
    assert unpack(memoryview(data), len(words), bits).tolist() == [number % 2**bits for number in words.tolist()]


@pytest.mark.parametrize("bits", RINGS)
@settings(max_examples=50)
@given(numbers=NUMBERS)
def test_packed_bytes_are_one_long_little_endian_number(bits: int, numbers: list[int]) -> None:
    """Another derivation: the sum of number_i * 2^(bits * i)."""
    words = np.array([number % 2 ** (8 * word(bits).itemsize) for number in numbers], word(bits))
    whole = sum((number % 2**bits) << bits * i for i, number in enumerate(words.tolist()))
    assert pack(words, bits) == whole.to_bytes(packed(len(words), bits), "little")


@pytest.mark.parametrize("bits", RINGS)
@given(pairs=st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)), max_size=9))
def test_sums_may_be_packed_or_packed_numbers_summed(bits: int, pairs: list[tuple[int, int]]) -> None:
    """Cutting to b bits is a homomorphism of rings."""
    size = 2 ** (8 * word(bits).itemsize)
    a, b = (np.array([pair[i] % size for pair in pairs], word(bits)) for i in (0, 1))
    apart = unpack(memoryview(pack(a, bits)), len(a), bits) + unpack(memoryview(pack(b, bits)), len(b), bits)
    assert pack(a + b, bits) == pack(apart, bits)


@pytest.mark.parametrize("bits", RINGS)
def test_words_stand_for_numbers_of_both_signs(bits: int) -> None:
    numbers = [0, 1, -1, 2 ** (bits - 1) - 1, -(2 ** (bits - 1))]
    words = np.array([number % 2**bits for number in numbers], word(bits))
    assert signed(words, bits).tolist() == numbers


def test_bytes_that_are_no_packed_numbers_are_told() -> None:
    """Three numbers of 20 bits take 60 of 64 bits; the last four are 0."""
    data = bytearray(pack(np.array([1, 2, 3], "<u4"), 20))
    assert is_packed(memoryview(data), 3, 20)
    data[-1] |= 0x10
    assert not is_packed(memoryview(data), 3, 20)
    assert not is_packed(memoryview(data[:-1]), 3, 20)
    assert not is_packed(memoryview(bytes(13)), 3, 32)
