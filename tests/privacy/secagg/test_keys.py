"""Primitives, held against published vectors; derived keys, taken apart."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from privacy.secagg import keys

# Points of small order, and all other encodings of them: RFC 7748 section 7, https://cr.yp.to/ecdh.html#validate
P, ORDER_8 = keys.FIELD, keys.ORDER_8
SMALL = [0, 1, *ORDER_8, P - 1, P, P + 1, P + ORDER_8[0], P + ORDER_8[1], 2 * P - 1, 2 * P, 2 * P + 1]
KEYS = st.binary(min_size=32, max_size=32)


def test_hkdf_is_that_of_rfc_5869() -> None:
    """Test case 1."""
    found = keys.derive(b"\x0b" * 22, bytes(range(13)), bytes(range(0xF0, 0xFA)), 42)
    okm = "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    assert found.hex() == okm


def test_x25519_is_that_of_rfc_7748() -> None:
    """Section 6.1."""
    alice = bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")
    bob = bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")
    assert keys.public(alice).hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert keys.public(bob).hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    ours, theirs = (
        keys.exchange(keys.loaded(alice), keys.public(bob)),
        keys.exchange(keys.loaded(bob), keys.public(alice)),
    )
    assert ours.hex() == theirs.hex() == shared


@pytest.mark.parametrize("point", SMALL)
def test_points_of_small_order_are_no_keys(point: int) -> None:
    assert not keys.is_public(point.to_bytes(32, "little"))


@pytest.mark.parametrize("point", [point for point in SMALL if point < 1 << 255])
def test_points_of_small_order_come_out_at_zero(point: int) -> None:
    """OpenSSL, which takes each encoding, says so: the list that is held against has no wrong digit."""
    with pytest.raises(ValueError, match="computing shared key"):
        keys.exchange(keys.loaded(bytes(range(32))), point.to_bytes(32, "little"))


@given(KEYS)
def test_a_key_has_one_encoding(private: bytes) -> None:
    """RFC 7748 ignores the highest bit; with it set a key would be there twice without being equal."""
    public = keys.public(private)
    assert keys.is_public(public)
    assert not keys.is_public(public[:31] + bytes([public[31] | 0x80]))


def test_every_bit_of_a_secret_changes_a_mask_s_keys() -> None:
    """Seen elsewhere: seeds folded to 32 bits. Each key of one bit's difference gives streams of its own."""
    secret, session = random.Random(3).randbytes(32), bytes(32)
    flipped = [secret] + [(int.from_bytes(secret) ^ 1 << bit).to_bytes(32) for bit in range(256)]
    for derive in (keys.pair_masks, keys.self_mask):
        masks = [derive(one, session, 1) for one in flipped]
        assert len({key.secret for mask in masks for key in (mask.bulk, mask.scalars)}) == 2 * 257
    assert all(len(key.secret) == 32 for key in (masks[0].bulk, masks[0].scalars))


def test_masks_of_two_uses_and_two_sessions_have_nothing_in_common() -> None:
    secret = bytes(range(32))
    masks = [derive(secret, session, 1) for derive in (keys.pair_masks, keys.self_mask) for session in (b"a", b"b")]
    assert len({key.secret for mask in masks for key in (mask.bulk, mask.scalars)}) == 8


@given(st.binary(min_size=66, max_size=66), st.integers(0, 81), st.integers(0, 7))
def test_sealed_shares_open_for_their_way_only(shares: bytes, byte: int, bit: int) -> None:
    sealed = keys.seal(b"k" * 32, b"s" * 32, 1, 2, shares)
    assert len(sealed) == keys.SEALED
    assert keys.opened(b"k" * 32, b"s" * 32, 1, 2, sealed) == shares
    assert keys.opened(b"k" * 32, b"s" * 32, 2, 1, sealed) is None
    assert keys.opened(b"k" * 32, b"t" * 32, 1, 2, sealed) is None
    assert keys.opened(b"l" * 32, b"s" * 32, 1, 2, sealed) is None
    changed = sealed[:byte] + bytes([sealed[byte] ^ 1 << bit]) + sealed[byte + 1 :]
    assert keys.opened(b"k" * 32, b"s" * 32, 1, 2, changed) is None


def test_a_transcript_says_where_a_list_ends() -> None:
    """U2 = {1, 2}, U3 = {3} and U2 = {1}, U3 = {2, 3} must not be signed with the same bytes."""
    assert keys.transcript(b"s" * 32, [1, 2], [3]) != keys.transcript(b"s" * 32, [1], [2, 3])


def test_a_secret_key_is_not_shown() -> None:
    mask = keys.self_mask(bytes(range(32)), b"", 1)
    assert mask.bulk.secret.hex()[:8] not in repr(mask)
    assert repr(mask.bulk.secret)[2:10] not in repr(mask)
