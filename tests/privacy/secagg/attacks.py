"""Attempts that are attacked: honest so far, and then a server or a site that lies."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hansa.records import Part
from privacy.secagg.agreement import Expected, Past
from privacy.secagg.errors import Refused
from privacy.secagg.keystream import Keystream
from privacy.secagg.messages import Advert, Survivors
from privacy.secagg.quantise import Update
from privacy.secagg.rehearsal import Rehearsal, founded
from privacy.secagg.ring import Segment
from privacy.secagg.site import Held, Site
from privacy.secagg.terms import Scalars, Terms, roster_digest, threshold
from tests.privacy.secagg.attempts import no_scalars

NAMES = ("bergen", "danzig", "hamburg", "luebeck", "riga", "visby")
ROSTER, KEYS = founded([*NAMES, "stralsund"], random.Random(1).randbytes)
PARTS = {"delta": Part(6, "uniform")}
STREAM = Keystream()


def make_terms(**changes: Any) -> Terms:
    segments, scalars = (Segment("delta", 6, "uniform", 1.0, 9),), (Scalars("loss", 1),)
    sites = changes.get("sites", NAMES)
    t = changes.pop("threshold", threshold(len(sites)))
    terms = Terms(
        "run", "train", 1, 5, 1, roster_digest(ROSTER, sites), NAMES, t, bytes(32), 1000, 32, segments, scalars
    )
    return replace(terms, **changes)


def make_site(terms: Terms | bytes, name: str = "bergen", past: Past | None = None, floor: int = 3) -> Site:
    data = terms if isinstance(terms, bytes) else terms.to_bytes()
    expected = Expected(bytes(32), PARTS, floor)
    return Site(
        name, KEYS[name], ROSTER, data, expected, past or Past("run", "train"), random.Random(name).randbytes, STREAM
    )


def rehearsal(terms: Terms | None = None) -> Rehearsal:
    return Rehearsal(terms or make_terms(), ROSTER, KEYS, random.Random(2).randbytes, STREAM)


def update(terms: Terms) -> Update:
    return Update(terms.form, len(terms.sites), np.arange(6, dtype="<u4"), no_scalars(terms))


class Attempt:
    """An attempt that has come to some step, honestly so far."""

    def __init__(self, step: str, terms: Terms | None = None) -> None:
        self.one = rehearsal(terms)
        self.sites, self.coordinator = self.one.sites, self.one.coordinator
        self.adverts = [site.advertise() for site in self.sites.values()]
        if step == "share":
            return
        for name, advert in zip(self.sites, self.adverts, strict=True):
            self.coordinator.advertise(name, advert)
        self.deliveries = self.one.share(self.sites, self.coordinator.adverts())
        if step == "receive":
            return
        for name, site in self.sites.items():
            site.receive(self.deliveries[name])
        if step == "mask":
            return
        for name, site in self.sites.items():
            self.coordinator.add(name, b"".join(site.mask(update(self.one.terms))))
        self.session = self.sites["bergen"]._held.session
        if step == "sign":
            return
        self.survivors = self.coordinator.survivors()
        self.consents = [site.sign(self.survivors) for site in self.sites.values()]


def refused(match: str, call: Callable[..., object], *arguments: object, **more: object) -> Refused:
    """A call is refused. If it is a site's, the site then has no secret left, and no step gets a word out of it."""
    with pytest.raises(Refused, match=match) as error:
        call(*arguments, **more)
    site = getattr(getattr(call, "func", call), "__self__", None)
    if isinstance(site, Site):
        assert site._held == Held()
        silent: list[Callable[[], object]] = [site.advertise, lambda: site.share([]), lambda: site.receive(b"")]
        silent += [lambda: site.mask(update(site.terms)), lambda: site.sign(b""), lambda: site.unmask([])]
        for step in silent:
            with pytest.raises(Refused, match="out of turn; its next step is none"):
                step()
    return error.value


def survivors(session: bytes, names: Sequence[str]) -> bytes:
    return Survivors(session, tuple((NAMES.index(name), b"") for name in names)).to_bytes()


def signed_by(key: Ed25519PrivateKey, advert: Advert, terms: Terms) -> bytes:
    return replace(advert, signature=key.sign(advert.signed(terms.digest))).to_bytes()


def change_advert(attempt: Attempt, name: str, key: Ed25519PrivateKey | None = None, **changes: Any) -> list[bytes]:
    """Everybody's keys, but some of one site's are others; signed by its key, or by another."""
    number = NAMES.index(name)
    changed = replace(Advert.from_bytes(attempt.adverts[number]), **changes)
    adverts = list(attempt.adverts)
    adverts[number] = signed_by(key, changed, attempt.one.terms) if key else changed.to_bytes()
    return adverts


SERVER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
