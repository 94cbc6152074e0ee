"""Servers and sites that do not keep to the protocol: each attack is refused, and the honest give nothing away."""

import random
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hansa.records import Part
from hansa.roster import Roster
from privacy.secagg import keys
from privacy.secagg.agreement import Expected, Past
from privacy.secagg.errors import Refused
from privacy.secagg.keystream import Keystream
from privacy.secagg.messages import Advert, Consent, Delivery, Header, Opening, Shares, Survivors
from privacy.secagg.quantise import Update
from privacy.secagg.rehearsal import Rehearsal, founded
from privacy.secagg.ring import Segment
from privacy.secagg.site import Held, Site
from privacy.secagg.terms import Scalars, Terms, roster_digest, threshold

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
    return Update(terms.form, len(terms.sites), np.arange(6, dtype="<u4"), np.array([1, 1, 0, 0, 7], "<u8"))


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
    with pytest.raises(Refused, match=match) as error:
        call(*arguments, **more)
    return error.value


def survivors(session: bytes, names: Sequence[str]) -> bytes:
    return Survivors(session, tuple((NAMES.index(name), b"") for name in names)).to_bytes()


# The terms


def unchecked(terms: Terms, **changes: Any) -> bytes:
    """Terms that no honest server could even make."""
    for name, value in changes.items():
        object.__setattr__(terms, name, value)
    return terms.to_bytes()


@pytest.mark.parametrize(
    ("terms", "match"),
    [
        (make_terms(run="other"), "terms of run other, here is run"),
        (make_terms(purpose="test"), "terms of a round to test, where it is to train"),
        (make_terms(roster=b"x" * 32), "other keys of the sites than its roster has"),
        (make_terms(model=b"x" * 32), "another global model than the one that came"),
        (make_terms(sites=(*NAMES, "wismar"), threshold=5), "sites that are not in the roster: wismar"),
        (make_terms(sites=NAMES[1:], threshold=5), "terms without this site"),
        (make_terms(threshold=4), "a threshold of 4 of 6 sites, of which 5 are needed here"),
        (make_terms(sites=NAMES[:2], threshold=2), "a threshold of 2 of 2 sites, of which 3 are needed here"),
        (make_terms(sites=NAMES[:1], threshold=1), "a threshold of 1 of 1 sites, of which 3 are needed here"),
        (make_terms(parts=(Segment("delta", 7, "uniform", 1.0, 9),)), "other parts than the strategy's"),
        (make_terms(parts=(Segment("delta", 6, "examples", 1.0, 9),)), "other parts than the strategy's"),
        (unchecked(make_terms(), threshold=7), "a threshold of 7 of 6 sites"),
        (unchecked(make_terms(), rows=0), "max_weight = 0"),
        (unchecked(make_terms(), parts=(Segment("delta", 6, "uniform", -1.0, 9),)), "a bound of -1.0"),
        (unchecked(make_terms(), parts=(Segment("delta", 6, "uniform", 1.0, 2**31 - 1),)), "a ring of 32 bits holds"),
        (make_terms().to_bytes()[:-1], "ends too early"),
        (make_terms().to_bytes() + b"\0", "bytes too many"),
    ],
)
def test_terms_that_a_site_cannot_agree_to(terms: Terms | bytes, match: str) -> None:
    assert refused(match, make_site, terms).step == "advertise"


def test_a_site_s_own_floor_holds() -> None:
    """Whoever survives, five of six could: a site that wants six says so before it sends anything."""
    refused("a threshold of 5 of 6 sites, of which 6 are needed here", make_site, make_terms(), floor=6)
    make_site(make_terms(threshold=6), floor=6)
    refused("of which 3 are needed here", make_site, make_terms(sites=NAMES[:2], threshold=2), floor=1)


@pytest.mark.parametrize(
    "past",
    [
        Past("run", "train", (1, 5, 1)),
        Past("run", "train", (1, 5, 2)),
        Past("run", "train", (1, 6, 0)),
        Past("run", "train", (2, 1, 1)),
        Past("run", "train", (0, 6, 1)),
        Past("run", "train", (1, 4, 9), answered=5),
        Past("run", "train", (0, 9, 9), answered=9),
    ],
)
def test_no_attempt_is_made_twice_and_no_round_opened_twice(past: Past) -> None:
    """Replays: the same attempt, an older one, an older epoch, and a new attempt at a round that was opened."""
    refused("made before|has helped to open|a round before", make_site, make_terms(), past=past)


