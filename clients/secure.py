"""A site's half of secure aggregation in a run: between the session, which it tells what to say, and the training.

It lives in the light process, with the site's keys: the app's code runs in another one, which gives floats, rows and
sums, and gets nothing back. May be called from two threads: that of the session and that of the training.
"""

import json
import math
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
from clients.audit import AUDIT, OPENED, opened_in
from clients.failures import LINES, Failure
from clients.past import Remembered, Start, Sum
from clients.policy import Said
from clients.sitefile import PolicyTable
from clients.sitefolder import SiteFolder
from hansa.errors import UserError
from hansa.records import Part
from hansa.roster import Roster
from hansa.wire.link_pb2 import Plan, Result, Secure, SiteFrame
from hansa.wire.link_pb2 import Refused as RefusedFrame
from hansa.wire.secure import PURPOSES, has, model_digest, plan_digest, purpose_of, version_of
from privacy.dp.terms import terms_in, weight_of
from privacy.scalars import whole
from privacy.secagg.agreement import Expected
from privacy.secagg.errors import Refused
from privacy.secagg.keystream import Keystream, fastest
from privacy.secagg.quantise import NotSummable, Update, nothing, quantise
from privacy.secagg.site import Site
from privacy.secagg.terms import Terms
from privacy.secure import COUNTERS

Shapes = tuple[tuple[str, tuple[int, ...]], ...]  # of metric sums, by name
MORE = 4  # evaluations of one kind beyond the rounds of training in a run; a run has one, and one for each new start


@dataclass(frozen=True)
class Ground:
    """What the attempts of a run stand on at a site.

    Args:
        run: its id.
        site: the site's name.
        key: by which it signs.
        roster: the consortium's, as it is pinned here.
        policy: what the site asks of them.
        said: what the admitted app's federation.toml says of them.
        past: what it remembers.
        note: adds a line to the audit file; what cannot be noted is not done.
        say: writes a line to the site's log.
        stream: how masks are made.
        staged: whether memory of a version lies here.
        random: so many bytes.
        coins: 32 bytes from which an update to a plan is rounded, never twice the same.
    """

    run: str
    site: str
    key: Ed25519PrivateKey = field(repr=False)
    roster: Roster
    policy: PolicyTable
    said: Said
    past: Remembered
    note: Callable[..., None]
    say: Callable[[str], None]
    stream: Keystream
    staged: Callable[[str], bool]
    random: Callable[[int], bytes] = os.urandom
    coins: Callable[[Plan], bytes] = lambda plan: os.urandom(32)


def ground_of(
    folder: SiteFolder, said: Said, run: str, note: Callable[..., None], say: Callable[[str], None]
) -> Ground:
    """What a site's folder has for a run.

    Raises:
        UserError: what the site remembers of the run cannot be read, or is not all of it.
    """
    past = Remembered(folder.path / "secure", run, said.text, opened_in(folder.path / AUDIT, run))
    memory = folder.path / "memory" / run

    def staged(version: str) -> bool:
        return (memory / f"{version}.safetensors").is_file()

    who = run, folder.name, folder.sign_key, folder.roster, folder.file.policy
    return Ground(*who, said, past, note, say, fastest(time.perf_counter), staged)


