"""Whose certificate counts no longer: revoked.json in a folder, read anew when it changes.

{"revoked": ["sha256:...", ...]}    fingerprints, as the roster has them

On its way to the server the list is signed by the roster key. It only grows: the server adds what it is told.
"""

from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from hansa.errors import UserError
from hansa.files import write_atomically
from hansa.fresh import Fresh
from hansa.identity import load_signing_key
from hansa.roster import Fingerprint, Roster
from hansa.signing import canonical, signed_by
from hansa.tables import Table

FILE = "revoked.json"
CONTEXT = b"hansa/revoked/1\n"  # signed with the list, so that no other signature of the key can stand for it
NOBODY = b'{"revoked": []}\n'  # its contents in a new folder


def sign_revoked(revoked: Iterable[str], roster: Roster, key: bytes) -> str:
    """The signature (hex) of a list that goes with a roster, by the roster key (PEM)."""
    return load_signing_key(key).sign(_to_sign(revoked, roster)).hex()


def is_signed(revoked: Iterable[str], roster: Roster, signature: str, key: str) -> bool:
    """Whether a signature (hex) of a list that goes with a roster is by the roster key (32 bytes in hex)."""
    return signed_by(key, signature, _to_sign(revoked, roster))


def _to_sign(revoked: Iterable[str], roster: Roster) -> bytes:
    said = {"consortium": roster.consortium, "edition": roster.edition, "revoked": list(revoked)}
    return CONTEXT + canonical(said)


class _List(Table):
    revoked: tuple[Fingerprint, ...]


class Revoked:
    """The revoked certificates of a folder: a server's, or the consortium's own."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._fresh = Fresh([self._path], self._read)

    def fingerprints(self) -> frozenset[str]:
        """The newest.

        Raises:
            UserError: the file is missing or damaged: then nobody knows who is out, and nobody may be let in.
        """
        return self._fresh.get()

    def add(self, *fingerprints: str) -> None:
        """Revokes certificates.

        Raises:
            UserError: the file that is there cannot be read.
        """
        revoked = sorted(self.fingerprints().union(fingerprints))
        write_atomically(self._path, _List(revoked=tuple(revoked)).model_dump_json(indent=1).encode())

    def _read(self) -> frozenset[str]:
        try:
            return frozenset(_List.model_validate_json(self._path.read_bytes()).revoked)
        except FileNotFoundError:
            mend = "copy it from the consortium's folder, or put it back from a copy"
            raise UserError(f"{self._path}: missing; until it is mended, nobody is let in: {mend}") from None
        except (OSError, ValidationError) as error:
            raise UserError(
                f"{self._path}: not a list of revoked certificates; until it is mended, nobody is let in"
            ) from error
