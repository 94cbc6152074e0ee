"""Keys of an attempt, what is derived from them, and what is signed: primitives by `cryptography`, never by us.

Each use of a key has a label of its own, so that no message of one use can stand for one of another.
"""

import hashlib
import struct
from collections.abc import Sequence

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from privacy.secagg import coding
from privacy.secagg.keystream import Key, Mask

ADVERT, CONSENT = b"hansa/secagg/advert/1\n", b"hansa/secagg/survivors/1\n"  # what is signed begins with it
COMMITMENT, SESSION = b"hansa/secagg/seed/1\n", b"hansa/secagg/session/1\n"
SHARE, PAIR, SELF = b"hansa/secagg/share/1", b"hansa/secagg/pair/1", b"hansa/secagg/self/1"  # labels of HKDF
SEALED = 66 + 16  # bytes: two shares and AES-GCM's tag
FIELD = (1 << 255) - 19  # of X25519
ORDER_8 = (
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
)
SMALL = frozenset(u.to_bytes(32, "little") for u in (0, 1, *ORDER_8, FIELD - 1))  # https://cr.yp.to/ecdh.html#validate


def digest(label: bytes, *parts: bytes) -> bytes:
    """SHA-256 of some bytes, each with its length, for one use."""
    return hashlib.sha256(label + b"".join(struct.pack(">Q", len(part)) + part for part in parts)).digest()


def derive(secret: bytes, session: bytes, label: bytes, size: int) -> bytes:
    """HKDF-SHA256 (RFC 5869), with the session as its salt."""
    return HKDF(hashes.SHA256(), size, session, label).derive(secret)


def public(private: bytes) -> bytes:
    """The public half of an X25519 key."""
    return loaded(private).public_key().public_bytes_raw()


def loaded(private: bytes) -> X25519PrivateKey:
    """An X25519 key, ready for many exchanges: to make it so takes as long as an exchange."""
    return X25519PrivateKey.from_private_bytes(private)


def exchange(private: X25519PrivateKey, other: bytes) -> bytes:
    """X25519 (RFC 7748).

    Raises:
        ValueError: the other key is one of the points of small order, with which anybody knows the outcome.
    """
    return private.exchange(X25519PublicKey.from_public_bytes(other))


def is_public(key: bytes) -> bool:
    """Whether an X25519 key is in its one encoding, and not of small order: those give zero with every private key."""
    return int.from_bytes(key, "little") < FIELD and key not in SMALL


def commitment(terms: bytes, number: int, seed: bytes) -> bytes:
    """By which the server will know a seed that was put together again from shares."""
    return digest(COMMITMENT, terms, struct.pack(">H", number), seed)


def pair_masks(shared: bytes, session: bytes, sign: int) -> Mask:
    """What two sites add and subtract, from the outcome of their exchange."""
    return _mask(derive(shared, session, PAIR, 64), sign)


def self_mask(seed: bytes, session: bytes, sign: int) -> Mask:
    """What a site adds alone, so that an upload that is late does not lie open."""
    return _mask(derive(seed, session, SELF, 64), sign)


def seal(shared: bytes, session: bytes, sender: int, receiver: int, shares: bytes) -> bytes:
    """Two shares from a site to another, under AES-256-GCM."""
    key, way = AESGCM(derive(shared, session, SHARE, 32)), struct.pack(">HH", sender, receiver)
    return key.encrypt(bytes(8) + way, shares, session + way)  # the key is of this pair and session: one message a way


def opened(shared: bytes, session: bytes, sender: int, receiver: int, sealed: bytes) -> bytes | None:
    """What was sealed, or None if it was not sealed so."""
    key, way = AESGCM(derive(shared, session, SHARE, 32)), struct.pack(">HH", sender, receiver)
    try:
        return key.decrypt(bytes(8) + way, sealed, session + way)
    except InvalidTag:
        return None


def transcript(session: bytes, shared: Sequence[int], survivors: Sequence[int]) -> bytes:
    """What a site signs before it opens anything: who shared keys (U2), and whose updates are in the sum (U3)."""
    return CONSENT + session + b"".join(coding.rows([(number, b"") for number in who]) for who in (shared, survivors))


def is_signed(key: str, signature: bytes, message: bytes) -> bool:
    """Whether a signature is by the key (Ed25519, in hex) that the roster has."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def _mask(keys: bytes, sign: int) -> Mask:
    return Mask(Key(keys[:32]), Key(keys[32:]), sign)
