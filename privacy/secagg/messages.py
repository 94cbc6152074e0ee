"""What goes between a site and the coordinator: small records, each with one encoding.

A site stands there by its number: its place in the terms' list of sites.
"""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Self

from privacy.secagg import coding
from privacy.secagg.coding import Malformed, Reader
from privacy.secagg.keys import ADVERT, SEALED, SESSION, digest
from privacy.secagg.shamir import SIZE, is_share

Row = tuple[int, bytes]  # the number of a site, and what concerns it


def _field(write: Callable[[Any], bytes], read: Callable[[Reader], object]) -> Any:
    """A field of a message; none is shown, since some are secret."""
    return field(repr=False, metadata={"write": write, "read": read})


def _site() -> Any:
    return _field(lambda number: struct.pack(">H", number), lambda reader: reader.number("H"))


def _bytes(size: int) -> Any:
    return _field(bytes, lambda reader: reader.take(size))


def _rows(size: int) -> Any:
    return _field(coding.rows, lambda reader: reader.rows(size))


def _share(reader: Reader) -> tuple[Row, ...]:
    found = reader.rows(SIZE)
    if not all(is_share(share) for _, share in found):
        raise Malformed("a share that is no element of the field")
    return found


@dataclass(frozen=True)
class Message:
    """Encoded as its kind, then its fields in their order."""

    KIND: ClassVar[bytes]

    def to_bytes(self) -> bytes:
        """The encoding."""
        return self.KIND + b"".join(f.metadata["write"](getattr(self, f.name)) for f in fields(self))

    @classmethod
    def from_bytes(cls, data: bytes | memoryview) -> Self:
        """Reads what `to_bytes` writes.

        Raises:
            Malformed: it is something else.
        """
        reader = Reader(data, cls.KIND)
        values = [f.metadata["read"](reader) for f in fields(cls)]
        reader.end()
        return cls(*values)


@dataclass(frozen=True)
class Advert(Message):
    """A site's keys for one attempt, signed by the key that the roster has of it."""

    KIND = b"hansa/secagg/2/advert\n"

    site: int = _site()
    channel: bytes = _bytes(32)  # X25519: under which shares come to it
    mask: bytes = _bytes(32)  # X25519: from which its masks are made
    commitment: bytes = _bytes(32)  # to the seed of its self mask
    held: tuple[Row, ...] = _rows(0)  # which of the terms' metric sums it has, by their place there
    signature: bytes = _bytes(64)

    @cached_property
    def core(self) -> bytes:
        """All but the signature."""
        return struct.pack(">H", self.site) + self.channel + self.mask + self.commitment + coding.rows(self.held)

    def signed(self, terms: bytes) -> bytes:
        """What the signature is over, given the digest of the terms."""
        return ADVERT + terms + self.core


def session(terms: bytes, adverts: Iterable[Advert]) -> bytes:
    """The digest of all that an attempt is about: its terms, and everybody's keys in order."""
    return digest(SESSION, terms, *(advert.core for advert in adverts))


@dataclass(frozen=True)
class Shares(Message):
    """Sealed shares of the secrets of one site, by receiver."""

    KIND = b"hansa/secagg/1/shares\n"

    site: int = _site()
    session: bytes = _bytes(32)
    sealed: tuple[Row, ...] = _rows(SEALED)


@dataclass(frozen=True)
class Delivery(Message):
    """Sealed shares for one site, by sender."""

    KIND = b"hansa/secagg/1/delivery\n"

    site: int = _site()
    session: bytes = _bytes(32)
    sealed: tuple[Row, ...] = _rows(SEALED)


@dataclass(frozen=True)
class Header(Message):
    """Before the numbers of an upload: first the scalars, 8 bytes each, then the bulk, packed."""

    KIND = b"hansa/secagg/1/upload\n"
    SIZE: ClassVar[int] = len(KIND) + 2 + 32

    site: int = _site()
    session: bytes = _bytes(32)


@dataclass(frozen=True)
class Survivors(Message):
    """Whose uploads are in the sum (U3)."""

    KIND = b"hansa/secagg/1/survivors\n"

    session: bytes = _bytes(32)
    sites: tuple[Row, ...] = _rows(0)


@dataclass(frozen=True)
class Consent(Message):
    """A site's signature over who shared secrets and who survives (`keys.transcript`)."""

    KIND = b"hansa/secagg/1/consent\n"

    site: int = _site()
    signature: bytes = _bytes(64)


@dataclass(frozen=True)
class Opening(Message):
    """A site's shares: of the seeds of those that survive, and of the mask keys of those that do not."""

    KIND = b"hansa/secagg/1/opening\n"

    site: int = _site()
    session: bytes = _bytes(32)
    seeds: tuple[Row, ...] = _field(coding.rows, _share)
    keys: tuple[Row, ...] = _field(coding.rows, _share)