@dataclass
class _Hand:
    """The plan in hand."""

    plan: Plan
    terms: Terms | None = None  # of the attempt, if this site agrees to them
    site: Site | None = None  # in the attempt
    alike: bool = True  # whether enough sites start as this one does for it to give anything
    said: dict[str, SiteFrame] = field(default_factory=dict)  # in the attempt, by step
    delivered: bool = False  # the shares of the others are here
    masking: bool = False  # the update is on its way
    update: Update | None = None  # outlives an attempt


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

    def begin(self, plan: Plan, parts: Mapping[str, Part], sums: Shapes) -> tuple[SiteFrame, bool]:
        """A plan with terms has come, perhaps again: what to say, and whether it must be trained.

        Args:
            plan: with its vectors' digests.
            parts: what the strategy uploads.
            sums: the metric sums that the site has.
        """
        with self._lock:
            if self._hand is None or not _same(self._hand.plan, plan):
                self._forget()
                self._hand = _Hand(plan)
            hand = self._hand
            if hand.plan.attempt != plan.attempt or "advertise" not in hand.said:
                hand.plan, hand.site, hand.terms, hand.said = plan, None, None, {}
                hand.delivered = hand.masking = False
                hand.said["advertise"] = self._advertise(hand, parts, sums)
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

    def start(self, plan: Plan) -> str:
        """The version of memory that a plan starts from here: as the terms say it, which all sites have signed."""
        with self._lock:
            hand = self._hand
            if hand is None or hand.terms is None or not _same(hand.plan, plan):
                return ""
            return self._held(hand.terms.start(self.ground.site)) or ""

    def take(self, plan: Plan, result: Result, parts: Mapping[str, Part], upload: Path) -> None:
        """What the training process answered becomes whole numbers, unless another plan has come.

        What cannot be summed, and what would be summed with too few that start alike, becomes nothing.

        Args:
            plan: that it answered.
            result: its floats, if they are few.
            parts: the order of its floats; integers follow.
            upload: the file of its floats, if they are many.
        """
        with self._lock:
            hand = self._hand
            if hand is None or hand.terms is None or not _same(hand.plan, plan):
                return
            terms, alike = hand.terms, hand.alike
        if not alike:
            return self.absent(plan, "fewer sites than a sum needs start from the same memory as this one")
        try:
            update = self._quantised(plan, terms, result, parts, upload)
        except NotSummable as error:
            return self.absent(plan, str(error))
        with self._lock:
            hand.update = update

    def absent(self, plan: Plan, why: str) -> None:
        """This site has nothing to give to a plan whose keys are out: zeros go in its place, and nobody learns it.

        Where differential privacy protects the site as a whole, they go at its public weight, and are not counted.

        Args:
            plan: which it cannot answer.
            why: for the site's own log.
        """
        with self._lock:
            hand = self._hand
            if hand is None or hand.terms is None or not _same(hand.plan, plan):
                return
            hand.update = nothing(hand.terms, _public_weight(plan, self.ground.site))
        self.ground.say(f"round {plan.round}: this site gives nothing, and the server does not learn it: {why}")

    def _quantised(self, plan: Plan, terms: Terms, result: Result, parts: Mapping[str, Part], upload: Path) -> Update:
        data = _data(result, upload)
        vectors, at = {}, 0
        for name, part in parts.items() if terms.parts else ():
            vectors[name], at = np.frombuffer(data, "<f4", part.size, at), at + 4 * part.size
        counters = np.frombuffer(data, "u1")[at:].view("<i8").astype(np.int64)
        sums = self._sums(terms, result, counters)
        return quantise(terms, vectors, result.examples, sums, self.ground.coins(plan), self.ground.stream)

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
            site, update, plan = hand.site, hand.update, hand.plan
            try:
                pieces = site.mask(update)
            except Refused as error:
                return self._out(hand, "mask", error), False
        frame = SiteFrame(result=Result(plan=plan.attempt, round=plan.round))
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

    def _advertise(self, hand: _Hand, parts: Mapping[str, Part], sums: Shapes) -> SiteFrame:
        ground, plan, members = self.ground, hand.plan, len(self.ground.roster.sites)
        purpose, floor, train = purpose_of(plan), ground.policy, plan.kind == "train"
        pair = policy.is_pair(floor, members)
        expected = Expected(plan_digest(plan), parts if train else {}, floor.min_sites, pair)
        past = ground.past.of(purpose)
        try:
            if purpose not in PURPOSES:
                raise Refused("advertise", None, f"a plan to {plan.kind} on {plan.split} rows, which there is not")
            site = Site(
                ground.site, ground.key, ground.roster, plan.terms, expected, past, ground.random, ground.stream
            )
            policy.check_terms(floor, site.terms, ground.said, members)
            if train and site.terms.round != plan.round:
                raise Refused("advertise", None, f"terms of round {site.terms.round} for a plan of {plan.round}")
            base = site.terms.start(ground.site)
            if (held := self._held(base)) is None:
                raise Refused(
                    "advertise", None, f"a start from version {base!r}, and this site has {ground.past.start}"
                )
            if not train and len(ground.past.sums(purpose)) >= ground.past.of("train-valid").answered + MORE:
                raise Refused("advertise", None, "more evaluations than the run's rounds of training allow")
            advert = site.advertise(_metrics(site.terms, plan, base, sums))
            ground.past.put(site.past, Start(version_of(plan), base, held) if train else None)
        except policy.Refused as error:
            self._note(hand, error.code, error.detail)
            return SiteFrame(refused=RefusedFrame(plan=plan.id, code=error.code, line=str(error)))
        except (Refused, OSError) as error:
            return self._out(hand, "advertise", error)
        hand.site, hand.terms, hand.alike = site, site.terms, bool(site.alike)
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
                consent = site.sign(b"".join(messages))
                self._check_sum(hand.plan, site)
                return consent
            case "unmask":
                return self._unmask(hand, site, messages)
        raise Refused("advertise", None, "a step that there is not; are both ends of one version of hansa?")

    def _held(self, version: str) -> str | None:
        """Where the memory of a version lies, of the two from which this site may be asked to start; None: of no such.

        A round in which it gave nothing staged nothing: what was there before counts on, by the round's name.
        """
        start = self.ground.past.start
        if version == start.version and version:
            return version if self.ground.staged(version) else start.held
        return start.held if version == start.base else None

    def _check_sum(self, plan: Plan, site: Site) -> None:
        """Raises Refused if the sum, beside one of the same model that was opened, says too much of few sites."""
        model, least = model_digest(plan), self.ground.policy.min_sites
        for former in self.ground.past.sums(purpose_of(plan)):
            others = sorted(set(site.summed) ^ set(former.sites))
            if former.model == model and others and (plan.kind == "evaluate" or len(others) < least):
                raise Refused("sign", None, f"a sum of the same model as before, but for {', '.join(others)}")

    def _unmask(self, hand: _Hand, site: Site, consents: list[bytes]) -> bytes:
        opening, terms = site.unmask(consents), site.terms
        self.ground.past.put(site.past, opened=Sum(model_digest(hand.plan), site.summed))
        facts = {"round": terms.round, "purpose": terms.purpose, "attempt": hand.plan.attempt}
        self.ground.note(self.ground.run, OPENED, **facts, sites=len(site.summed), threshold=terms.threshold)
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


