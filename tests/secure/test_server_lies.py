"""A server that keeps to the protocol's form, and would learn of single sites from what it asks."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clients.past import Remembered, Start
from clients.sitefile import PolicyTable
from hansa.codec import plan_vectors, to_plan
from hansa.errors import UserError
from hansa.records import Plan
from hansa.wire.link_pb2 import Plan as PlanFrame
from hansa.wire.link_pb2 import Secure as SecureFrame
from hansa.wire.link_pb2 import SiteFrame
from hansa.wire.secure import plan_digest
from privacy.secagg.coordinator import Coordinator
from privacy.secagg.errors import Refused
from privacy.secagg.keystream import Keystream
from privacy.secagg.terms import Scalars, roster_digest
from privacy.secagg.total import Total
from privacy.secure import Secure
from server.cohort import Rule
from tests.secure.room import PARTS, RUN, SIZE, SUMS, Room, plan, result

TRAIN, VALID, TEST = Scalars("train/loss", 2), Scalars("valid/loss", 2), Scalars("test/loss", 2)


class Turned(Exception):
    """A site does not go on: its name and what its log says."""


class Server:
    """Asks what it likes.

    Args:
        room: with the real sites.
    """

    def __init__(self, room: Room) -> None:
        self.room, self.trained, self.epoch = room, list[str](), 1

    def ask(
        self,
        of: Plan,
        sites: str,
        scalars: Iterable[Scalars] = (TRAIN,),
        *,
        id: str = "p",
        survivors: str = "",
        **changes: Any,
    ) -> Total:
        """One attempt, from the terms to the sum."""
        room, self.epoch = self.room, self.epoch + 1
        name, coordinator = f"{id}.{self.epoch}", None
        for site in sites:
            frame = self.frame(of, id, site, tuple(sites), scalars, **changes)
            frame.attempt = name
            coordinator = coordinator or Coordinator(self.terms, room.roster, Keystream())
            said, work = room.halves[site].begin(frame, PARTS, room.sums.get(site, SUMS))
            coordinator.advertise(site, self.message(site, said))
            if work:
                self.trained.append(site)
                room.halves[site].take(frame, *room.answer(site))
        assert coordinator is not None
        adverts, uploads = coordinator.adverts(), {}
        for site in sites:
            coordinator.share(site, self.tell(site, name, "share", adverts))
        for site, delivery in coordinator.deliveries().items():
            room.halves[site].hear(SecureFrame(attempt=name, step="mask", messages=[delivery]))
            if not room.halves[site].may_mask():
                raise Turned(f"{site}: nothing to mask")
            found = room.halves[site].mask(room.folder / "masked", 1 << 30)
            assert found is not None
            uploads[site] = found[0].result
        there = survivors or sites
        for site in there:
            coordinator.add(site, uploads[site].upload.data)
        message = coordinator.survivors()
        for site in there:
            coordinator.sign(site, self.tell(site, name, "sign", [message]))
        consents = coordinator.consents()
        for site in there:
            coordinator.unmask(site, self.tell(site, name, "unmask", consents))
        return coordinator.total()

    def frame(
        self, of: Plan, id: str, site: str, sites: tuple[str, ...], scalars: Iterable[Scalars], **changes: Any
    ) -> PlanFrame:
        frame = to_plan(of, id, site)
        for name, vector in plan_vectors(of.broadcast).items():
            frame.vectors.add(name=name, size=vector.nbytes, data=bytes(vector))
        known = roster_digest(self.room.roster, sites)
        told = Secure(self.room.table, PARTS, 0)
        terms = told.terms(of, sites, scalars, epoch=self.epoch, attempt=1, roster=known, model=plan_digest(frame))
        self.terms = replace(terms, **changes)
        frame.terms = self.terms.to_bytes()
        return frame

    def tell(self, site: str, attempt: str, step: str, messages: Iterable[bytes]) -> bytes:
        return self.message(
            site, self.room.halves[site].hear(SecureFrame(attempt=attempt, step=step, messages=messages))
        )

    def message(self, site: str, said: SiteFrame | None) -> bytes:
        if said is None or said.HasField("refused"):
            raise Turned(f"{site}: {self.room.logs[site][-1]}")
        return said.secure.messages[0]


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


@pytest.fixture
def server(room: Room) -> Server:
    return Server(room)


@pytest.mark.parametrize("round", [1, 2])
def test_an_update_is_of_one_plan_alone(server: Server, round: int) -> None:
    """The same name, another model, and in the second case another round: it is trained anew, or nothing is given."""
    server.ask(plan(1), "abcd", survivors="abcd" if round == 2 else "abc")
    assert server.trained == list("abcd")
    if round == 2:
        server.ask(plan(2), "abcd")
        assert server.trained == list("abcdabcd")
    else:  # the first site refuses another sum of that round
        with pytest.raises(Turned, match="helped to open round 1 already"):
            server.ask(replace(plan(1), broadcast=plan(2).broadcast), "abcd")


def test_an_update_that_comes_too_late_for_its_plan_is_dropped(room: Room, server: Server) -> None:
    """The training of one plan ends when another of the same name is in hand."""
    half, frames = room.halves["a"], [server.frame(plan(r), "p", "a", room.names, [TRAIN]) for r in (1, 2)]
    for number, frame in enumerate(frames):
        frame.attempt = f"p.{number}"
        half.begin(frame, PARTS, SUMS)
    half.take(frames[0], *room.answer("a"))
    assert half._hand is not None
    assert half._hand.update is None
    half.absent(frames[0], "no rows")
    assert half._hand.update is None


@pytest.mark.parametrize(
    ("kind", "split"), [("train", "test"), ("train", "x"), ("statistics", "valid"), ("evaluate", "train")]
)
def test_there_are_three_purposes(room: Room, server: Server, kind: str, split: str) -> None:
    with pytest.raises(Turned, match=f"a plan to {kind} on {split} rows, which there is not"):
        server.ask(plan(1, kind, split), "abcd")
    assert not (room.folder / "a" / f"{RUN}.json").exists()


def test_a_metric_that_too_few_sites_have_is_not_opened(room: Room, server: Server) -> None:
    room.sums = {site: (("train/loss", (2,)),) for site in "abc"}
    with pytest.raises(Refused, match="metric 'valid/loss' is of 1 of the sites only, and 3 are needed"):
        server.ask(plan(1), "abcd", [TRAIN, VALID])


def test_a_server_that_passes_it_over_is_refused_by_the_sites(
    room: Room, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("privacy.secagg.coordinator.check_held", lambda *all_: None)
    room.sums = {site: (("train/loss", (2,)),) for site in "abc"}
    with pytest.raises(Turned, match=r"a: .* metric 'valid/loss' is of 1 of the sites only, and 3 are needed"):
        server.ask(plan(1), "abcd", [TRAIN, VALID])


def test_a_metric_of_another_size_is_not_had(room: Room, server: Server) -> None:
    with pytest.raises(Refused, match="metric 'train/loss' is of 0 of the sites"):
        server.ask(plan(1), "abcd", [Scalars("train/loss", 3)])


def test_a_metric_of_a_model_of_its_own_is_had_by_sites_that_have_one(room: Room, server: Server) -> None:
    own = ("valid/personal_loss", (2,))
    room.sums = dict.fromkeys(room.names, (*SUMS, own))
    with pytest.raises(Refused, match="metric 'valid/personal_loss' is of 0 of the sites"):
        server.ask(plan(1), "abcd", [TRAIN, Scalars(own[0], 2)])


def test_where_a_holder_goes_a_metric_goes_too(tmp_path: Path) -> None:
    """Three of four have it, and one of them is gone after the plan: the second attempt is without it."""
    room = Room(tmp_path, sums={"d": (("train/loss", (2,)),)})
    room.cohort = room.server(1)

    def goes(site: str, asked: str) -> None:
        if (site, asked) == ("c", "plan"):
            room.away.add("c")
            room.cohort.gone.setdefault("c", 0.0)

    room.before = goes
    room.cohort.ask(plan(), room.names)
    got = room.cohort.collect(Rule(3))
    assert got.sites == ("a", "b", "d")
    assert list(got.sums) == ["train/loss"]


def test_all_may_fail_but_none_in_the_open(room: Room, server: Server) -> None:
    """Zeros at weight 0, and how many there are of them, is all that the sum says."""
    bad = np.full(SIZE, np.inf, "<f4")
    for site in "ab":
        room.results[site] = result(bad, 999)
    total = server.ask(plan(1), "abcd")
    assert (total.absent, total.present, total.rows, total.heavy) == (2, 2, 70, 0)
    assert [len(line) for line in (room.logs["c"], room.logs["d"])] == [1, 1]  # of a metric that is left out


def test_a_sum_to_which_too_few_gave_does_not_count(room: Room) -> None:
    for site in "ab":
        room.results[site] = result(np.full(SIZE, np.nan, "<f4"), 5)
    room.cohort.ask(plan(), room.names)
    got = room.cohort.collect(Rule(3))
    assert got.void == "2 of 4 sites gave something, which ones is not known, and no sum over fewer than 3 counts"
    assert (got.mean, got.sums, dict(got.dropped), got.sites) == ({}, {}, {}, ())


@pytest.mark.parametrize("unit", ["site", "record"])
def test_of_a_site_that_is_protected_as_a_whole_not_even_that_it_gave_nothing_is_told(room: Room, unit: str) -> None:
    """The server adds noise to a sum in which all weigh what is public."""
    dp = {"unit": unit, "noise_multiplier": 1.0, "delta": 1e-5, "clip": 1.0, "rounds": 3, "weights": {"a": 40, "b": 2}}
    server, of = Server(room), replace(plan(1), hyper={"dp": dp})
    room.results["a"] = result(np.full(SIZE, np.nan, "<f4"), 40)
    total = server.ask(of, "abcd")
    assert (total.absent, total.rows) == ((0, 130) if unit == "site" else (1, 90))


def test_a_result_does_not_say_whether_memory_was_staged(room: Room, server: Server) -> None:
    room.results["a"].memory = ""
    seen: list[str] = []
    room.twist = lambda site, frame: seen.append(frame.result.memory) if frame.HasField("result") else None
    room.cohort.ask(plan(), room.names)
    room.cohort.collect(Rule(3))
    assert seen == [""] * 4


# memory


def started(of: Plan, **starts: str) -> Plan:
    return replace(of, memory=starts)


def test_a_site_starts_from_what_it_staged_last_or_from_its_base(room: Room, server: Server) -> None:
    first, second = plan(1), plan(2)
    server.ask(first, "abcd")
    for wrong in ("000001-0000000000000000", "000002-00"):
        with pytest.raises(Turned, match="a start from version"):
            server.ask(started(second, **dict.fromkeys("abcd", wrong)), "abcd")
    server.ask(started(second, **dict.fromkeys("abcd", first.version)), "abcd")
    assert room.halves["a"].ground.past.start == Start(second.version, first.version, first.version)
    with pytest.raises(Turned, match="a start from version ''"):
        server.ask(plan(3), "abcd")
    server.ask(started(plan(3), **dict.fromkeys("abcd", first.version)), "abcd")  # round 2 was void


def test_what_a_site_starts_from_is_in_the_terms_and_lies_where_it_was_staged(room: Room, server: Server) -> None:
    """One that staged nothing in a round starts from what it had, by that round's name."""
    server.ask(plan(1), "abcd")
    half = room.halves["a"]
    half.ground = replace(half.ground, staged=lambda version: version != plan(2).version)
    one, two = dict.fromkeys("abcd", plan(1).version), dict.fromkeys("abcd", plan(2).version)
    server.ask(started(plan(2), **one), "abcd")
    frame = server.frame(started(plan(3), **two), "q", "a", room.names, [TRAIN])
    frame.attempt, frame.memory = "q.1", "another"
    half.begin(frame, PARTS, SUMS)
    assert half.start(frame) == plan(1).version


