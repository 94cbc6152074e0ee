"""Who may be who in a consortium. A certificate says it as a URI: hansa://site/boston, hansa://researcher/ann."""

import re
from collections.abc import Iterable
from enum import StrEnum

from hansa.tables import is_name


class Role(StrEnum):
    """What somebody is to the server."""

    RESEARCHER = "researcher"  # starts runs
    AUDITOR = "auditor"  # reads what was done
    ADMINISTRATOR = "administrator"  # decides who is in
    SITE = "site"
    NOBODY = "nobody"  # shows no certificate


PEOPLE = (Role.RESEARCHER, Role.AUDITOR, Role.ADMINISTRATOR)


def uri(role: Role, name: str) -> str:
    """The URI that a certificate carries as a subject alternative name."""
    return f"hansa://{role}/{name}"


def named(uris: Iterable[str]) -> tuple[Role, str] | None:
    """The role and the name that the URIs of one certificate bear out; None if there is not exactly one such."""
    pattern = re.compile(rf"hansa://({Role.SITE}|{'|'.join(PEOPLE)})/(.+)")
    found = [(Role(match[1]), match[2]) for one in uris if (match := pattern.fullmatch(one))]
    return found[0] if len(found) == 1 and is_name(found[0][1]) else None
