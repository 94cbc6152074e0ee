"""An invitation kit: the one file by which a site joins. There is no private key in it.

It says where the server is and by which keys the site knows the consortium, and holds an invitation for one site, which
is good once: the consortium's roster key has signed it. Whoever has the file may ask in the site's name until then, so
messages repeat nothing of it.
"""

import hashlib
import json
import secrets
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, ValidationError

from hansa.address import Dialled
from hansa.errors import UserError, reason
from hansa.identity import is_authority, load_signing_key
from hansa.roster import MOST_NODES, PublicKey
from hansa.signing import canonical, signed_by
from hansa.tables import Name, Table

CONTEXT = b"hansa/invitation/1\n"  # signed with the invitation, so that no other signature of the key can stand for it
LARGEST = 65_536  # bytes of a kit
DAYS = 7

Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Signature = Annotated[str, Field(pattern=r"^[0-9a-f]{128}$")]  # Ed25519, 64 bytes in hex


class Invitation(Table):
    """Lets one site ask to join, once."""

    site: Name
    nonce: Hex
    nodes: Annotated[int, Field(ge=1, le=MOST_NODES, strict=True)]  # that the site is to have
    expires: AwareDatetime
    consortium: Hex  # digest of what else its kit says: whoever changes that on its way is found out

    def to_bytes(self) -> bytes:
        """The canonical JSON, which is signed."""
        return canonical(self.model_dump(mode="json"))


class Signed(Table):
    """An invitation, and the roster key's signature of it."""

    invitation: Invitation
    signature: Signature

    def is_by(self, roster_key: str) -> bool:
        """Whether a roster key (32 bytes in hex) has signed it."""
        return signed_by(roster_key, self.signature, CONTEXT + self.invitation.to_bytes())


class Facts(Table):
    """What a kit says of the consortium."""

    hansa_kit: Literal[1]  # the form of the file
    consortium: Name
    server: Dialled  # the server's public port
    ca: Annotated[str, Field(max_length=16_384)]  # PEM
    roster_key: PublicKey

    @property
    def digest(self) -> str:
        """Of all that it says of the consortium, in hex."""
        return hashlib.sha256(canonical(self.model_dump(mode="json", exclude={"invited"}))).hexdigest()


class Kit(Facts):
    """What a site gets of its consortium."""

    invited: Signed

    @property
    def site(self) -> str:
        """Who is invited."""
        return self.invited.invitation.site

    @property
    def nodes(self) -> int:
        """How many the site is to have."""
        return self.invited.invitation.nodes

    def to_bytes(self) -> bytes:
        """The file."""
        return json.dumps(self.model_dump(mode="json"), indent=1).encode() + b"\n"


def invite(site: str, consortium: str, key: bytes, now: datetime, days: int = DAYS, nodes: int = 1) -> Signed:
    """An invitation for a site.

    Args:
        site: its name.
        consortium: the digest of the kit.
        key: the roster key, PEM.
        now: with its zone.
        days: for which it is good.
        nodes: that the site is to have.

    Raises:
        ValueError: the key is none.
    """
    expires = (now + timedelta(days=days)).replace(microsecond=0)
    invitation = Invitation(site=site, nonce=secrets.token_hex(32), nodes=nodes, expires=expires, consortium=consortium)
    signature = load_signing_key(key).sign(CONTEXT + invitation.to_bytes()).hex()
    return Signed(invitation=invitation, signature=signature)


def make_kit(facts: Facts, site: str, key: bytes, now: datetime, days: int = DAYS, nodes: int = 1) -> Kit:
    """A kit for a site.

    Args:
        facts: of the consortium.
        site: its name.
        key: the roster key's private half, PEM.
        now: with its zone.
        days: for which the invitation is good.
        nodes: that the site is to have.

    Raises:
        ValueError: the key is none.
    """
    return Kit(**facts.model_dump(), invited=invite(site, facts.digest, key, now, days, nodes))


def read_kit(path: Path) -> Kit:
    """Reads and checks a kit.

    Raises:
        UserError: it cannot be read, is none, or was changed on its way; one line.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
    except OSError as error:
        raise UserError(f"{path}: {reason(error)}; give the path of the kit that `hansa invite` made") from None
    return parse_kit(data, str(path))


def parse_kit(data: bytes, where: str) -> Kit:
    """A kit from the contents of its file.

    Raises:
        UserError: see `read_kit`; it begins with `where`.
    """
    again = "ask the consortium for the kit anew"
    if len(data) > LARGEST:
        raise UserError(f"{where}: too large for an invitation kit; give the file that `hansa invite` made")
    try:
        kit = Kit.model_validate(json.loads(data))
    except ValidationError as error:
        place = ".".join(str(part) for part in error.errors()[0]["loc"])
        known = place if place.split(".")[0] in Kit.model_fields and place.replace(".", "_").isidentifier() else "form"
        raise UserError(f"{where}: no invitation kit that this version of hansa knows ({known}); {again}") from None
    except (ValueError, RecursionError):
        raise UserError(f"{where}: no invitation kit, or cut short on its way; {again}") from None
    if not is_authority(kit.ca.encode()):
        raise UserError(f"{where}: the kit's ca is no certificate of an authority; {again}")
    if not kit.invited.is_by(kit.roster_key) or kit.invited.invitation.consortium != kit.digest:
        raise UserError(f"{where}: changed on its way: the kit's roster_key has not signed what it says; {again}")
    return kit
