"""A server that asks for terms that a site cannot agree to: nothing is made, and nothing leaves."""

import random
from typing import Any

import pytest

from privacy.secagg.agreement import Expected, Past
from privacy.secagg.ring import Segment
from privacy.secagg.site import Site
from privacy.secagg.terms import Terms
from tests.privacy.secagg.attacks import (
    KEYS,
    NAMES,
    PARTS,
    ROSTER,
    STREAM,
    Attempt,
    make_site,
    make_terms,
    refused,
)


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


def test_a_roster_that_changes_midway() -> None:
    """Another key of a site asked ends it for those that have it; another edition, with a site more, does not."""
    rest = make_terms().to_bytes(), Expected(bytes(32), PARTS), Past("run", "train"), random.Random(1).randbytes, STREAM
    last = ROSTER.sites[-1]
    rekeyed = (*ROSTER.sites[:-1], last.model_copy(update={"sign": "0" * 64}))
    changed = ROSTER.model_copy(update={"sites": rekeyed})
    refused("other keys of the sites than its roster has", Site, "bergen", KEYS["bergen"], changed, *rest)
    more = (*ROSTER.sites, last.model_copy(update={"name": "zwolle"}))
    Site("bergen", KEYS["bergen"], ROSTER.model_copy(update={"edition": 2, "sites": more}), *rest)