def test_who_starts_otherwise_gives_nothing(room: Room, server: Server) -> None:
    """Else a server lets a, b and c spoil what they keep, and has d's update as the sum of all."""
    server.ask(plan(1), "abc")
    total = server.ask(started(plan(2), **dict.fromkeys("abc", plan(1).version)), "abcd")
    assert (total.sites, total.absent, total.rows) == (room.names, 1, 60)
    assert "fewer sites than a sum needs start from the same memory" in room.logs["d"][-1]
    total = server.ask(started(plan(3), **dict.fromkeys("abcd", plan(2).version)), "abcd")
    assert (total.absent, total.rows) == (0, 100)


def test_survivors_that_start_alike_are_enough(tmp_path: Path) -> None:
    """Of six that start in two ways, either three are enough; with one of them gone they are not."""
    room = Room(tmp_path, names=tuple("abcdef"))
    server = Server(room)
    server.ask(plan(1), "abc")
    two = started(plan(2), **dict.fromkeys("abc", plan(1).version))
    with pytest.raises(Turned, match="survivors of which fewer than 3 start as this site does"):
        server.ask(two, "abcdef", survivors="abcde")


# the same again, over others


@pytest.mark.parametrize(("kind", "split"), [("train", "valid"), ("evaluate", "test")])
def test_a_sum_of_the_same_model_over_one_site_less_is_not_opened(server: Server, kind: str, split: str) -> None:
    scalars = [TEST] if kind == "evaluate" else [TRAIN]
    server.ask(plan(1, kind, split), "abcd", scalars)
    again = replace(plan(2, kind, split), broadcast=plan(1).broadcast)
    with pytest.raises(Turned, match="a sum of the same model as before, but for d"):
        server.ask(again, "abcd", scalars, survivors="abc")
    with pytest.raises(Turned, match="a sum of the same model as before, but for d"):
        server.ask(replace(again, round=3), "abc", scalars)
    server.ask(replace(again, round=4), "abcd", scalars)


