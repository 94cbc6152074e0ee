"""A server that lies about whose updates are in a sum, asks twice or out of turn: no second sum is opened."""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import pytest

from privacy.secagg import keys
from privacy.secagg.messages import Consent, Delivery, Opening
from privacy.secagg.site import Held, Site
from tests.privacy.secagg.attacks import (
    KEYS,
    NAMES,
    Attempt,
    make_site,
    make_terms,
    refused,
    rehearsal,
    survivors,
    update,
)


def test_a_server_that_drops_everybody_but_one() -> None:
    attempt = Attempt("sign")
    said = survivors(attempt.session, ["bergen"])
    error = refused("1 of 6 sites, and 5 are needed", attempt.sites["bergen"].sign, said)
    assert error.step == "sign"


@pytest.mark.parametrize("names", [NAMES[1:], ()])
def test_survivors_without_the_site_that_is_asked(names: Sequence[str]) -> None:
    attempt = Attempt("sign")
    refused("survivors without this site", attempt.sites["bergen"].sign, survivors(attempt.session, names))


def test_survivors_that_shared_nothing() -> None:
    """U3 must be part of U2: nobody could take off the masks of others."""
    one = rehearsal()
    deliveries = one.share(NAMES[:5], one.advertise(NAMES))
    one.mask(NAMES[:5], deliveries, dict.fromkeys(NAMES, update(one.terms)))
    said = survivors(one.sites["bergen"]._held.session, NAMES)
    refused("with one that shared nothing", one.sites["bergen"].sign, said)


def test_a_second_set_of_survivors() -> None:
    """The same again is the same signature; another is refused, and the attempt is over at this site."""
    attempt = Attempt("sign")
    site, first = attempt.sites["bergen"], survivors(attempt.session, NAMES)
    assert site.sign(first) == site.sign(first)
    refused("other survivors than this site has signed", site.sign, survivors(attempt.session, NAMES[:5]))
    refused("out of turn", site.unmask, [])


def test_survivors_of_another_session() -> None:
    attempt = Attempt("sign")
    refused("survivors of another session", attempt.sites["bergen"].sign, survivors(bytes(32), NAMES))


def test_split_views_of_who_survives_open_nothing() -> None:
    """Half the sites are told one set, half another. Whatever signatures the server then shows, none opens a thing."""
    for shown in ("own", "other", "all"):
        attempt = Attempt("sign")
        a, b = survivors(attempt.session, NAMES[:5]), survivors(attempt.session, NAMES[1:])
        signed_a = {name: attempt.sites[name].sign(a) for name in NAMES[:3]}
        signed_b = {name: attempt.sites[name].sign(b) for name in NAMES[3:]}
        for name, site in attempt.sites.items():
            own, other = (signed_a, signed_b) if name in signed_a else (signed_b, signed_a)
            said = {"own": own, "other": other, "all": signed_a | signed_b}[shown]
            refused("not signed the same survivors|5 are needed", site.unmask, list(said.values()))
            assert site.past.answered == 0


def test_split_views_of_who_shared_open_nothing() -> None:
    """Some sites are delivered fewer shares, so that their U2 is another: the same U3 is then another transcript."""
    attempt = Attempt("receive")
    for name, site in attempt.sites.items():
        delivery = Delivery.from_bytes(attempt.deliveries[name])
        if name in NAMES[:2]:
            delivery = replace(delivery, sealed=tuple(row for row in delivery.sealed if row[0] != 5))
        site.receive(delivery.to_bytes())
    for name in NAMES[:5]:
        assert b"".join(attempt.sites[name].mask(update(attempt.one.terms)))
    said = survivors(attempt.sites["riga"]._held.session, NAMES[:5])
    consents = [attempt.sites[name].sign(said) for name in NAMES[:5]]
    for name in NAMES[:5]:
        refused("not signed the same survivors", attempt.sites[name].unmask, consents)


def test_no_site_ever_gives_both_shares_of_one_peer() -> None:
    """A server that calls riga a survivor at some sites and lost at others, in every way it could go on.

    All that leaves any site in the attempt is gathered; for no peer are there shares of both its secrets.
    """
    for named in (NAMES, NAMES[:4] + NAMES[5:]):
        attempt = Attempt("sign")
        given: dict[str, set[int]] = {"seeds": set(), "keys": set()}
        other = NAMES if len(named) == 5 else NAMES[:4] + NAMES[5:]
        said = [survivors(attempt.session, names) for names in (named, other)]
        asked = [name for name in named if name != "riga"]
        consents = [attempt.sites[name].sign(said[0]) for name in asked]
        assert len(consents) == 5
        for name in asked:
            opening = Opening.from_bytes(attempt.sites[name].unmask(consents))
            given["seeds"] |= {number for number, _ in opening.seeds}
            given["keys"] |= {number for number, _ in opening.keys}
            refused("out of turn|other survivors", attempt.sites[name].sign, said[1])
            refused("out of turn", attempt.sites[name].unmask, consents)
        assert not given["seeds"] & given["keys"]
        assert given["seeds"] | given["keys"] == set(range(6))


def test_a_second_request_is_answered_with_the_same_bytes() -> None:
    attempt = Attempt("unmask")
    site = attempt.sites["bergen"]
    assert site.unmask(attempt.consents) == site.unmask(attempt.consents[1:])
    site.erase()
    refused("out of turn", site.unmask, attempt.consents)


