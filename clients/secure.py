"""A site's half of secure aggregation in a run: between the session, which it tells what to say, and the training.

It lives in the light process, with the site's keys: the app's code runs in another one, which gives floats, rows and
sums, and gets nothing back. May be called from two threads: that of the session and that of the training.
"""

import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from numpy.typing import NDArray

from clients import policy
from clients.failures import LINES, Failure
from clients.past import Remembered
from clients.sitefile import PolicyTable
from clients.sitefolder import SiteFolder
from hansa.records import Part
from hansa.roster import Roster
from hansa.wire.link_pb2 import Plan, Result, Secure, SiteFrame
from hansa.wire.link_pb2 import Refused as RefusedFrame
from hansa.wire.secure import plan_digest, purpose_of
from privacy.scalars import whole
from privacy.secagg.agreement import Expected
from privacy.secagg.errors import Refused
from privacy.secagg.keystream import Keystream, fastest
from privacy.secagg.quantise import Update, quantise
from privacy.secagg.site import Site
from privacy.secagg.terms import Terms
from privacy.secure import COUNTERS


@dataclass(frozen=True)
class Ground:
    """What the attempts of a run stand on at a site.

    Args:
        run: its id.
        site: the site's name.
        key: by which it signs.
        roster: the consortium's, as it is pinned here.
        policy: what the site asks of them.
        past: what it remembers.
        note: adds a line to the audit file; what cannot be noted is not done.
        say: writes a line to the site's log.
        stream: how masks are made.
        random: so many bytes.
        coins: 32 bytes from which an update to a plan is rounded, never twice the same.
    """

    run: str
    site: str
    key: Ed25519PrivateKey = field(repr=False)
    roster: Roster
    policy: PolicyTable
    past: Remembered
    note: Callable[..., None]
    say: Callable[[str], None]
    stream: Keystream
    random: Callable[[int], bytes] = os.urandom
    coins: Callable[[Plan], bytes] = lambda plan: os.urandom(32)


def ground_of(folder: SiteFolder, run: str, note: Callable[..., None], say: Callable[[str], None]) -> Ground:
    """What a site's folder has for a run.

    Raises:
        UserError: what the site remembers of the run cannot be read.
    """
    past, policy = Remembered(folder.path / "secure", run), folder.file.policy
    stream = fastest(time.perf_counter)
    return Ground(run, folder.name, folder.sign_key, folder.roster, policy, past, note, say, stream)


@dataclass
class _Hand:
    """The plan in hand."""

    plan: Plan
    terms: Terms | None = None  # of the attempt, if this site agrees to them
    site: Site | None = None  # in the attempt
    said: dict[str, SiteFrame] = field(default_factory=dict)  # in the attempt, by step
    delivered: bool = False  # the shares of the others are here
    masking: bool = False  # the update is on its way
    update: Update | None = None  # outlives an attempt
    memory: str = ""  # version of what was staged with it


