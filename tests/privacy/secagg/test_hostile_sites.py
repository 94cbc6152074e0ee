"""Sites that do not keep to the protocol: the coordinator refuses what they send, and goes on without it."""

from dataclasses import replace

from hansa.roster import Roster
from privacy.secagg import keys
from privacy.secagg.messages import Advert, Header, Opening, Shares
from tests.privacy.secagg.attacks import (
    KEYS,
    NAMES,
    ROSTER,
    SERVER,
    Attempt,
    change_advert,
    make_terms,
    refused,
    rehearsal,
    update,
)


def test_the_coordinator_refuses_keys_that_are_not_a_site_s() -> None:
    attempt = Attempt("share")
    coordinator = attempt.coordinator
    coordinator.advertise("bergen", attempt.adverts[0])
    refused("site bergen: a second message", coordinator.advertise, "bergen", attempt.adverts[0])
    refused("in the name of another site", coordinator.advertise, "danzig", attempt.adverts[0])
    refused("takes no part in this step", coordinator.advertise, "wismar", attempt.adverts[0])
    refused("ends too early", coordinator.advertise, "danzig", attempt.adverts[1][:-1])
    forged = change_advert(attempt, "danzig", SERVER, mask=keys.public(bytes(31) + b"1"))[1]
    refused("not signed for these terms", coordinator.advertise, "danzig", forged)
    taken = change_advert(attempt, "danzig", KEYS["danzig"], mask=Advert.from_bytes(attempt.adverts[0]).channel)[1]
    refused("a key that is there twice", coordinator.advertise, "danzig", taken)
    error = refused("1 of 6 sites, and 5 are needed", coordinator.adverts)
    assert "missing: danzig, hamburg, luebeck, riga, visby" in str(error)
    refused("out of turn; the step that is open is none", coordinator.advertise, "danzig", attempt.adverts[1])


def test_the_coordinator_refuses_shares_that_are_not_for_all() -> None:
    one = rehearsal()
    adverts = one.advertise(NAMES)
    shares = Shares.from_bytes(one.sites["bergen"].share(adverts))
    for wrong in (replace(shares, sealed=shares.sealed[1:]), replace(shares, session=bytes(32))):
        refused("shares of another session", one.coordinator.share, "bergen", wrong.to_bytes())
    one.coordinator.share("bergen", shares.to_bytes())
    refused("out of turn; the step that is open is share", one.coordinator.advertise, "bergen", b"")


def test_an_upload_of_another_form_is_not_added_at_all() -> None:
    attempt = Attempt("mask")
    good = b"".join(attempt.sites["bergen"].mask(update(attempt.one.terms)))
    coordinator = attempt.coordinator
    for bad in (good[:-1], good + b"\0", good[:20], b"", good[: Header.SIZE - 32] + bytes(32) + good[Header.SIZE :]):
        refused("site bergen: (an upload of another|a message that)", coordinator.add, "bergen", bad)
    refused("in the name of another site", coordinator.add, "riga", good)
    assert not coordinator._words.any()
    assert not coordinator._scalars.any()
    coordinator.add("bergen", good)
    refused("a second message", coordinator.add, "bergen", good)


def test_the_coordinator_refuses_signatures_and_openings_that_are_not_for_this_sum() -> None:
    attempt, other = Attempt("unmask"), Attempt("unmask", make_terms(round=4))
    coordinator = attempt.coordinator
    refused("has not signed these survivors", coordinator.sign, "bergen", other.consents[0])
    for name, consent in zip(NAMES, attempt.consents, strict=True):
        coordinator.sign(name, consent)
    opening = Opening.from_bytes(attempt.sites["bergen"].unmask(coordinator.consents()))
    for wrong in (
        replace(opening, session=bytes(32)),
        replace(opening, seeds=opening.seeds[1:]),
        replace(opening, keys=opening.seeds[:1]),
    ):
        refused("shares of another session", coordinator.unmask, "bergen", wrong.to_bytes())
    coordinator.unmask("bergen", opening.to_bytes())
    refused("1 of 6 sites, and 5 are needed", coordinator.total)


def test_a_roster_names_the_sites_that_may_sign() -> None:
    """A coordinator whose roster lacks a site takes nothing of it."""
    fewer = Roster(**{**ROSTER.model_dump(), "sites": [m for m in ROSTER.sites if m.name != "bergen"]})
    attempt = Attempt("share")
    attempt.coordinator.roster = fewer
    refused("not signed for these terms", attempt.coordinator.advertise, "bergen", attempt.adverts[0])
