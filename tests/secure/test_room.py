"""What the two drivers make of the protocol when processes go, come again, and are asked twice."""

from pathlib import Path

import numpy as np
import pytest

from clients.past import Remembered
from clients.sitefile import PolicyTable
from hansa.errors import UserError
from hansa.metrics import BINS
from hansa.records import Aggregate
from hansa.wire.link_pb2 import Plan, Result
from server.arrivals import Joined, Left
from server.cohort import Rule
from tests.secure.room import PARTS, RUN, SIZE, SUMS, Room, plan, result


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def go(room: Room, round: int = 1, quorum: int = 3, kind: str = "train", split: str = "valid") -> Aggregate:
    room.cohort.ask(plan(round, kind, split), room.names)
    return room.cohort.collect(Rule(quorum))


def mean(room: Room, sites: str) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """In float64, by rows, of which 100 are a weight of 255 and others are rounded up."""
    weights = {site: -(-255 * room.results[site].examples // 100) for site in sites}
    total = sum(weights[site] * np.frombuffer(room.results[site].upload.data, "<f4").astype(float) for site in sites)
    return np.asarray(total / sum(weights.values()))


@pytest.mark.parametrize("large", [False, True])
def test_the_server_gets_the_mean_and_the_sums(tmp_path: Path, large: bool) -> None:
    room = Room(tmp_path, large=large)
    got = go(room)
    assert got.void is None
    assert got.sites == room.names
    assert (got.examples, got.share, got.memory) == (100, 1.0, {})
    np.testing.assert_allclose(got.mean["delta"], mean(room, "abcd"), atol=1e-6)
    assert got.sums["train/loss"].tolist() == [4.0, 8.0]
    assert room.trained == list(room.names)


@pytest.mark.parametrize("step", ["plan", "share", "mask", "sign", "unmask"])
def test_a_site_that_goes_in_any_step_leaves_the_round_to_the_others(room: Room, step: str) -> None:
    def goes(site: str, asked: str) -> None:
        if (site, asked) == ("c", step):
            room.away.add(site)
            room.cohort.gone.setdefault(site, 0.0)

    room.before = goes
    got = go(room)
    there = "abcd" if step in ("sign", "unmask") else "abd"
    assert got.sites == tuple(there)
    np.testing.assert_allclose(got.mean["delta"], mean(room, there), atol=1e-6)
    assert ("c" in got.dropped) == (there == "abd")


def test_a_site_that_starts_again_trains_for_a_second_attempt_and_the_others_do_not(tmp_path: Path) -> None:
    """Of three sites all three are needed."""
    room = Room(tmp_path, names=("a", "b", "c"))
    left = ["mask"]

    def starts_again(site: str, asked: str) -> None:
        if site == "c" and asked in left:
            left.remove(asked)
            room.restart(site)

    room.before = starts_again
    got = go(room)
    assert got.sites == ("a", "b", "c")
    np.testing.assert_allclose(got.mean["delta"], mean(room, "abc"), atol=1e-6)
    assert sorted(room.trained) == ["a", "b", "c", "c"]
    assert any("attempt 1 has failed" in line for line in room.told)


@pytest.mark.parametrize("step", ["sign", "unmask"])
def test_the_last_steps_do_not_wait_for_a_site_that_started_again(room: Room, step: str) -> None:
    """Its update is in the sum, its secrets are gone: whoever is left opens it. A step's deadline would be 10 s."""
    restarted: list[str] = []

    def starts_again(site: str, asked: str) -> None:
        if (site, asked) == ("c", step) and not restarted:
            restarted.append(site)
            room.restart(site)

    room.before = starts_again
    room.cohort.ask(plan(), room.names)
    while room.cohort.attempt is not None:
        assert room.cohort._patience(Rule(3)) <= 0 or not room.events.empty()
        if room.cohort._patience(Rule(3)) <= 0:
            room.cohort._close(room.cohort.attempt, Rule(3))
        else:
            room.cohort._take(room.events.get())
    assert room.cohort.outcome.sites == room.names
    np.testing.assert_allclose(room.cohort.outcome.mean["delta"], mean(room, "abcd"), atol=1e-6)


def test_too_few_sites_make_the_round_void_and_nothing_is_opened(room: Room) -> None:
    room.away |= {"c", "d"}
    room.cohort = room.server(1)
    room.cohort.until = 0.0
    got = go_without_waiting(room)
    assert got.void is not None
    assert "2 of 4 sites" in got.void
    assert (got.mean, got.sums, got.examples) == ({}, {}, 0)
    assert not [note for note in room.notes if note[1] == "opened"]


def go_without_waiting(room: Room) -> Aggregate:
    """The steps' deadlines pass at once."""
    room.cohort.ask(plan(), room.names)
    while room.cohort.attempt is not None:
        while not room.events.empty():
            room.cohort._take(room.events.get())
        room.cohort._close(room.cohort.attempt, Rule(3))
    return room.cohort.outcome


def test_a_round_below_the_quorum_is_not_opened(room: Room) -> None:
    room.away.add("d")
    room.cohort = room.server(1)
    room.cohort.ask(plan(), room.names)
    room.cohort.ends = 0.0
    got = room.cohort.collect(Rule(3))
    assert got.void is None
    room.cohort.ask(plan(2), room.names)
    while room.cohort.attempt is not None:
        while not room.events.empty():
            room.cohort._take(room.events.get())
        room.cohort._close(room.cohort.attempt, Rule(4))
    assert room.cohort.outcome.void == "3 of 4 sites took part, and no sum over fewer than 4 is opened"
    assert [note[2]["round"] for note in room.notes if note[1] == "opened"] == [1, 1, 1]


def test_a_server_that_starts_again_before_it_asked_for_the_sum_gets_it_without_training(room: Room) -> None:
    class Killed(Exception):
        pass

    def killed(site: str, asked: str) -> None:
        if asked == "sign":
            raise Killed

    room.before = killed
    with pytest.raises(Killed):
        go(room)
    room.before = lambda site, step: None
    room.cohort = room.server(2)
    np.testing.assert_allclose(go(room).mean["delta"], mean(room, "abcd"), atol=1e-6)
    assert room.trained == list(room.names)


def test_a_round_that_was_being_opened_is_void_for_the_next_start(room: Room) -> None:
    class Killed(Exception):
        pass

    def killed(site: str, asked: str) -> None:
        if (site, asked) == ("d", "unmask"):
            raise Killed

    room.before = killed
    with pytest.raises(Killed):
        go(room)
    room.before = lambda site, step: None
    room.cohort = room.server(2)
    assert go(room).void == "its sum was being opened when the server ended, and none is opened twice"
    assert go(room, 2).sites == room.names


def test_a_server_without_its_transcript_is_refused_by_the_sites(room: Room) -> None:
    """What a server forgets, or denies, its sites remember, in another process too."""
    go(room)
    (room.folder / "server" / "secure" / "transcript.jsonl").unlink()
    room.restart("a")
    room.cohort = room.server(2)
    got = go(room)
    assert got.void is not None
    assert any("has helped to open round 1 already" in line for line in room.logs["a"] + room.logs["b"])


def test_what_a_site_says_leaves_after_it_is_on_its_disk(room: Room) -> None:
    seen: list[tuple[int, int]] = []

    def look(site: str, asked: str) -> None:
        if site == "a" and asked != "plan":
            past = Remembered(room.folder / "a", RUN, room.said.text).of("train-valid")
            seen.append((past.opened[1], past.answered))

    room.before = look
    go(room)
    assert seen == [(1, 0)] * 4
    assert Remembered(room.folder / "a", RUN, room.said.text).of("train-valid").answered == 1


def test_a_site_whose_memory_of_the_run_is_damaged_sits_it_out(tmp_path: Path) -> None:
    (tmp_path / f"{RUN}.json").write_text('{"train-valid": {"opened": [1]}}')
    with pytest.raises(UserError, match="it sits the run out"):
        Remembered(tmp_path, RUN)


def test_what_comes_twice_is_answered_as_it_was(room: Room) -> None:
    """A connection that is lost loses words of both ends, so that both say them again."""
    doubled: set[str] = set()

    def again(site: str, asked: str) -> None:
        if site == "b" and asked != "plan" and asked not in doubled:
            doubled.add(asked)
            attempt = room.cohort.attempt
            assert attempt is not None
            half = room.halves[site]
            message = attempt.last[site]
            first = half.hear(message)
            assert half.hear(message) == first
            room.take(site, first)

    room.before = again
    got = go(room)
    assert doubled == {"share", "mask", "sign", "unmask"}
    assert got.sites == room.names
    np.testing.assert_allclose(got.mean["delta"], mean(room, "abcd"), atol=1e-6)


def test_a_site_that_came_on_a_new_connection_is_told_again(room: Room) -> None:
    def lost(site: str, asked: str) -> None:
        if site == "b" and asked == "sign" and "lost" not in room.told:
            room.told.append("lost")
            room.events.put(Left(site, "the connection was lost"))
            room.events.put(Joined(site, 0, ()))

    room.before = lost
    assert go(room).sites == room.names


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        (PolicyTable(min_sites=4), "too_few_sites"),
        (PolicyTable(max_clip=0.4), "clip_too_large"),
        (PolicyTable(min_ring_bits=32), "ring_too_small"),
    ],
)
def test_a_site_s_floors_hold_whatever_the_server_says(tmp_path: Path, policy: PolicyTable, code: str) -> None:
    room = Room(tmp_path, policies={"b": policy}, bits=24)
    got = go(room)
    assert got.sites == ("a", "c", "d")
    assert got.dropped["b"].endswith(f"({code})") or code == "too_few_sites"
    assert room.trained == ["a", "c", "d"]