def test_what_a_site_remembers_grows_before_its_bytes_leave() -> None:
    attempt = Attempt("unmask")
    site = attempt.sites["bergen"]
    assert site.past == Past("run", "train", (1, 5, 1), NAMES, 5, answered=0)
    site.unmask(attempt.consents)
    assert site.past == Past("run", "train", (1, 5, 1), NAMES, 5, answered=5)
    refused("has helped to open round 5 already", make_site, make_terms(attempt=2), past=site.past)
    make_site(make_terms(round=6), past=site.past)


def test_a_new_attempt_asks_no_other_sites_and_has_no_lower_threshold() -> None:
    """Else those that did not open the first sum could open a second one, of few sites less than the first."""
    past = Past("run", "train", (1, 5, 1), NAMES[:5], 5)
    make_site(make_terms(attempt=2, sites=NAMES[:5], threshold=5), past=past)
    fewer = make_terms(attempt=2, sites=NAMES[:4])
    refused("a threshold of 3 of 4 sites, of which 5 are needed here", make_site, fewer, past=past)
    refused("a new attempt at this round that asks others: visby", make_site, make_terms(epoch=2, attempt=1), past=past)
    make_site(make_terms(round=6), past=past)


# Keys


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


@pytest.mark.parametrize("field", ["channel", "mask", "commitment"])
@pytest.mark.parametrize("key", [None, SERVER, KEYS["riga"]])
def test_keys_that_the_server_puts_in_place_of_a_site_s(field: str, key: Ed25519PrivateKey | None) -> None:
    attempt = Attempt("share")
    adverts = change_advert(attempt, "visby", key, **{field: keys.public(b"server's private key, 32 bytes..")})
    error = refused("not signed for these terms by its key in the roster", attempt.sites["bergen"].share, adverts)
    assert (error.step, error.site) == ("share", "visby")


def test_keys_of_another_attempt() -> None:
    """Rounds before, runs before, or terms of which another site was told other ones."""
    for change in (
        {"round": 4},
        {"attempt": 2},
        {"epoch": 2},
        {"model": b"y" * 32},
        {"run": "other"},
        {"purpose": "test"},
        {"rows": 9},
    ):
        attempt = Attempt("share")
        old = make_terms(**change)
        past, expected = Past(old.run, old.purpose), Expected(old.model, PARTS)
        other = Site("visby", KEYS["visby"], ROSTER, old.to_bytes(), expected, past, random.Random(3).randbytes, STREAM)
        adverts = [*attempt.adverts[:-1], other.advertise()]
        refused("not signed for these terms", attempt.sites["bergen"].share, adverts)


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


# Shares


def resealed(attempt: Attempt, change: Callable[[Delivery], Delivery]) -> Callable[[], object]:
    delivery = change(Delivery.from_bytes(attempt.deliveries["bergen"]))
    return lambda: attempt.sites["bergen"].receive(delivery.to_bytes())


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


# Survivors


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


# Opening


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


# Order, and what is left behind


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


# A roster that changes midway


def test_a_roster_that_changes_midway() -> None:
    """Another key of a site asked ends it for those that have it; another edition, with a site more, does not."""
    rest = make_terms().to_bytes(), Expected(bytes(32), PARTS), Past("run", "train"), random.Random(1).randbytes, STREAM
    last = ROSTER.sites[-1]
    rekeyed = (*ROSTER.sites[:-1], last.model_copy(update={"sign": "0" * 64}))
    changed = ROSTER.model_copy(update={"sites": rekeyed})
    refused("other keys of the sites than its roster has", Site, "bergen", KEYS["bergen"], changed, *rest)
    more = (*ROSTER.sites, last.model_copy(update={"name": "zwolle"}))
    Site("bergen", KEYS["bergen"], ROSTER.model_copy(update={"edition": 2, "sites": more}), *rest)


# What sites send to the coordinator


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
