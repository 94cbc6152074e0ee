"""One run at a site: the session held, each plan given to the worker group, which stays for the whole run.

Light, like all that the ClientApp imports: no torch.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from clients import planrules
from clients.bounds import BoundsTable
from clients.child import ChildDied, ChildFailed, Ready
from clients.failures import LINES, Failure
from clients.link import Identity, Invitation, Link, Orphaned, PlanOver, Turned, UploadRefused
from clients.refusals import Reason, Refused
from clients.secure import SecureHalf
from clients.spending import Reserve, Spending
from clients.workers.ground import Ground
from clients.workers.group import Group
from hansa.errors import UserError
from hansa.wire.link_pb2 import Plan, Secure, SiteFrame, Waiting
from hansa.wire.link_pb2 import Refused as RefusedFrame
from hansa.wire.rules import INLINE

SOON = 10.0  # seconds that a group may take to start before the server is told
LOOK = 0.2  # seconds between two looks at the session while the group works
STARTING = Waiting(state="starting")
MAX_DEATHS = 10  # plans of one run over which the group has died for good


class Dropped(Exception):
    """A plan that is no longer wanted: another has come, its deadline has passed, or the run is over."""


class Participant:
    """A site in one run.

    Args:
        invite: makes the invitation, from what the group has found; None: that is not known yet.
        start: starts a worker group.
        identity: the site's certificate and the authority that it trusts.
        spool: folder of this run for vectors and uploads.
        say: writes a line to the site's log.
        bounds: of each plan's numbers.
        secure: the site's half of secure aggregation.
        unmasked: whether plans may be answered without it.
        spending: the site's privacy budget.
        ground: what the group's ranks run on.
    """

    def __init__(
        self,
        invite: Callable[[Ready | None], Invitation],
        start: Callable[[], Group],
        identity: Identity,
        spool: Path,
        say: Callable[[str], None],
        bounds: BoundsTable,
        secure: SecureHalf,
        unmasked: bool,
        spending: Spending,
        ground: Ground,
    ) -> None:
        self.invite, self.start, self.identity, self.spool, self.say = invite, start, identity, spool, say
        self.bounds, self.secure, self.unmasked, self.spending = bounds, secure, unmasked, spending
        self.ground = ground
        self.told: Waiting | None = STARTING  # what the server knows that the site waits for
        self.deaths, self.busy = 0, False
        self.jobs: list[Future[None]] = []  # for the one thread that works
        self.plan: str | None = None  # in hand
        self.answered: tuple[str, SiteFrame] | None = None  # the newest

    def take_part(self) -> str:
        """Takes part until the run is over; how it ended, in a line that may leave the site.

        Raises:
            ChildFailed: the group cannot use the app or the site's settings.
            Turned: the server wants nothing of this site.
        """
        self.spool.mkdir(parents=True, exist_ok=True)
        # The one thread that starts ranks, at first and again, lives as long as the run: they die with the thread.
        with ThreadPoolExecutor(1, "training") as hands:
            starting = hands.submit(self._begin)
            try:
                if (over := self._until(starting)) is not None:
                    return over
                starting.result()
                self.ready = self.group.ready
                with Link(self.invite(self.ready), self.identity, self.spool) as link:
                    return self._follow(link, hands)
            except Orphaned:
                return "the server was gone for too long"
            finally:
                self.plan = None
                self.ground.leave()
                if starting.exception() is None:  # one that is not there yet ends for want of machines, or soon
                    self.group.kill()

    def _begin(self) -> None:
        self.group = self.start()

    def _until(self, starting: Future[None]) -> str | None:
        """Waits for the group. Where that takes long, the server is told, so that it knows the site, and waits for it.

        Returns:
            The server's line, if the run is over meanwhile.
        """
        with suppress(TimeoutError):
            starting.exception(SOON)
            return None
        try:
            with Link(self.invite(None), self.identity, self.spool, waiting=STARTING) as link:
                while not starting.done():
                    self._tell(link, self.ground.waits or STARTING)
                    frame = link.next(LOOK)
                    if frame is not None and frame.HasField("over"):
                        return frame.over.line
        except Turned as turned:
            if turned.code != "layout":  # a server of protocol 1.1 takes nobody who does not know the model
                raise
        return None

    def _follow(self, link: Link, hands: ThreadPoolExecutor) -> str:
        """Answers plans until the run is over. A new plan ends the work on an older one, which came too late."""
        self.told = None
        while True:
            frame = link.next(LOOK if self._works() else None)
            self._tell(link, self.ground.waits)
            for job in [job for job in self.jobs if job.done()]:
                self.jobs.remove(job)
                job.result()  # raises what is our bug
            match frame.WhichOneof("frame") if frame is not None else None:
                case "over":
                    assert frame is not None
                    return frame.over.line
                case "plan":
                    assert frame is not None
                    self._take_up(link, hands, frame.plan)
                case "secure":
                    assert frame is not None
                    self._hear(link, hands, frame.secure)
                case "committed":
                    assert frame is not None
                    self.secure.committed(frame.committed.round)

    def _tell(self, link: Link, waiting: Waiting | None) -> None:
        """Tells the server what the site waits for, where it is news."""
        if waiting != self.told:
            self.told = waiting
            link.wait(waiting)

    def _works(self) -> bool:
        return not all(job.done() for job in self.jobs)

    def _take_up(self, link: Link, hands: ThreadPoolExecutor, plan: Plan) -> None:
        new, work = self.plan != plan.id, True
        if new:
            self._turn_to(plan.id)
        if plan.terms:  # the first words are said while the training goes on
            said, work = self.secure.begin(plan, self.ready.parts, self.ready.sums)
            link.send(said)
        if work and (new or not self._works()):
            self.jobs.append(hands.submit(self._answer, link, plan))

    def _hear(self, link: Link, hands: ThreadPoolExecutor, message: Secure) -> None:
        if (said := self.secure.hear(message)) is not None:
            link.send(said)
        if self.secure.may_mask():
            self.jobs.append(hands.submit(self._mask, link))

    def _turn_to(self, plan: str) -> None:
        """Ends what the group is doing, if it is doing anything."""
        self.plan = plan
        if self.busy:
            self.group.kill()

    def _answer(self, link: Link, plan: Plan) -> None:
        """Answers a plan; one that comes again, by the same answer."""
        if plan.terms:
            return self._answer_masked(link, plan)
        if self.answered is None or self.answered[0] != plan.id:
            try:
                frame = self._frame(link, plan)
            except Dropped:
                return
            assert frame is not None  # it has no terms
            self.answered = plan.id, frame
        link.send(self.answered[1])

    def _answer_masked(self, link: Link, plan: Plan) -> None:
        try:
            frame = self._frame(link, plan)
        except Dropped:
            return
        if frame is None:
            if self.secure.may_mask():
                self._mask(link)
        else:
            link.send(frame)

    def _mask(self, link: Link) -> None:
        """Gives the server what was trained, under masks."""
        file = self.spool / "masked"
        if (found := self.secure.mask(file, INLINE)) is None:
            return
        frame, large = found
        try:
            if large:
                frame.result.upload.CopyFrom(link.upload(frame.result.plan, file))
        except PlanOver:
            return self.say(f"round {frame.result.round}: the attempt was over before the update was there")
        except UploadRefused as refused:
            return self.say(f"round {frame.result.round}: {refused}")
        self.secure.sent(frame)
        link.send(frame)

    def _frame(self, link: Link, plan: Plan) -> SiteFrame | None:
        """What the group answers, or why there is no answer; None: an update that is to be masked."""
        try:
            if not plan.terms and not self.unmasked:
                raise Refused(Reason.UNPROTECTED, f"round {plan.round}: a plan without terms")
            planrules.check_plan(self.bounds, plan.hyper, plan.round)
            with self.spending.reserved(plan, self.ready) as reserve:
                return self._work(link, plan, reserve)
        except ChildDied:
            raise Dropped from None  # nothing else ends it
        except PlanOver:
            self.say(f"round {plan.round}: it was over before this site had answered")
            raise Dropped from None
        except Refused as refused:
            self.say(refused.detail)
            if plan.terms and planrules.tells_rows(refused.code, plan.hyper):
                self.secure.absent(plan, str(refused))
                return None
            return SiteFrame(refused=RefusedFrame(plan=plan.id, code=refused.code, line=str(refused)))
        except ChildFailed as failure:
            code = failure.code
            self.deaths += code == Failure.DIED
        except (UploadRefused, UserError) as error:
            self.say(f"round {plan.round}: {error}")
            code = Failure.SITE
        if plan.terms:  # what rows bring about is not for the server to know
            self.secure.absent(plan, LINES[code])
            return None
        self.say(f"round {plan.round}: {LINES[code]}")
        return SiteFrame(refused=RefusedFrame(plan=plan.id, code=code, line=LINES[code]))

    def _work(self, link: Link, plan: Plan, reserve: Reserve) -> SiteFrame | None:
        upload = self.spool / "upload"
        upload.unlink(missing_ok=True)
        files = link.fetch(plan)
        planrules.check_vectors(plan, files)
        if plan.terms:
            reserve.plan.memory = self.secure.start(plan)
        if self.deaths > MAX_DEATHS:
            raise ChildFailed(Failure.DIED)
        if self.group.dead:
            self.group.stop()
            self.group = self.start()
        self.busy = True
        try:
            if self.plan != plan.id:
                raise Dropped  # another came while this one's vectors did
            result = self.group.work(reserve.plan, files, upload)
        finally:
            self.busy = False
        reserve.left = True  # from here on it may
        if plan.terms:
            try:
                self.secure.take(plan, result, self.ready.parts, upload)
            finally:
                upload.unlink(missing_ok=True)
            return None
        if upload.exists():
            result.upload.CopyFrom(link.upload(plan.id, upload))
        return SiteFrame(result=result)
