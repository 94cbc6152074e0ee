"""Who may do what at the server's control end: the one table of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from hansa.roles import Role

_RESEARCHER, _ADMINISTRATOR = frozenset({Role.RESEARCHER}), frozenset({Role.ADMINISTRATOR})
_PEOPLE, _SITE, _NOBODY = frozenset(Role) - {Role.SITE, Role.NOBODY}, frozenset({Role.SITE}), frozenset({Role.NOBODY})


@dataclass(frozen=True)
class Act:
    """Something that the control end does when it is asked to."""

    who: frozenset[Role]  # may ask
    own: frozenset[Role] = frozenset()  # who of these may ask only about runs of their own
    largest: int = 65_536  # bytes of the question
    polled: bool = False  # a machine asks again and again: the same answer is noted once an hour


ACTS: Mapping[str, Act] = {
    "status": Act(_PEOPLE),
    "logs": Act(_PEOPLE),
    "run": Act(_RESEARCHER, largest=16 << 20),  # an app of 10 MiB in base64
    "resume": Act(_RESEARCHER, own=_RESEARCHER),
    "stop": Act(_RESEARCHER | _ADMINISTRATOR, own=_RESEARCHER),
    "fetch": Act(_RESEARCHER, own=_RESEARCHER),
    "audit": Act(_ADMINISTRATOR | {Role.AUDITOR}),
    "requests": Act(_ADMINISTRATOR),
    "publish": Act(_ADMINISTRATOR, largest=4 << 20),
    "roster": Act(_SITE, polled=True),
    "renew": Act(_SITE),
    "collect": Act(_SITE | _NOBODY, polled=True),
    "enrol": Act(_NOBODY),
}
