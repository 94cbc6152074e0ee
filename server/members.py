"""Who may come in at the gate: the sites of the roster whose certificate was not revoked."""

from pathlib import Path

from hansa.fresh import Fresh
from hansa.identity import fingerprint_of_der
from hansa.roster import Member
from hansa.startup import CA, ROSTER, ROSTER_KEY, ROSTER_SIGNATURE, read_roster
from server.former import Former
from server.revoked import Revoked


class Unwelcome(Exception):
    """Somebody is not let in; the text says why, and is fit to print."""


class Members:
    """The members of a server's folder; the roster and the revocations are read anew when they change."""

    def __init__(self, folder: Path) -> None:
        files = [folder / name for name in (ROSTER, ROSTER_SIGNATURE, ROSTER_KEY, CA)]
        self._roster = Fresh(files, lambda: read_roster(folder))
        self._revoked, self._former = Revoked(folder), Former(folder)

    def find(self, certificate: bytes) -> Member:
        """The site whose certificate (DER) it is. That the authority signed it is for TLS to check.

        Raises:
            Unwelcome: it is no site's, or it was revoked.
            UserError: the roster or the revocations cannot be read.
        """
        fingerprint = fingerprint_of_der(certificate)
        roster, name = self._roster.get(), self._former.sites().get(fingerprint)
        member = next((site for site in roster.sites if fingerprint == site.tls or name == site.name), None)
        if member is None:
            raise Unwelcome(f"a certificate of our authority's that the roster does not have ({fingerprint[:15]}...)")
        if fingerprint in self._revoked.fingerprints():
            raise Unwelcome(f"{member.name}: its certificate was revoked")
        return member
