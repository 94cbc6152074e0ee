"""Attacks on secure aggregation, and the tests that hold them off.

In test_hostile_*.py a server or a site lies to the protocol's two machines; after each refusal `attacks.refused` holds
that the site has no secret left and says no word more. In tests/secure/test_attacks.py they lie to the drivers, which
must note it as well.
"""

import re
from pathlib import Path

ATTACKS = {
    "both kinds of shares of one site": ["test_no_site_ever_gives_both_shares_of_one_peer"],
    "a second request to open": [
        "test_a_second_request_is_answered_with_the_same_bytes",
        "test_a_second_set_of_survivors",
    ],
    "a second attempt after a first was opened": [
        "test_no_second_attempt_is_opened_after_a_first",
        "test_no_attempt_is_made_twice_and_no_round_opened_twice",
    ],
    "others are asked, or fewer needed, in a second attempt": [
        "test_a_new_attempt_asks_no_other_sites_and_has_no_lower_threshold"
    ],
    "sites are told different survivors": [
        "test_split_views_of_who_survives_open_nothing",
        "test_split_views_of_who_shared_open_nothing",
    ],
    "survivors that are not among those that shared": ["test_survivors_that_shared_nothing"],
    "survivors: one site alone, all but the one that is asked": [
        "test_a_server_that_drops_everybody_but_one",
        "test_survivors_without_the_site_that_is_asked",
    ],
    "survivors, signatures or shares of another session": [
        "test_survivors_of_another_session",
        "test_signatures_of_another_attempt",
        "test_shares_that_the_server_changes_exchanges_or_sends_to_another",
    ],
    "keys of the server in place of a site's": [
        "test_keys_that_the_server_puts_in_place_of_a_site_s",
        "test_a_site_s_own_keys_changed_or_left_out",
    ],
    "keys of two sites exchanged, or shown as another's": [
        "test_keys_of_two_sites_exchanged",
        "test_a_site_s_own_keys_sent_back_as_another_s",
    ],
    "keys of another round, attempt, run or model": ["test_keys_of_another_attempt"],
    "keys with which anybody knows the outcome": ["test_keys_of_small_order", "test_one_key_for_two_uses"],
    "different global models to different sites": [
        "test_keys_of_another_attempt",
        "test_terms_that_a_site_cannot_agree_to",
    ],
    "fewer sites, or a lower threshold": [
        "test_terms_that_a_site_cannot_agree_to",
        "test_a_site_s_own_floor_holds",
        "test_keys_of_another_attempt",
    ],
    "a larger clip": ["test_keys_of_another_attempt", "test_a_site_s_floors_hold_whatever_the_server_says"],
    "an old epoch, an old round, an attempt again": ["test_no_attempt_is_made_twice_and_no_round_opened_twice"],
    "a roster that is another one midway": [
        "test_a_roster_that_changes_midway",
        "test_a_roster_names_the_sites_that_may_sign",
    ],
    "a site under another's certificate, key or number": [
        "test_others_are_turned_away_in_one_line",
        "test_signatures_that_are_too_few_forged_or_of_others",
        "test_the_coordinator_refuses_keys_that_are_not_a_site_s",
    ],
    "steps out of order, or twice": ["test_steps_out_of_order_end_the_attempt", "test_no_step_is_taken_twice"],
    "signatures too few or forged": [
        "test_signatures_that_are_too_few_forged_or_of_others",
        "test_a_signature_of_a_site_that_did_not_survive",
    ],
    "wrong shares": [
        "test_a_wrong_share_does_no_harm_where_one_more_came_than_is_needed",
        "test_a_wrong_share_is_told_where_no_more_came_than_are_needed",
    ],
    "an upload of another form, noise in place of an update": [
        "test_an_upload_of_another_form_is_not_added_at_all",
        "test_a_sum_beyond_what_sites_can_send_is_refused",
    ],
    "all of these through the drivers": [
        "test_a_lie_of_the_server_is_refused_and_noted_and_no_share_leaves",
        "test_a_lie_of_a_site_puts_it_out_and_is_told",
    ],
}


def test_each_test_of_the_table_is_there() -> None:
    tests = Path(__file__).parents[2]
    there = {name for file in tests.rglob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text())}
    assert {name for names in ATTACKS.values() for name in names} <= there
