"""What is signed with Ed25519 keys: the bytes of a JSON object, and whose signature it is."""

import json

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def canonical(value: object) -> bytes:
    """JSON with keys sorted, no spaces, ASCII: the bytes that are signed."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def signed_by(key: str, signature: str, data: bytes) -> bool:
    """Whether a signature (hex) of data is by an Ed25519 key (32 bytes in hex)."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)).verify(bytes.fromhex(signature), data)
    except (InvalidSignature, ValueError):
        return False
    return True