class SecureHalf:
    """See the module.

    Args:
        ground: see Ground.
    """

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self._lock = threading.RLock()
        self._hand: _Hand | None = None
        self._left_out: set[str] = set()  # metrics that were told to be so

    def begin(self, plan: Plan, parts: Mapping[str, Part]) -> tuple[SiteFrame, bool]:
        """A plan with terms has come, perhaps again: what to say, and whether it must be trained.

        Args:
            plan: with its vectors' digests.
            parts: what the strategy uploads.
        """
        with self._lock:
            if self._hand is None or self._hand.plan.id != plan.id:
                self._forget()
                self._hand = _Hand(plan)
            hand = self._hand
            if hand.plan.attempt != plan.attempt or "advertise" not in hand.said:
                hand.plan, hand.site, hand.terms, hand.said = plan, None, None, {}
                hand.delivered = hand.masking = False
                hand.said["advertise"] = self._advertise(hand, parts)
            return hand.said["advertise"], hand.terms is not None and not _fits(hand.update, hand.terms)

    def hear(self, message: Secure) -> SiteFrame | None:
        """A step of the attempt in hand: what to say. A step that was taken is answered as it was."""
        with self._lock:
            hand = self._hand
            if hand is None or hand.site is None or message.attempt != hand.plan.attempt:
                return None
            if message.step in hand.said or (message.step == "mask" and hand.delivered):
                return hand.said.get(message.step)
            try:
                data = self._step(hand, hand.site, message.step, list(message.messages))
            except (Refused, OSError) as error:
                return self._out(hand, message.step, error)
            if data is not None:
                hand.said[message.step] = _said(hand, message.step, data)
            return hand.said.get(message.step)

    def take(self, plan: Plan, result: Result, parts: Mapping[str, Part], upload: Path) -> None:
        """What the training process answered becomes whole numbers, unless another plan has come.

        Args:
            plan: that it answered.
            result: its floats, if they are few.
            parts: the order of its floats; integers follow.
            upload: the file of its floats, if they are many.

        Raises:
            NotSummable: they cannot be summed.
        """
        with self._lock:
            hand = self._hand
            if hand is None or hand.plan.id != plan.id or hand.terms is None:
                return
            terms = hand.terms
        data = _data(result, upload)
        vectors, at = {}, 0
        for name, part in parts.items() if terms.parts else ():
            vectors[name], at = np.frombuffer(data, "<f4", part.size, at), at + 4 * part.size
        counters = np.frombuffer(data, "u1")[at:].view("<i8").astype(np.int64)
        sums = self._sums(terms, result, counters)
        update = quantise(terms, vectors, result.examples, sums, self.ground.coins(plan), self.ground.stream)
        with self._lock:
            hand.update, hand.memory = update, result.memory

    def may_mask(self) -> bool:
        """Whether the update may be masked now; true once an attempt, for whoever asks first."""
        with self._lock:
            hand = self._hand
            ready = hand is not None and hand.delivered and not hand.masking
            if hand is None or not ready or hand.terms is None or not _fits(hand.update, hand.terms):
                return False
            hand.masking = True
            return True

    def mask(self, file: Path, inline: int) -> tuple[SiteFrame, bool] | None:
        """The update under masks: in the frame, or in the file if it is larger than `inline` bytes. None: too late.

        Returns:
            The frame, and whether the file must be uploaded before it is sent.
        """
        with self._lock:
            hand = self._hand
            if hand is None or hand.site is None or hand.update is None:
                return None
            site, update, memory, plan = hand.site, hand.update, hand.memory, hand.plan
            try:
                pieces = site.mask(update)
            except Refused as error:
                return self._out(hand, "mask", error), False
        frame = SiteFrame(result=Result(plan=plan.attempt, round=plan.round, memory=memory))
        if large := update.words.nbytes + update.scalars.nbytes > inline:
            with open(file, "wb") as out:
                out.writelines(pieces)
        else:
            data = b"".join(pieces)
            frame.result.upload.data, frame.result.upload.size = data, len(data)
        return frame, large

    def sent(self, frame: SiteFrame) -> None:
        """The masked update is with the server: the frame says so, and will say so again."""
        with self._lock:
            if self._hand is not None and self._hand.plan.attempt == frame.result.plan:
                self._hand.said["mask"] = frame

    def committed(self, round: int) -> None:
        """A round of training is committed: what belongs to it is forgotten."""
        with self._lock:
            if self._hand is not None and self._hand.plan.kind == "train" and self._hand.plan.round <= round:
                self._forget()

    def _forget(self) -> None:
        if self._hand is not None and self._hand.site is not None:
            self._hand.site.erase()
        self._hand = None

    def _advertise(self, hand: _Hand, parts: Mapping[str, Part]) -> SiteFrame:
        ground, plan = self.ground, hand.plan
        purpose, floor = purpose_of(plan), ground.policy
        expected = Expected(
            plan_digest(plan), parts if plan.kind == "train" else {}, floor.min_sites, floor.allow_two_sites
        )
        past = ground.past.of(purpose)
        try:
            site = Site(
                ground.site, ground.key, ground.roster, plan.terms, expected, past, ground.random, ground.stream
            )
            policy.check_terms(floor, site.terms)
            if plan.kind == "train" and site.terms.round != plan.round:
                raise Refused("advertise", None, f"terms of round {site.terms.round} for a plan of {plan.round}")
            advert = site.advertise()
            ground.past.put(site.past)
        except policy.Refused as error:
            self._note(hand, error.code, error.detail)
            return SiteFrame(refused=RefusedFrame(plan=plan.id, code=error.code, line=str(error)))
        except (Refused, OSError) as error:
            return self._out(hand, "advertise", error)
        hand.site, hand.terms = site, site.terms
        return _said(hand, "advertise", advert)

    def _step(self, hand: _Hand, site: Site, step: str, messages: list[bytes]) -> bytes | None:
        match step:
            case "share":
                return site.share(messages)
            case "mask":
                site.receive(b"".join(messages))
                hand.delivered = True
                return None
            case "sign":
                return site.sign(b"".join(messages))
            case "unmask":
                return self._unmask(hand, site, messages)
        raise Refused("advertise", None, "a step that there is not; are both ends of one version of hansa?")

    def _unmask(self, hand: _Hand, site: Site, consents: list[bytes]) -> bytes:
        opening, terms = site.unmask(consents), site.terms
        self.ground.past.put(site.past)
        facts = {"round": terms.round, "purpose": terms.purpose, "attempt": hand.plan.attempt}
        self.ground.note(self.ground.run, "opened", **facts, sites=len(site.summed), threshold=terms.threshold)
        return opening

    def _out(self, hand: _Hand, step: str, error: Exception) -> SiteFrame:
        """This site takes no further part in the attempt."""
        code = Failure.SECURE
        frame = SiteFrame(refused=RefusedFrame(plan=hand.plan.attempt, code=code, line=LINES[code]))
        hand.site, hand.said = None, {"advertise": frame}
        self._note(hand, step, str(error))
        return frame

    def _note(self, hand: _Hand, what: str, why: str) -> None:
        self.ground.say(f"round {hand.plan.round}: {why}")
        facts = {"round": hand.plan.round, "purpose": purpose_of(hand.plan), "attempt": hand.plan.attempt}
        self.ground.note(self.ground.run, "refused", **facts, code=what, detail=why)

    def _sums(self, terms: Terms, result: Result, counters: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
        """The sums that the terms name: zeros for those that the site has not; those that they do not name stay."""
        given = {one.name: np.array(one.values) for one in result.sums}
        found: dict[str, NDArray[np.int64]] = {}
        for scalar in terms.scalars:
            if scalar.name == COUNTERS:
                found[scalar.name] = counters
                continue
            values = given.pop(scalar.name, np.zeros(scalar.size))
            numbers = whole(values, len(terms.sites)) if len(values) == scalar.size else None
            if numbers is None:
                self._say_once(scalar.name, "is of another shape, not finite or too large; zeros go in its place")
            found[scalar.name] = np.zeros(scalar.size, np.int64) if numbers is None else numbers
        for name in given:
            self._say_once(name, "is not among those that the sites told when they came; it stays here")
        return found

    def _say_once(self, name: str, what: str) -> None:
        if name not in self._left_out:
            self._left_out.add(name)
            self.ground.say(f"metric {name!r} {what}")


def _said(hand: _Hand, step: str, data: bytes) -> SiteFrame:
    return SiteFrame(secure=Secure(attempt=hand.plan.attempt, step=step, messages=[data]))


def _fits(update: Update | None, terms: Terms) -> bool:
    return update is not None and update.form == terms.form and update.sites >= len(terms.sites)


def _data(result: Result, upload: Path) -> Any:
    """The bytes of an unmasked upload."""
    if result.upload.data or not upload.exists():
        return result.upload.data
    with open(upload, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
