"""Who is in a consortium: a list of the sites and their public keys, signed by the consortium's roster key.

The bytes that are signed are the file's: `hansa.signing.canonical`.
"""

from typing import Annotated, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from pydantic import Field, ValidationError, model_validator

from hansa.errors import UserError
from hansa.identity import load_signing_key
from hansa.signing import canonical
from hansa.tables import Name, Table

CONTEXT = b"hansa/roster/1\n"  # signed with the roster, so that no other signature of the key can stand for it

Fingerprint = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
PublicKey = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]  # Ed25519, 32 bytes in hex
NodeKey = Annotated[str, Field(max_length=1024)]  # Flower's: SPKI, PEM

MOST_NODES = 16  # of a site

Nodes = Annotated[tuple[NodeKey, ...], Field(min_length=1, max_length=MOST_NODES)]


class Member(Table):
    """A site."""

    name: Name
    tls: Fingerprint  # of its TLS certificate
    sign: PublicKey
    nodes: Nodes  # a run holds one from its beginning to its end


class Roster(Table):
    """The members of a consortium, by name."""

    consortium: Name
    edition: Annotated[int, Field(ge=1)]  # raised with each change
    ca: Fingerprint
    sites: tuple[Member, ...]

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        names = [site.name for site in self.sites]
        if names != sorted(set(names)):
            raise ValueError("sites are not in the order of their names, each once")
        nodes = [node for site in self.sites for node in site.nodes]
        if len(set(nodes)) < len(nodes):
            raise ValueError("a node's key stands twice")
        return self

    def member(self, site: str) -> Member | None:
        """The entry of a site."""
        return next((member for member in self.sites if member.name == site), None)

    def to_bytes(self) -> bytes:
        """The canonical JSON."""
        return canonical(self.model_dump(mode="json"))


def sign(roster: bytes, key: bytes) -> bytes:
    """The contents of roster.sig: a roster's signature in hex, by a roster key (PEM)."""
    return load_signing_key(key).sign(CONTEXT + roster).hex().encode() + b"\n"


def verified(roster: bytes, signature: bytes, key: str) -> Roster:
    """A roster, if its signature is that of the roster key.

    Args:
        roster: the contents of roster.json.
        signature: the contents of roster.sig.
        key: the consortium's roster key, 32 bytes in hex.

    Raises:
        UserError: it is not, in one line.
    """
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.strip()))
    except ValueError as error:
        raise UserError("roster.pub: not a roster key; copy it anew from the consortium's folder") from error
    try:
        public.verify(bytes.fromhex(signature.decode().strip()), CONTEXT + roster)
    except (InvalidSignature, ValueError) as error:
        raise UserError(
            "roster.json: its signature (roster.sig) is not by the consortium's roster key (roster.pub): one of the "
            "three was changed; copy all three anew from the consortium's folder"
        ) from error
    try:
        return Roster.model_validate_json(roster)
    except ValidationError as error:
        raise UserError("roster.json: signed, but not of a form that this version of hansa knows; update it") from error