def test_evaluations_are_as_few_as_rounds_of_training(server: Server) -> None:
    server.ask(plan(1), "abcd")
    for number in range(1, 6):
        server.ask(plan(number, "evaluate", "test"), "abcd", [TEST])
    with pytest.raises(Turned, match="more evaluations than the run's rounds of training allow"):
        server.ask(plan(6, "evaluate", "test"), "abcd", [TEST])


def test_an_evaluation_of_a_round_far_ahead_is_refused(server: Server) -> None:
    """It would burn all numbers below."""
    with pytest.raises(Turned, match="round 4294967295 of 100"):
        server.ask(plan(1, "evaluate", "test"), "abcd", [TEST], round=2**32 - 1)


def test_neither_weights_nor_how_many_are_heavy_come_of_an_evaluation(server: Server) -> None:
    server.ask(plan(1, "evaluate", "test"), "abcd", [TEST])
    assert server.terms.scalar_places.keys() == {"rows", "absent", "sum test/loss"}
    with pytest.raises(Turned, match="max_weight = 7"):
        server.ask(plan(2, "evaluate", "test"), "abcd", [TEST], rows=7)


def test_pairs_of_a_larger_consortium_open_nothing(tmp_path: Path) -> None:
    room = Room(tmp_path, names=tuple("abc"), policies=dict.fromkeys("abc", PolicyTable(allow_two_sites=True)))
    with pytest.raises(Turned, match="2 of 2 sites, of which 3 are needed"):
        Server(room).ask(plan(1), "ab")


