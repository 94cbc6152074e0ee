"""The deployed sites of a run as a cohort that is summed under secure aggregation: what comes of a plan is a sum."""

import math
import mmap
import queue
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hansa.codec import from_refused, from_result, to_plan
from hansa.errors import UserError
from hansa.layout import Layout
from hansa.metrics import is_sums
from hansa.records import Aggregate
from hansa.roster import Roster
from hansa.wire.link_pb2 import Plan as PlanFrame
from hansa.wire.link_pb2 import Secure as SecureFrame
from hansa.wire.link_pb2 import ServerFrame
from hansa.wire.secure import has, plan_digest
from privacy.secagg.errors import Refused
from privacy.secagg.keystream import Keystream
from privacy.secagg.messages import Header
from privacy.secagg.packing import packed
from privacy.secagg.terms import Scalars, Terms, roster_digest
from privacy.secure import Secure, purpose
from server.arrivals import Answered, Arrival, Declined, Joined, Left, Said, Shapes, Spoiled
from server.cohort import Rule
from server.deployed import REJOIN, LinkedCohort
from server.link import Links
from server.secureround import Attempt
from server.securesum import aggregate_of, of_few, too_few, unopened
from server.transcript import Transcript

STEP = 10.0  # seconds for a step of small messages
AGAIN = 60.0  # seconds that a second attempt gets at the least
ATTEMPTS = 2
LONGEST, MOST = 200, 256  # bytes of a metric's name, metrics of a site


@dataclass(frozen=True)
class Ground:
    """What the attempts of a run stand on.

    Args:
        secure: how its updates are summed.
        roster: the consortium's.
        epoch: of this start of the run.
        transcript: of the run.
        stream: how masks are made.
    """

    secure: Secure
    roster: Roster
    epoch: int
    transcript: Transcript
    stream: Keystream


