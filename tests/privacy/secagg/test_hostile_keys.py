"""A server, or a site that works with it, that lies about keys and shares: the honest give nothing away."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from privacy.secagg import keys
from privacy.secagg.agreement import Expected, Past
from privacy.secagg.errors import Refused
from privacy.secagg.messages import Advert, Delivery
from privacy.secagg.ring import Segment
from privacy.secagg.site import Site
from tests.privacy.secagg.attacks import (
    KEYS,
    NAMES,
    PARTS,
    ROSTER,
    SERVER,
    STREAM,
    Attempt,
    change_advert,
    make_site,
    make_terms,
    refused,
    rehearsal,
    signed_by,
)


@pytest.mark.parametrize("field", ["channel", "mask", "commitment"])
@pytest.mark.parametrize("key", [None, SERVER, KEYS["riga"]])
def test_keys_that_the_server_puts_in_place_of_a_site_s(field: str, key: Ed25519PrivateKey | None) -> None:
    attempt = Attempt("share")
    adverts = change_advert(attempt, "visby", key, **{field: keys.public(b"server's private key, 32 bytes..")})
    error = refused("not signed for these terms by its key in the roster", attempt.sites["bergen"].share, adverts)
    assert (error.step, error.site) == ("share", "visby")


@pytest.mark.parametrize(
    "told",
    [
        {"round": 4},
        {"attempt": 2},
        {"epoch": 2},
        {"model": b"y" * 32},
        {"run": "other"},
        {"purpose": "test"},
        {"rows": 9},
        {"threshold": 6},
        {"sites": NAMES[1:]},
        {"parts": (Segment("delta", 6, "uniform", 2.0, 9),)},
    ],
    ids=lambda told: next(iter(told)),
)
def test_keys_of_another_attempt(told: dict[str, Any]) -> None:
    """Of rounds before, of runs before; or of one of which another site was told a larger clip, say, or fewer sites."""
    attempt, other = Attempt("share"), make_terms(**told)
    past, expected = Past(other.run, other.purpose), Expected(other.model, PARTS)
    site = Site("visby", KEYS["visby"], ROSTER, other.to_bytes(), expected, past, random.Random(3).randbytes, STREAM)
    advert = replace(Advert.from_bytes(site.advertise()), site=5).to_bytes()
    error = refused("not signed for these terms", attempt.sites["bergen"].share, [*attempt.adverts[:-1], advert])
    assert error.site == "visby"


def test_keys_of_two_sites_exchanged() -> None:
    """The number of a site is signed with its keys."""
    attempt = Attempt("share")
    one, other = (replace(Advert.from_bytes(attempt.adverts[i]), site=9 - i) for i in (4, 5))
    adverts = [*attempt.adverts[:4], other.to_bytes(), one.to_bytes()]
    assert refused("not signed for these terms", attempt.sites["bergen"].share, adverts).site == "riga"


def test_a_site_s_own_keys_changed_or_left_out() -> None:
    attempt = Attempt("share")
    again = make_site(make_terms(), "bergen")
    again._random = random.Random(77).randbytes
    for adverts in ([again.advertise(), *attempt.adverts[1:]], attempt.adverts[1:]):
        attempt = Attempt("share")
        refused("its own keys are not as it sent them", attempt.sites["bergen"].share, adverts)


def test_a_site_s_own_keys_sent_back_as_another_s() -> None:
    """Reflected by a site that works with the server, and signed by it: the mask in common would be known to nobody."""
    for field in ("channel", "mask"):
        attempt = Attempt("share")
        own = getattr(Advert.from_bytes(attempt.adverts[0]), field)
        adverts = change_advert(attempt, "visby", KEYS["visby"], **{field: own})
        error = refused("a key that is there twice", attempt.sites["bergen"].share, adverts)
        assert error.site == "visby"


def test_one_key_for_two_uses() -> None:
    attempt = Attempt("share")
    channel = Advert.from_bytes(attempt.adverts[5]).channel
    adverts = change_advert(attempt, "visby", KEYS["visby"], mask=channel)
    refused("a key that is there twice", attempt.sites["bergen"].share, adverts)


@pytest.mark.parametrize("point", [bytes(32), (1).to_bytes(32, "little"), ((1 << 255) - 20).to_bytes(32, "little")])
@pytest.mark.parametrize("field", ["channel", "mask"])
def test_keys_of_small_order(point: bytes, field: str) -> None:
    """With them anybody knows what two sites have in common; test_keys has the whole list."""
    attempt = Attempt("share")
    adverts = change_advert(attempt, "visby", KEYS["visby"], **{field: point})
    error = refused("a key of small order", attempt.sites["bergen"].share, adverts)
    assert error.site == "visby"
    with pytest.raises(Refused, match="a key of small order"):
        attempt.coordinator.advertise("visby", adverts[5])


def test_one_site_s_keys_twice_or_too_few_sites() -> None:
    attempt = Attempt("share")
    refused("two sets of keys", attempt.sites["bergen"].share, [*attempt.adverts[:5], attempt.adverts[3]])
    error = refused("4 of 6 sites, and 5 are needed", attempt.sites["riga"].share, attempt.adverts[2:])
    assert "missing: bergen, danzig" in str(error)


def test_a_site_that_the_terms_do_not_have() -> None:
    attempt = Attempt("share")
    stranger = replace(Advert.from_bytes(attempt.adverts[5]), site=6)
    adverts = [*attempt.adverts[:5], signed_by(KEYS["stralsund"], stranger, attempt.one.terms)]
    refused("a site that is not in the terms", attempt.sites["bergen"].share, adverts)
    refused("7 messages of 6 sites", attempt.sites["riga"].share, [*attempt.adverts, attempt.adverts[0]])


def resealed(attempt: Attempt, change: Callable[[Delivery], Delivery]) -> Callable[[], object]:
    delivery = change(Delivery.from_bytes(attempt.deliveries["bergen"]))
    return partial(attempt.sites["bergen"].receive, delivery.to_bytes())


def test_shares_that_the_server_changes_exchanges_or_sends_to_another() -> None:
    attempt = Attempt("receive")
    flipped = resealed(attempt, lambda d: replace(d, sealed=((1, d.sealed[0][1][:-1] + b"\0"), *d.sealed[1:])))
    assert refused("shares that were changed, or not for this site", flipped).site == "danzig"
    attempt = Attempt("receive")
    crossed = resealed(attempt, lambda d: replace(d, sealed=((1, d.sealed[1][1]), (2, d.sealed[0][1]), *d.sealed[2:])))
    refused("shares that were changed", crossed)
    attempt = Attempt("receive")
    refused("shares for another site", attempt.sites["riga"].receive, attempt.deliveries["bergen"])
    attempt = Attempt("receive")
    refused("of another session", resealed(attempt, lambda d: replace(d, session=bytes(32))))
    attempt = Attempt("receive")
    refused("4 of 6 sites, and 5 are needed", resealed(attempt, lambda d: replace(d, sealed=d.sealed[:3])))


def test_shares_of_a_site_itself_or_of_one_without_keys() -> None:
    attempt = Attempt("receive")
    own = resealed(attempt, lambda d: replace(d, sealed=((0, d.sealed[0][1]), *d.sealed)))
    refused("shares of a site that has sent no keys", own)
    one = rehearsal()
    deliveries = one.share(NAMES[:5], one.advertise(NAMES[:5]))
    delivery = Delivery.from_bytes(deliveries["bergen"])
    more = replace(delivery, sealed=(*delivery.sealed, (5, delivery.sealed[0][1])))
    refused("shares of a site that has sent no keys", one.sites["bergen"].receive, more.to_bytes())
