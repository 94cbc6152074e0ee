"""What `hansa site doctor` says of [policy]: each floor in words, as the site's check of terms means it."""

from typing import Any

import pytest

from clients.floors import look_at_policy
from clients.refusals import Refused
from clients.sitefile import PolicyTable
from clients.sumrules import Said, check_terms
from privacy.config import PrivacyTable
from privacy.secagg.terms import Terms, threshold


def lines(**policy: Any) -> list[str]:
    return [str(one) for one in look_at_policy(PolicyTable(**policy))]


def test_the_floors_that_hold_of_themselves() -> None:
    assert lines() == [
        "ok    [policy]: no update leaves without secure aggregation; a run without it is refused "
        "(allow_unprotected = false)",
        "ok    [policy]: a sum is over 3 sites or more (min_sites = 3)",
        "ok    [policy]: an update's values may be of any size that [privacy] clip says (max_clip is not set)",
        "ok    [policy]: an update's values are rounded to rings of 16 bits or more (min_ring_bits)",
    ]


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"allow_unprotected": True}, "the server may see this site's own update where secure aggregation is off"),
        ({"allow_two_sites": True}, "each of which then learns the other's update (allow_two_sites = true)"),
        ({"max_clip": 0.5}, "no value of an update counts for more than 0.5 (max_clip = 0.5)"),
        ({"min_ring_bits": 24}, "rings of 24 bits or more"),
    ],
)
def test_a_floor_that_is_set_is_said(policy: dict[str, Any], says: str) -> None:
    assert says in "\n".join(lines(**policy))


@pytest.mark.parametrize("floor", range(4, 12))
def test_how_many_must_be_asked_is_what_the_check_lets_through(floor: int) -> None:
    """At the default threshold; one site fewer is refused."""
    policy = PolicyTable(min_sites=floor)
    asked = next(n for n in range(3, 99) if f"so that {n} must be asked" in lines(min_sites=floor)[1])

    def terms(n: int) -> Terms:
        names = tuple(f"site-{number:02}" for number in range(n))
        return Terms("run", "train-valid", 1, 1, 1, bytes(32), names, threshold(n), bytes(32), 1, 32, (), ())

    check_terms(policy, terms(asked), Said(PrivacyTable(), 1), asked)
    with pytest.raises(Refused):
        check_terms(policy, terms(asked - 1), Said(PrivacyTable(), 1), asked)
