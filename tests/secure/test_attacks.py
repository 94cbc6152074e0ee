"""A server or a site that lies to the drivers: it is refused, that is noted, and no share leaves.

The table of attacks is in tests/privacy/secagg/test_hostile.py. There are four sites, of which three must take part;
b is lied to, or lies.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from clients.sitefile import PolicyTable
from hansa.wire.link_pb2 import ServerFrame, SiteFrame
from privacy.secagg.messages import Advert, Opening, Survivors
from privacy.secagg.terms import Terms
from server.cohort import Rule
from tests.secure.room import Room, plan

SERVER = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
Messages = Sequence[bytes]
Lie = Callable[[Messages, Messages], Messages]  # of what there is now, and was in the round before: what is told


def terms(**changes: Any) -> Lie:
    """The terms of now, with other facts."""
    return lambda now, before: [replace(Terms.from_bytes(now[0]), **changes).to_bytes()]


def larger_clip(now: Messages, before: Messages) -> Messages:
    said = Terms.from_bytes(now[0])
    return [replace(said, parts=tuple(replace(part, bound=5.0) for part in said.parts)).to_bytes()]


def keys_of_the_server(now: Messages, before: Messages) -> Messages:
    advert = Advert.from_bytes(now[0])
    forged = replace(advert, channel=bytes(range(32)))
    return [replace(forged, signature=SERVER.sign(forged.signed(bytes(32)))).to_bytes(), *now[1:]]


def survivors(*sites: int) -> Lie:
    return lambda now, before: [
        replace(Survivors.from_bytes(now[0]), sites=tuple((site, b"") for site in sites)).to_bytes()
    ]


LIES: dict[str, tuple[str, Lie, str, str]] = {  # step, lie, code and words of the note
    "a lower threshold": ("plan", terms(threshold=2), "advertise", "a threshold of 2 of 4 sites, of which 3"),
    "fewer sites": ("plan", terms(sites=("a", "b", "c")), "advertise", "other keys of the sites than its roster"),
    "a larger clip": ("plan", larger_clip, "clip_too_large", "clipped at 5, max_clip = 0.5"),
    "another model": ("plan", terms(model=bytes(32)), "advertise", "another global model"),
    "an old epoch": ("plan", terms(epoch=0), "advertise", "made before, or is older"),
    "an old round": ("plan", lambda now, before: before, "advertise", "made before, or is older"),
    "another roster": ("plan", terms(roster=bytes(32)), "advertise", "other keys of the sites than its roster"),
    "the server's keys": ("share", keys_of_the_server, "share", "not signed for these terms"),
    "keys of the round before": ("share", lambda now, old: [old[0], *now[1:]], "share", "not signed for these terms"),
    "keys of two sites exchanged": ("share", lambda now, old: [now[0], now[1], now[3], now[3]], "share", "two sets"),
    "too few keys": ("share", lambda now, old: now[:2], "share", "2 of 4 sites, and 3 are needed"),
    "shares of the round before": ("mask", lambda now, old: old, "mask", "of another session"),
    "survivors of the round before": ("sign", lambda now, old: old, "sign", "survivors of another session"),
    "survivors without this site": ("sign", survivors(0, 2, 3), "sign", "survivors without this site"),
    "this site alone": ("sign", survivors(1), "sign", "1 of 4 sites, and 3 are needed"),
    "one that shared nothing": ("sign", survivors(0, 1, 2, 3, 4), "sign", "one that shared nothing"),
    "signatures of the round before": ("unmask", lambda now, old: old, "unmask", "not signed the same survivors"),
    "too few signatures": ("unmask", lambda now, old: now[:2], "unmask", "2 of 4 sites, and 3 are needed"),
    "one signature thrice": ("unmask", lambda now, old: [now[0]] * 3, "unmask", "1 of 4 sites, and 3 are needed"),
}


class Told:
    """What b is told in a round, by step; and how to tell it something else."""

    def __init__(self, room: Room, step: str = "", lie: Lie = lambda now, before: now) -> None:
        self.room, self.step, self.lie, self.said = room, step, lie, dict[str, Messages]()

    def __call__(self, site: str, frame: ServerFrame) -> None:
        if site != "b":
            return
        step = frame.secure.step if frame.HasField("secure") else "plan"
        now = [frame.plan.terms] if step == "plan" else list(frame.secure.messages)
        before, self.said[step] = self.said.get(step, []), now
        told = self.lie(now, before) if step == self.step else now
        if step == "plan":
            frame.plan.terms = told[0]
        else:
            frame.secure.messages[:] = told


def two_rounds(room: Room, step: str, lie: Lie) -> Any:
    """What comes of the second, in which b is lied to; and what b says in it."""
    told, said = Told(room), list[SiteFrame]()
    room.lie = told
    room.cohort.ask(plan(1), room.names)
    assert room.cohort.collect(Rule(3)).sites == room.names
    told.step, told.lie = step, lie
    room.twist = lambda site, frame: said.append(frame) if site == "b" else None
    room.cohort.ask(plan(2), room.names)
    return room.cohort.collect(Rule(3)), said


def noted(room: Room, site: str, what: str) -> list[dict[str, Any]]:
    return [note[2] for note in room.notes if note[:2] == (site, what) and note[2]["round"] == 2]


@pytest.mark.parametrize("name", LIES)
def test_a_lie_of_the_server_is_refused_and_noted_and_no_share_leaves(tmp_path: Path, name: str) -> None:
    step, lie, code, words = LIES[name]
    room = Room(tmp_path, policies={"b": PolicyTable(max_clip=0.5)})
    got, said = two_rounds(room, step, lie)
    (note,) = noted(room, "b", "refused")
    assert note["code"] == code
    assert words in note["detail"]
    assert noted(room, "b", "opened") == []
    assert "unmask" not in [frame.secure.step for frame in said]
    assert said[-1].HasField("refused")
    assert any("b is out" in line for line in room.told)
    assert got.sites == (room.names if step in ("sign", "unmask") else ("a", "c", "d"))  # the others go on


def test_a_step_out_of_order_is_refused_and_noted(tmp_path: Path) -> None:
    room = Room(tmp_path)

    def unmask_first(site: str, frame: ServerFrame) -> None:
        if site == "b" and frame.secure.step == "share":
            frame.secure.step = "unmask"

    room.lie = unmask_first
    room.cohort.ask(plan(2), room.names)
    assert room.cohort.collect(Rule(3)).sites == ("a", "c", "d")
    (note,) = noted(room, "b", "refused")
    assert note["detail"].endswith("out of turn; its next step is share")


def test_survivors_that_are_told_otherwise_open_nothing(tmp_path: Path) -> None:
    """b is shown three survivors where there are four: its signature is of no use, and the server says so."""
    room = Room(tmp_path)
    _, said = two_rounds(room, "sign", survivors(0, 1, 2))
    assert noted(room, "b", "opened") == []
    assert "unmask" not in [frame.secure.step for frame in said]
    assert any("b is out: secure aggregation, sign, site b: it has not signed these survivors" in s for s in room.told)


def test_an_attempt_that_is_over_gets_no_answer(tmp_path: Path) -> None:
    """The first attempt was signed when the second began: what would open it goes unheard."""
    room, late = Room(tmp_path), list[Any]()

    def fails(site: str, asked: str) -> None:
        attempt = room.cohort.attempt
        if asked == "sign" and attempt is not None and attempt.terms.attempt == 1:
            late.append(ServerFrame.FromString(ServerFrame(secure=attempt.last[site]).SerializeToString()).secure)
            room.cohort._lose(attempt, site, "gone")

    room.before = fails
    room.cohort.ask(plan(), room.names)
    got = room.cohort.collect(Rule(3))
    assert got.sites == room.names
    assert len(late) == 4
    assert [half.hear(message) for half, message in zip(room.halves.values(), late, strict=True)] == [None] * 4


def changed_opening(data: bytes) -> bytes:
    opening = Opening.from_bytes(data)
    return replace(opening, seeds=opening.seeds[1:]).to_bytes()


def advert(**changes: Any) -> Callable[[bytes], bytes]:
    return lambda data: replace(Advert.from_bytes(data), **changes).to_bytes()


TWISTS: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {  # step, twist, words
    "keys in another's name": ("advertise", advert(site=0), "in the name of another site"),
    "keys it did not sign": ("advertise", advert(mask=bytes(range(32))), "not signed"),
    "shares that end too early": ("share", lambda data: data[:-1], "ends too early"),
    "a signature of nothing": ("sign", lambda data: data[:-64] + bytes(64), "has not signed these survivors"),
    "fewer shares than asked for": ("unmask", changed_opening, "or of other sites"),
}


@pytest.mark.parametrize("name", TWISTS)
def test_a_lie_of_a_site_puts_it_out_and_is_told(tmp_path: Path, name: str) -> None:
    step, change, words = TWISTS[name]
    room = Room(tmp_path)

    def twist(site: str, frame: SiteFrame) -> None:
        if site == "b" and frame.secure.step == step:
            frame.secure.messages[0] = change(frame.secure.messages[0])

    room.twist = twist
    room.cohort.ask(plan(), room.names)
    got = room.cohort.collect(Rule(3))
    assert any(f"b is out: secure aggregation, {step}, site b: " in line and words in line for line in room.told)
    assert got.sites == (room.names if step in ("sign", "unmask") else ("a", "c", "d"))
