"""A site's half of secure aggregation in a run: between the session, which it tells what to say, and the training.

It lives in the light process, with the site's keys: the app's code runs in another one, which gives floats, rows and
sums, and gets nothing back. May be called from two threads: that of the session and that of the training.
"""

import threading
from collections.abc import Mapping
from pathlib import Path

from clients import steps
from clients.ground import Ground
from clients.hand import Hand
from clients.rounding import Rounding, Shapes, weight_of_zeros
from hansa.records import Part
from hansa.wire.link_pb2 import Plan, Result, Secure, SiteFrame
from privacy.secagg.errors import Refused
from privacy.secagg.quantise import NotSummable, nothing
from privacy.secagg.terms import Terms


class SecureHalf:
    """See the module.

    Args:
        ground: see Ground.
    """

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self._rounding = Rounding(ground)
        self._lock = threading.RLock()
        self._hand: Hand | None = None

    def begin(self, plan: Plan, parts: Mapping[str, Part], sums: Shapes) -> tuple[SiteFrame, bool]:
        """A plan with terms has come, perhaps again: what to say, and whether it must be trained.

        Args:
            plan: with its vectors' digests.
            parts: what the strategy uploads.
            sums: the metric sums that the site has.
        """
        with self._lock:
            if self._hand is None or not self._hand.of(plan):
                self._forget()
                self._hand = Hand(plan)
            hand = self._hand
            if hand.plan.attempt != plan.attempt or "advertise" not in hand.said:
                hand.turn_to(plan)
                hand.said["advertise"] = steps.advertise(self.ground, hand, parts, sums)
            return hand.said["advertise"], hand.terms is not None and not hand.trained

    def hear(self, message: Secure) -> SiteFrame | None:
        """A step of the attempt in hand: what to say. A step that was taken is answered as it was."""
        with self._lock:
            if self._hand is None or message.attempt != self._hand.plan.attempt:
                return None
            return steps.answer(self.ground, self._hand, message)

    def start(self, plan: Plan) -> str:
        """The version of memory that a plan starts from here: as the terms say it, which all sites have signed."""
        with self._lock:
            agreed = self._agreed(plan)
            return "" if agreed is None else self.ground.held(agreed[1].start(self.ground.site)) or ""

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
            if (agreed := self._agreed(plan)) is None:
                return
            hand, terms = agreed
            alike = hand.alike
        if not alike:
            return self.absent(plan, "fewer sites than a sum needs start from the same memory as this one")
        try:
            update = self._rounding.update(plan, terms, result, parts, upload)
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
            if (agreed := self._agreed(plan)) is None:
                return
            hand, terms = agreed
            hand.update = nothing(terms, weight_of_zeros(plan, self.ground.site))
        self.ground.say(f"round {plan.round}: this site gives nothing, and the server does not learn it: {why}")

    def may_mask(self) -> bool:
        """Whether the update may be masked now; true once an attempt, for whoever asks first."""
        with self._lock:
            hand = self._hand
            if hand is None or not hand.delivered or hand.masking or not hand.trained:
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
                return steps.leave(self.ground, hand, "mask", error), False
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

    def _agreed(self, plan: Plan) -> tuple[Hand, Terms] | None:
        """What is in hand, if it is this plan and the site agrees to its terms."""
        hand = self._hand
        return None if hand is None or hand.terms is None or not hand.of(plan) else (hand, hand.terms)
