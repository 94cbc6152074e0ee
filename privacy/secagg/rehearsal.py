"""A whole attempt in one process, each machine for itself: for tests, for benchmarks, to hold a simulation against."""

from collections.abc import Callable, Collection, Iterable, Mapping

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hansa.identity import signing_public
from hansa.records import Part
from hansa.roster import Member, Roster
from privacy.secagg.agreement import Expected, Past
from privacy.secagg.coordinator import Coordinator
from privacy.secagg.errors import Step
from privacy.secagg.keystream import Keystream
from privacy.secagg.quantise import Update
from privacy.secagg.site import Site
from privacy.secagg.terms import Terms
from privacy.secagg.total import Total

STEPS: tuple[Step, ...] = ("advertise", "share", "mask", "sign", "unmask")


def founded(names: Iterable[str], random: Callable[[int], bytes]) -> tuple[Roster, dict[str, Ed25519PrivateKey]]:
    """A roster of some sites, and the keys by which they sign."""
    keys = {name: Ed25519PrivateKey.from_private_bytes(random(32)) for name in sorted(names)}
    none = f"sha256:{bytes(32).hex()}"
    members = tuple(Member(name=n, tls=none, sign=signing_public(key), nodes=(n,)) for n, key in keys.items())
    return Roster(consortium="rehearsal", edition=1, ca=none, sites=members), keys


class Rehearsal:
    """One attempt; a step is taken by the sites that are named, as if the others were gone.

    Args:
        terms: of the attempt.
        roster: of these sites.
        keys: of the sites.
        random: so many bytes.
        stream: how masks are made.
    """

    def __init__(
        self,
        terms: Terms,
        roster: Roster,
        keys: Mapping[str, Ed25519PrivateKey],
        random: Callable[[int], bytes],
        stream: Keystream,
    ) -> None:
        self.terms, self.coordinator = terms, Coordinator(terms, roster, stream)
        expected = Expected(terms.model, {part.name: Part(part.size, part.weight) for part in terms.parts})
        self.sites = {
            name: Site(
                name, keys[name], roster, terms.to_bytes(), expected, Past(terms.run, terms.purpose), random, stream
            )
            for name in terms.sites
        }
        self.uploads: dict[str, bytes] = {}

    def advertise(self, sites: Iterable[str]) -> list[bytes]:
        """Their keys go in; everybody's come out."""
        for site in sites:
            self.coordinator.advertise(site, self.sites[site].advertise())
        return self.coordinator.adverts()

    def share(self, sites: Iterable[str], adverts: list[bytes]) -> dict[str, bytes]:
        """Their shares go in; what is for each comes out."""
        for site in sites:
            self.coordinator.share(site, self.sites[site].share(adverts))
        return self.coordinator.deliveries()

    def mask(self, sites: Iterable[str], deliveries: Mapping[str, bytes], updates: Mapping[str, Update]) -> bytes:
        """Their updates go in, masked; the list of them comes out."""
        for site in sites:
            self.sites[site].receive(deliveries[site])
            self.uploads[site] = b"".join(self.sites[site].mask(updates[site]))
            self.coordinator.add(site, self.uploads[site])
        return self.coordinator.survivors()

    def sign(self, sites: Iterable[str], survivors: bytes) -> list[bytes]:
        """Their signatures go in; all signatures come out."""
        for site in sites:
            self.coordinator.sign(site, self.sites[site].sign(survivors))
        return self.coordinator.consents()

    def unmask(self, sites: Iterable[str], consents: list[bytes]) -> Total:
        """Their shares go in; the sum comes out."""
        for site in sites:
            self.coordinator.unmask(site, self.sites[site].unmask(consents))
        return self.coordinator.total()

    def run(self, updates: Mapping[str, Update], gone: Mapping[str, Step] | None = None) -> Total:
        """All steps.

        Args:
            updates: by site.
            gone: the step from which on a site does nothing any more.

        Raises:
            Refused: too few sites were left in a step.
        """

        def there(step: Step) -> Collection[str]:
            last = STEPS.index(step)
            return [site for site in self.sites if not (gone and site in gone and STEPS.index(gone[site]) <= last)]

        adverts = self.advertise(there("advertise"))
        deliveries = self.share(there("share"), adverts)
        survivors = self.mask(there("mask"), deliveries, updates)
        return self.unmask(there("unmask"), self.sign(there("sign"), survivors))