@pytest.mark.parametrize("again", [{"attempt": 2}, {"epoch": 2}, {"epoch": 9, "attempt": 9}])
def test_no_second_attempt_is_opened_after_a_first(again: dict[str, int]) -> None:
    """Every site has opened the first; a second one is refused before it makes keys, by site and at any epoch."""
    attempt = Attempt("unmask")
    for name, site in attempt.sites.items():
        site.unmask(attempt.consents)
        error = refused("has helped to open round 5 already", make_site, make_terms(**again), name, site.past)
        assert error.step == "advertise"


@pytest.mark.parametrize(
    ("forge", "match"),
    [
        (lambda c: c[:4], "4 of 6 sites, and 5 are needed; missing: riga, visby"),
        (lambda c: [c[0]] * 6, "1 of 6 sites"),
        (lambda c: [*c[:4], replace(Consent.from_bytes(c[0]), site=4).to_bytes()], "not signed the same survivors"),
        (lambda c: [*c[:5], Consent(5, bytes(64)).to_bytes()], "not signed the same survivors"),
        (lambda c: [*c[:5], Consent(6, bytes(64)).to_bytes()], "a site that is not in the terms"),
        (lambda c: [*c[:5], c[5][:-1]], "a message that cannot be read"),
        (lambda c: [], "0 of 6 sites"),
    ],
)
def test_signatures_that_are_too_few_forged_or_of_others(
    forge: Callable[[list[bytes]], list[bytes]], match: str
) -> None:
    attempt = Attempt("unmask")
    site = attempt.sites["bergen"]
    refused(match, site.unmask, forge(attempt.consents))
    assert site.past.answered == 0
    refused("out of turn", site.unmask, attempt.consents)


def test_signatures_of_another_attempt() -> None:
    attempt, before = Attempt("unmask"), Attempt("unmask", make_terms(round=4))
    consents = [attempt.consents[0], *before.consents[1:]]
    refused("not signed the same survivors", attempt.sites["bergen"].unmask, consents)


def test_a_signature_of_a_site_that_did_not_survive() -> None:
    attempt = Attempt("sign")
    said = survivors(attempt.session, NAMES[:5])
    consents = [attempt.sites[name].sign(said) for name in NAMES[:5]]
    transcript = keys.transcript(attempt.session, range(6), range(5))
    consents[4] = Consent(5, KEYS["visby"].sign(transcript)).to_bytes()
    error = refused("not signed the same survivors", attempt.sites["bergen"].unmask, consents)
    assert error.site == "visby"


def test_steps_out_of_order_end_the_attempt() -> None:
    calls: dict[str, Callable[[Attempt, Site], object]] = {
        "advertise": lambda a, s: s.advertise(),
        "share": lambda a, s: s.share(a.adverts),
        "receive": lambda a, s: s.receive(a.deliveries["bergen"]),
        "mask": lambda a, s: s.mask(update(s.terms)),
        "sign": lambda a, s: s.sign(a.survivors),
        "unmask": lambda a, s: s.unmask(a.consents),
    }
    full = Attempt("unmask")
    for reached in ("share", "receive", "mask", "sign"):
        for step, call in calls.items():
            if step == reached:
                continue
            attempt = Attempt(reached)
            site = attempt.sites["bergen"]
            refused(f"out of turn; its next step is {reached}", call, full, site)
            assert site._held == Held()
            refused("out of turn; its next step is none", calls[reached], full, site)


@pytest.mark.parametrize("again", ["share", "receive", "mask"])
def test_no_step_is_taken_twice(again: str) -> None:
    """Two updates under the same masks would give away their difference."""
    following = {"share": "receive", "receive": "mask", "mask": "sign"}[again]
    attempt = Attempt(following)
    site = attempt.sites["bergen"]
    calls: dict[str, Callable[[], object]] = {
        "share": lambda: site.share(attempt.adverts),
        "receive": lambda: site.receive(attempt.deliveries["bergen"]),
        "mask": lambda: site.mask(update(site.terms)),
    }
    refused("out of turn", calls[again])


def test_a_site_forgets_its_secrets_as_soon_as_they_are_used() -> None:
    site = Attempt("receive").sites["bergen"]
    assert (site._held.channel_key, site._held.mask_key) == (b"", b"")
    site = Attempt("sign").sites["bergen"]
    assert (site._held.seed, site._held.channels, site._held.pairs) == (b"", {}, {})
    site.erase()
    assert site._held == Held()


def test_neither_errors_nor_reprs_hold_a_secret() -> None:
    attempt = Attempt("mask")
    site = attempt.sites["bergen"]
    secrets = [site._held.seed, *site._held.seeds.values(), *site._held.keys.values()]
    secrets += [key.secret for mask in site._held.pairs.values() for key in (mask.bulk, mask.scalars)]
    shown = repr(site) + repr(site._held) + repr(vars(site)) + repr(update(site.terms))
    shown += str(refused("out of turn", site.sign, b""))
    assert len(secrets) == 1 + 6 + 6 + 10
    for secret in secrets:
        assert secret.hex()[:12] not in shown
        assert repr(secret)[2:12] not in shown
    assert {field.name for field in fields(Held) if field.repr} == {"advert", "session", "pairs", "survivors"}