def test_two_sites_need_the_consent_of_both(tmp_path: Path) -> None:
    yes = PolicyTable(allow_two_sites=True)
    for consent, sites in (({"a": yes}, 0), ({"a": yes, "b": yes}, 2)):
        folder = tmp_path / str(sites)
        folder.mkdir()
        room = Room(folder, names=("a", "b"), policies=consent)
        assert len(go(room, quorum=2).sites) == sites


def test_sites_that_were_given_other_models_refuse_each_other(room: Room) -> None:
    """The server signs nothing: it is the digest in the terms that the sites hold it to."""
    room.cohort.ask(plan(), room.names)
    hand = room.halves["a"]._hand
    assert hand is not None
    told = Plan.FromString(hand.plan.SerializeToString())
    told.hyper = '{"lr": 5.0}'
    (room.folder / "a" / f"{RUN}.json").unlink()
    room.restart("a")
    said, work = room.halves["a"].begin(told, PARTS, SUMS)
    assert said.refused.code == "secure_refused"
    assert not work
    assert "another global model" in room.logs["a"][-1]


def test_a_metric_that_a_site_lacks_counts_as_zeros_and_one_that_nobody_named_stays(room: Room) -> None:
    zeros = np.zeros(SIZE, "<f4")
    room.results["a"] = result(zeros, 5, train_loss=(1.0, 1.0), train_secret=(7.0,))
    got = go(room)
    assert got.sums["train/loss"].tolist() == [4.0, 7.0]
    assert got.sums["valid/loss"].tolist() == [1.5, 3.0]
    assert "train/secret" not in got.sums
    assert (
        "metric 'train/secret' is not among those that the sites told when they came; it stays here" in room.logs["a"]
    )