class SecureCohort(LinkedCohort):
    """Sites over the link, of which the server learns sums only.

    A step of an attempt ends when all who may speak have; when those that have not are gone for `rejoin` seconds and
    enough have; or at its deadline. An attempt that fails before its sum is asked for is made once more, with what the
    sites have trained. After that the round is void, and so is one that an earlier start had begun to open.

    Args:
        links: the sessions.
        sites: all sites of the federation.
        ground: see Ground.
        layout: of the shared model.
        deadline: seconds from the plan to the last upload.
        rejoin: seconds.
        say: gets a line about a site that left or came, or that is out of an attempt.
        machines: seconds that a round waits for a site that waits for its own machines.
    """

    def __init__(
        self,
        links: Links,
        sites: Sequence[str],
        ground: Ground,
        layout: Layout,
        deadline: float,
        rejoin: float = REJOIN,
        say: Callable[[str], None] = print,
        machines: float = 0.0,
    ) -> None:
        super().__init__(links, sites, ground.secure.parts, layout, deadline, rejoin, say, machines)
        self.ground = ground
        self.told: dict[str, Shapes] = {}  # the sites' metric sums
        self.attempt: Attempt | None = None

    def collect(self, rule: Rule) -> Aggregate:
        """Takes the sites through the attempt, and through a second one if need be; what the sum says."""
        while self.attempt is not None:
            if (left := self._patience(rule)) <= 0:
                self._close(self.attempt, rule)
                continue
            try:
                self._take(self.links.events.get(timeout=min(left, 1.0)))
            except queue.Empty:
                continue
        self.links.retire(self.id)
        return self.outcome

    # attempts

    def _open(self, common: PlanFrame) -> None:
        self._catch_up()
        self.links.expect(self.id, 0, 0)  # nothing comes without masks
        self.declined: dict[str, str] = {}  # sites that take no part in the plan
        self.warnings: list[str] = []
        self.alike, self.shapes = common, self._shapes(self.waiting)
        said = to_plan(self.plan, self.id, "")
        said.MergeFrom(common)
        self.digest = plan_digest(said)
        opened = self.ground.transcript.opened(purpose(self.plan))
        if self.plan.kind == "evaluate" and not self.shapes:
            self.outcome = self._void(f"too few sites have {self.plan.split} rows for a sum to be opened")
            if not self.warnings:  # if none has such rows, there is nothing to tell
                self.outcome = replace(self.outcome, warnings=())
        elif self.plan.kind == "train" and self.plan.round <= opened:
            self.outcome = self._void("its sum was being opened when the server ended, and none is opened twice")
        else:
            # What is evaluated is not drawn anew, so that another number hides nothing: it may be asked again.
            self.number = max(self.plan.round, opened + 1)
            self._begin(1)

    def _begin(self, number: int) -> None:
        ground, asked = self.ground, tuple(self.waiting)
        scalars = [Scalars(name, math.prod(shape)) for name, shape in self.shapes.items()]
        terms = ground.secure.terms(
            self.plan,
            asked,
            scalars,
            epoch=ground.epoch,
            attempt=number,
            roster=roster_digest(ground.roster, asked),
            model=self.digest,
        )
        terms = replace(terms, round=self.number)
        self.attempt = Attempt(f"{self.id}.{ground.epoch}.{number}", terms, ground.roster, ground.stream)
        for site, why in self.declined.items():
            self.attempt.lose(site, why)
        self.links.expect(self.attempt.name, 0, 0, _upload(terms))
        common = PlanFrame(terms=terms.to_bytes(), attempt=self.attempt.name)
        common.MergeFrom(self.alike)
        self.common = ServerFrame(plan=common).SerializeToString()
        self.until = time.monotonic() + STEP
        self._send_all([site for site in self.waiting if site not in self.declined])

    def _patience(self, rule: Rule) -> float:
        assert self.attempt is not None
        attempt, now = self.attempt, time.monotonic()
        least = self._least(attempt, rule)
        if attempt.step == "mask" and self._put_off(attempt.awaited):
            self.until = self.ends
        if not attempt.awaited or not attempt.possible(least):
            return 0.0
        left = self.until - now
        if len(attempt.spoke[attempt.step]) >= least and all(site in self.gone for site in attempt.awaited):
            left = min(left, max(self.gone[site] for site in attempt.awaited) + self.rejoin - now)
        return left

    def _least(self, attempt: Attempt, rule: Rule) -> int:
        """Sites that must speak in the step: a sum that will not count is not opened."""
        return max(attempt.terms.threshold, rule.quorum) if attempt.step == "mask" else attempt.terms.threshold

    def _close(self, attempt: Attempt, rule: Rule) -> None:
        """Ends the step, and begins the next."""
        there, least, step = len(attempt.spoke[attempt.step]), self._least(attempt, rule), attempt.step
        for site in sorted(attempt.awaited):
            self._lose(attempt, site, f"{'not connected' if site in self.gone else 'no word in time'} ({step})")
        try:
            if step == "mask" and there < least:
                return self._failed(attempt, too_few(there, len(self.waiting), least))
            messages = attempt.close()
            if step == "sign":
                self.ground.transcript.note(attempt)
            if attempt.total is not None:
                return self._sum_up(attempt, rule)
        except Refused as refused:
            return self._failed(attempt, str(refused))
        self.until = self.ends if attempt.step == "mask" else time.monotonic() + STEP
        for site, secure in messages.items():
            self._tell(site, secure)

    def _failed(self, attempt: Attempt, why: str) -> None:
        """Another attempt, if there may be one and enough sites are left."""
        left = len(self.waiting) - len(self.declined)
        self.links.retire(attempt.name)
        if attempt.step == "unmask" or attempt.terms.attempt == ATTEMPTS or left < attempt.terms.threshold:
            self.outcome, self.attempt = self._void(why, attempt), None
            return
        self._note(f"attempt {attempt.terms.attempt} has failed ({why}); another begins")
        self.ends = max(self.ends, time.monotonic() + AGAIN)
        if attempt.step == "advertise" and len(there := attempt.spoke["advertise"]) >= attempt.terms.threshold:
            still = self._shapes(there)  # a metric of too few of these is why
            self.shapes = {name: shape for name, shape in self.shapes.items() if name in still}
        self._begin(attempt.terms.attempt + 1)

    def _sum_up(self, attempt: Attempt, rule: Rule) -> None:
        assert attempt.total is not None
        dropped, secure = self._dropped(attempt, attempt.total.sites), self.ground.secure
        said = self.shapes, len(self.sites), dropped, self.warnings, rule.quorum
        self.outcome = aggregate_of(attempt.total, self.plan, secure, *said)
        self.links.retire(attempt.name)
        self.attempt = None

    def _void(self, why: str, attempt: Attempt | None = None) -> Aggregate:
        return unopened(self.plan, why, self._dropped(attempt, ()), self.warnings)

    def _dropped(self, attempt: Attempt | None, summed: Sequence[str]) -> dict[str, str]:
        out = {**(attempt.out if attempt else {}), **self.declined}
        return {site: out[site] for site in self.waiting if site in out and site not in summed}

    # what comes

    def _take(self, arrival: Arrival) -> None:
        attempt = self.attempt
        match arrival:
            case Joined(site=site):
                self.told[site] = arrival.sums
                self._joined(arrival)
                if attempt and site in self.waiting and site not in attempt.out:
                    self._send_again(attempt, site)
            case Left():
                self._left(arrival)
            case Said(site=site, secure=said) if attempt and said.attempt == attempt.name:
                if len(said.messages) != 1 or said.step == "mask":
                    self._lose(attempt, site, "a message of another form; are both ends of one version of hansa?")
                elif why := attempt.hear(site, said.step, said.messages[0]):
                    self._note(f"{site} is out: {why}")
            case Answered(site=site) if attempt and arrival.result.plan == attempt.name:
                self._add(attempt, arrival)
            case Declined(site=site, refused=refused) if refused.plan == self.id and attempt:
                self.declined[site] = from_refused(refused, site).reason
                self._lose(attempt, site, self.declined[site])
            case Declined(site=site, refused=refused) if attempt and refused.plan == attempt.name:
                self._lose(attempt, site, from_refused(refused, site).reason)
            case Spoiled(site=site, plan=plan) if attempt and plan in (self.id, attempt.name):
                self._lose(attempt, site, arrival.problem)
            case _:
                pass  # to a plan or an attempt that is over

    def _send_again(self, attempt: Attempt, site: str) -> None:
        if self._send(site) and (last := attempt.last.get(site)):
            self._tell(site, last)

    def _add(self, attempt: Attempt, answered: Answered) -> None:
        """An update under masks."""
        site, upload = answered.site, answered.upload
        try:
            from_result(answered.result, site, None, {}, 0)
        except UserError as error:
            return self._lose(attempt, site, str(error))
        if upload is None:
            return self._lose(attempt, site, "an answer without an update")
        if why := attempt.hear(site, "mask", _bytes(upload)):
            self._note(f"{site} is out: {why}")

    def _lose(self, attempt: Attempt, site: str, why: str) -> None:
        if site not in attempt.out:
            self._note(f"{site} is out: {why}")
        attempt.lose(site, why)

    def _catch_up(self) -> None:
        """Who has come and gone since the last round, and which sums they can give."""
        while True:
            try:
                self._take(self.links.events.get_nowait())
            except queue.Empty:
                return

    def _tell(self, site: str, secure: SecureFrame) -> None:
        self.links.send(site, ServerFrame(secure=secure))

    def _note(self, line: str) -> None:
        self.say(f"round {self.plan.round}, {purpose(self.plan)}, secure aggregation: {line}")

    def _shapes(self, sites: Collection[str]) -> Mapping[str, tuple[int, ...]]:
        """The metric sums of the plan: those that enough of some sites have. A site that lacks one sends zeros."""
        kinds = ("train", "dp", self.plan.split) if self.plan.kind == "train" else (self.plan.split,)
        found: dict[str, set[tuple[int, ...]]] = {}
        holders: Counter[str] = Counter()
        least = self.ground.secure.table.least(len(self.waiting))
        for site in sites:
            for name, shape in dict(self.told.get(site, ())[:MOST]).items():
                known = name.partition("/")[0] in kinds and len(name.encode()) <= LONGEST and is_sums(shape)
                if known and has(name, self.plan.memory.get(site, "")):
                    found.setdefault(name, set()).add(shape)
                    holders[name] += 1
        for name, shapes in sorted(found.items()):
            if holders[name] < least:
                self.warnings.append(of_few(name, holders[name], least))
                del found[name]
            elif len(shapes) > 1:
                self.warnings.append(f"metric {name!r} has shapes {sorted(shapes)} at different sites; left out")
        return {name: next(iter(shapes)) for name, shapes in sorted(found.items()) if len(shapes) == 1}


def _bytes(upload: Path | bytes) -> memoryview:
    """An upload, mapped if it is a file, for as long as somebody looks at it."""
    if isinstance(upload, bytes):
        return memoryview(upload)
    with open(upload, "rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


def _upload(terms: Terms) -> int:
    """Bytes of an update under masks."""
    scalars: int = max(place.stop for place in terms.scalar_places.values())
    return Header.SIZE + 8 * scalars + packed(terms.size, terms.bits)