# what a site remembers


def test_without_what_the_audit_file_knows_a_site_sits_the_run_out(room: Room, server: Server) -> None:
    server.ask(plan(1), "abcd")
    file = room.folder / "a" / f"{RUN}.json"
    first = file.read_bytes()
    server.ask(plan(2), "abcd")
    Remembered(room.folder / "a", RUN, room.said.text, {"train-valid": 2})
    file.write_bytes(first)
    with pytest.raises(UserError, match="the audit file knows of sums"):
        Remembered(room.folder / "a", RUN, room.said.text, {"train-valid": 2})
    file.unlink()
    with pytest.raises(UserError, match="the audit file knows of sums"):
        Remembered(room.folder / "a", RUN, room.said.text, {"train-valid": 2})


def test_a_run_does_not_change_its_app(room: Room, server: Server) -> None:
    """federation.toml is not in an app's digest: at another invitation it could say something else."""
    server.ask(plan(1), "abcd")
    with pytest.raises(UserError, match="this run began with another"):
        Remembered(room.folder / "a", RUN, replace(room.said, rounds=9).text)


def test_what_is_remembered_is_read_as_it_was_written(room: Room, server: Server) -> None:
    server.ask(plan(1), "abcd")
    past = room.halves["a"].ground.past
    assert Remembered(room.folder / "a", RUN, room.said.text).memo == past.memo
    said: Mapping[str, Any] = json.loads(past.path.read_bytes())
    assert [one["sites"] for one in said["sums"]["train-valid"]] == [list("abcd")]