def test_metrics_of_two_shapes_are_left_out_with_a_warning(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.sums["a"] = (("train/loss", (2, BINS)), ("valid/loss", (2,)))
    room.cohort = room.server(1)
    got = go(room)
    assert list(got.sums) == ["valid/loss"]
    assert got.warnings[0] == "metric 'train/loss' has shapes [(2,), (2, 1024)] at different sites; left out"


def test_a_metric_of_fewer_sites_than_the_threshold_is_not_summed(tmp_path: Path) -> None:
    """Zeros of the others would hide nothing."""
    room = Room(tmp_path)
    room.sums = {site: (("train/loss", (2,)),) for site in "ab"}
    room.cohort = room.server(1)
    got = go(room)
    assert list(got.sums) == ["train/loss"]
    assert got.warnings == (
        "metric 'valid/loss' is of 2 of the sites only, and no sum over fewer than 3 is opened; left out",
    )
    assert go(room, 3, kind="evaluate", split="valid").void == "too few sites have valid rows for a sum to be opened"


def test_an_evaluation_that_was_being_opened_is_done_again_under_another_number(room: Room) -> None:
    for site in room.names:
        room.results[site] = Result(examples=4)
    assert go(room, 3, kind="evaluate", split="test").void is None
    room.cohort = room.server(2)
    assert go(room, 3, kind="evaluate", split="test").void is None


def test_without_rows_anywhere_nothing_is_asked(tmp_path: Path) -> None:
    room = Room(tmp_path)
    room.sums = dict.fromkeys(room.names, (("train/loss", (2,)),))
    room.cohort = room.server(1)
    assert go(room, 3, kind="evaluate", split="test").void == "too few sites have test rows for a sum to be opened"
    assert room.trained == []


def test_an_update_that_is_not_finite_stops_at_its_site(room: Room) -> None:
    """The server learns that somebody gave nothing, from the sum."""
    delta = np.zeros(SIZE, "<f4")
    delta[17] = np.nan
    room.results["a"] = result(delta, 5)
    got = go(room)
    assert (got.sites, dict(got.dropped), got.examples, got.share) == (room.names, {}, 90, 0.75)
    np.testing.assert_allclose(got.mean["delta"], mean(room, "bcd"), atol=1e-6)
    assert got.sums["train/loss"].tolist() == [3.0, 6.0]
    assert got.warnings == ("1 of 4 sites gave nothing, which ones is not known; their logs say why",)
    assert "part 'delta' has nan at 17" in room.logs["a"][-1]
    assert not [line for line in room.told if "nan" in line or "a is out" in line]


def test_what_belongs_to_a_committed_round_is_forgotten(room: Room) -> None:
    go(room)
    assert all(half._hand is not None for half in room.halves.values())
    for half in room.halves.values():
        half.committed(1)
    assert all(half._hand is None for half in room.halves.values())
