"""One attempt at secure aggregation, at the server: whose word its step waits for, what each site got last. Pure."""

from collections.abc import Callable, Mapping
from typing import Any

from hansa.roster import Roster
from hansa.wire.link_pb2 import Secure
from privacy.secagg.coordinator import Coordinator
from privacy.secagg.errors import Refused, Step
from privacy.secagg.keystream import Keystream
from privacy.secagg.terms import Terms
from privacy.secagg.total import Total

TAKE: Mapping[Step, Callable[[Coordinator, str, Any], None]] = {
    "advertise": Coordinator.advertise,
    "share": Coordinator.share,
    "mask": Coordinator.add,
    "sign": Coordinator.sign,
    "unmask": Coordinator.unmask,
}


class Attempt:
    """An attempt, from the terms to the sum.

    Args:
        name: by which both ends call it.
        terms: of it.
        roster: the consortium's.
        stream: how masks are made.
    """

    def __init__(self, name: str, terms: Terms, roster: Roster, stream: Keystream) -> None:
        self.name, self.terms, self.coordinator = name, terms, Coordinator(terms, roster, stream)
        self.step: Step = "advertise"
        self.awaited = set(terms.sites)  # who may still speak in this step
        self.spoke: dict[Step, list[str]] = {step: [] for step in TAKE}
        self.out: dict[str, str] = {}  # site -> why it is not heard any more
        self.last: dict[str, Secure] = {}  # what each site got last
        self.public: dict[Step, list[bytes]] = {}  # what all sites got, by the step for which they did
        self.total: Total | None = None

    def hear(self, site: str, step: str, data: bytes | memoryview) -> str | None:
        """Takes a site's word in a step; why it is refused, which puts the site out. What is late is passed over."""
        if step != self.step or site not in self.awaited:
            return None
        try:
            TAKE[self.step](self.coordinator, site, data)
        except Refused as refused:
            self.lose(site, str(refused))
            return str(refused)
        self.awaited.discard(site)
        self.spoke[self.step].append(site)
        return None

    def lose(self, site: str, why: str) -> None:
        """Waits for a site no longer."""
        self.awaited.discard(site)
        self.out.setdefault(site, why)

    def possible(self, least: int) -> bool:
        """Whether so many sites may yet have spoken in this step."""
        return len(self.spoke[self.step]) + len(self.awaited) >= least

    def close(self) -> Mapping[str, Secure]:
        """Ends the step, in which nobody is waited for any more; what goes out to each site for the next.

        After the last step there is a total.

        Raises:
            Refused: too few sites have spoken, or their sum cannot be opened.
        """
        there, coordinator = self.spoke[self.step], self.coordinator
        match self.step:
            case "advertise":
                return self._next("share", self._alike("share", there, coordinator.adverts()))
            case "share":
                return self._next("mask", {site: [one] for site, one in coordinator.deliveries().items()})
            case "mask":
                return self._next("sign", self._alike("sign", there, [coordinator.survivors()]))
            case "sign":
                return self._next("unmask", self._alike("unmask", self.spoke["mask"], coordinator.consents()))
            case _:
                self.total = coordinator.total()
                return {}

    def _alike(self, step: Step, sites: list[str], messages: list[bytes]) -> dict[str, list[bytes]]:
        self.public[step] = messages
        return dict.fromkeys(sites, messages)

    def _next(self, step: Step, messages: Mapping[str, list[bytes]]) -> Mapping[str, Secure]:
        there = {site: all_ for site, all_ in messages.items() if site not in self.out}
        self.step, self.awaited = step, set(there)
        self.last = {site: Secure(attempt=self.name, step=step, messages=all_) for site, all_ in there.items()}
        return self.last