def _same(one: Plan, other: Plan) -> bool:
    """Whether a plan has come again, perhaps for another attempt: an update belongs to one plan alone."""
    return one.id == other.id and plan_digest(one) == plan_digest(other)


def _metrics(terms: Terms, plan: Plan, start: str, sums: Shapes) -> list[int]:
    """Which of the terms' metric sums a site has that starts from a version of memory; by their places."""
    sizes = {name: math.prod(shape) for name, shape in sums if has(name, start)}
    if plan.kind == "train":
        sizes |= {scalar.name: scalar.size for scalar in terms.scalars if scalar.name == COUNTERS}
    return [at for at, one in enumerate(terms.scalars) if sizes.get(one.name) == one.size]


def _public_weight(plan: Plan, site: str) -> int | None:
    """Of a site that is protected as a whole: the server adds noise to a sum in which it reckons with that weight."""
    try:
        terms = terms_in(json.loads(plan.hyper))
        return weight_of(terms, site) if terms is not None and terms.unit == "site" else None
    except (UserError, ValueError, TypeError, RecursionError):
        return None  # no terms that anybody could train by


def _fits(update: Update | None, terms: Terms) -> bool:
    return update is not None and update.form == terms.form and update.sites >= len(terms.sites)


def _data(result: Result, upload: Path) -> Any:
    """The bytes of an unmasked upload."""
    if result.upload.data or not upload.exists():
        return result.upload.data
    with open(upload, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
