"""Who calls the control end: as the certificate says, unless it was revoked."""

from dataclasses import dataclass
from pathlib import Path

from hansa.identity import fingerprint_of_der, uris_of_der
from hansa.roles import Role, named
from server.members import Members, Unwelcome
from server.revoked import Revoked


@dataclass(frozen=True)
class Caller:
    """Who asks."""

    role: Role
    name: str = ""  # nobody has none
    certificate: str = ""  # its fingerprint

    def __str__(self) -> str:
        return f"{self.role} {self.name}".rstrip()


NOBODY = Caller(Role.NOBODY)


class Callers:
    """Knows callers by their certificates; roster and revocations are read anew when they change."""

    def __init__(self, folder: Path) -> None:
        self._members, self._revoked = Members(folder), Revoked(folder)

    def find(self, certificate: bytes) -> Caller:
        """Whose certificate (DER) it is; b"": nobody's. That the authority signed it is for TLS to check.

        Raises:
            Unwelcome: it names nobody who may come in, or it was revoked.
            UserError: the roster or the revocations cannot be read.
        """
        if not certificate:
            return NOBODY
        fingerprint = fingerprint_of_der(certificate)
        if (found := named(uris_of_der(certificate))) is None:
            raise Unwelcome(f"a certificate of our authority's that names nobody ({fingerprint[:15]}...)")
        role, name = found
        if fingerprint in self._revoked.fingerprints():
            raise Unwelcome(f"{role} {name}: the certificate was revoked")
        if role is Role.SITE:
            self._members.find(certificate)
        return Caller(role, name, fingerprint)
