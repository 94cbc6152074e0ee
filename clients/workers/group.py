"""A site's worker group, as the light process that holds the session sees it: W ranks that stay for the whole run.

Each rank is a `clients.workers.serve` process that waits for orders on a socket of its own, never in a collective. All
get the same order, and rank 0's answer counts. When one dies, hangs, or fails where others may wait for it, all are
ended, and a new generation does the work again, with a store of its own; it goes on at the last step that all kept.
"""

import hashlib
import math
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from clients.child import ChildDied, ChildFailed, Ready
from clients.failures import Failure
from clients.sitefile import SiteTrainingTable
from clients.workers.ground import Ground, Rank
from clients.workers.rank import Answer, Event
from hansa.records import Part
from hansa.wire.link_pb2 import Plan, Result

T = TypeVar("T")

LOOK = 0.2  # seconds between two looks at the ranks
GRACE = 10.0  # seconds that ranks have to say what one has said already
MOMENT = 1.0  # seconds in which one that brought about another's error by its death is found dead
FAILED: Answer = ({"failed": Failure.DIED}, b"")  # of one that said nothing
STEPS = "steps"  # the folder in the spool for what ranks keep of a plan in hand


class Lost(Exception):
    """The group is of no use any more; `code` tells the server why, if it cannot be made anew."""

    def __init__(self, code: Failure, why: str) -> None:
        super().__init__(why)
        self.code = code


class Group:
    """A worker group. Its processes die with the thread that makes it, which must be the one that calls `work`.

    Args:
        app: the folder of the admitted app.
        site: the site's folder.
        run: the run's id.
        spool: the run's folder, where ranks keep where they are.
        training: for how long ranks may be silent, how often they are started, what they keep.
        say: writes a line to the site's log.
        ground: where ranks are started.
        sums: whether rank 0 is to find out which metric sums the site can give.

    Raises:
        ChildFailed: the app or the site's settings cannot be used, or no group comes to be.
    """

    def __init__(
        self,
        app: Path,
        site: Path,
        run: str,
        spool: Path,
        training: SiteTrainingTable,
        say: Callable[[str], None],
        ground: Ground,
        sums: bool = False,
    ) -> None:
        self._first = {"app": str(app), "site": str(site), "run": run, "sums": sums, "limit": training.heartbeat}
        self._site, self._steps, self._training, self._say, self._ground = site, spool / STEPS, training, say, ground
        self._fate = threading.Lock()  # of the ranks: `kill` may come from another thread
        self._ranks: list[Rank] = []
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._killed, self._whole = False, False
        self.generation = 0
        try:
            found = self._persistent(self._started)
        except BaseException:
            self.stop()
            raise
        parts = {name: Part(size, weight) for name, size, weight in found["parts"]}
        sums_found = tuple((name, tuple(shape)) for name, shape in found["sums"])
        self.ready = Ready(**{**found, "parts": parts, "sums": sums_found})

    def work(self, plan: Plan, files: Mapping[str, Path], upload: Path) -> Result:
        """Does a plan; its upload, if it has one, is in the result, or if it is large in the file afterwards.

        Raises:
            ChildDied: it was killed.
            ChildFailed: it takes no part, or died again and again.
        """
        frame = plan.SerializeToString(deterministic=True)
        told = {name: self._named(path) for name, path in files.items()}

        def once() -> Result:
            whole = self._whole and all(rank.alive for rank in self._ranks)
            if not whole or self._ground.more(len(self._ranks)):
                self._started()
            upload.unlink(missing_ok=True)
            # A machine that was lost may still have a rank, which must not write what another one's answer is about.
            mine = upload.with_name(f"{upload.name}-{secrets.token_hex(4)}")
            # Noise is never drawn twice from one key: what died may have begun to use it.
            key = secrets.token_hex(32)
            order = {"files": told, "upload": self._named(mine), "key": key, **self._kept(frame)}
            result = Result.FromString(self._asked(order, frame))
            if mine.exists():
                mine.replace(upload)
            return result

        try:
            return self._persistent(once)
        finally:
            for left in upload.parent.glob(f"{upload.name}-*"):
                left.unlink(missing_ok=True)
            if not self._killed:
                shutil.rmtree(self._steps, ignore_errors=True)

    @property
    def pids(self) -> list[int]:
        """The ranks' processes, each on its machine."""
        return [rank.pid for rank in self._ranks]

    @property
    def dead(self) -> bool:
        """Whether it was killed. What else happens to it, it mends."""
        return self._killed

    def kill(self) -> None:
        """Ends what it does at once; may be called from any thread, and `work` raises ChildDied."""
        with self._fate:
            self._killed = True
            for rank in self._ranks:
                rank.kill()

    def stop(self) -> None:
        """Ends it at once: between plans it has nothing to lose, and what it was doing is no longer wanted."""
        self.kill()
        self._end()

    def _persistent(self, act: Callable[[], T]) -> T:
        """Does something, and again when the group is lost over it."""
        for left in range(self._training.max_restarts, -1, -1):
            try:
                return act()
            except Lost as lost:
                self._say(f"training, generation {self.generation}: {lost}; " + ("again" if left else "given up"))
                self._end()
                if self._killed:
                    raise ChildDied from None
                code = lost.code
            except ChildFailed:
                if not self._whole:  # others may wait for the one that failed
                    self._end()
                raise
        raise ChildFailed(code)

    def _started(self) -> dict[str, Any]:
        """Starts the next generation; what rank 0 has found."""
        self._end()
        self._spawn()
        deadline = time.monotonic() + self._training.start_timeout
        head, others = self._ranks[0], self._ranks[1:]
        hello = {**self._first, "world": len(self._ranks), "host": head.host}
        head.tell({**hello, "rank": 0, "local": head.local})
        if others:  # rank 0 opens the store, on a port that its system chooses
            port, _ = self._answers([head], {}, deadline)[0]
            self._check({0: (port, b"")})
            for rank in others:
                rank.tell({**hello, "rank": rank.number, "local": rank.local, **port})
        answers = self._answers(self._ranks, {}, deadline)
        self._check(answers)
        self._whole = True
        return answers[0][0]

    def _spawn(self) -> None:
        world = self._ground.gather(lambda: self._killed)
        with self._fate:
            if self._killed:
                raise ChildDied
            self.generation, self._events = self.generation + 1, SimpleQueue()
            try:
                for number in range(world):
                    self._ranks.append(self._ground.start(number, self._events.put))
            except OSError as error:  # no memory, or no process, to be had
                raise Lost(Failure.DIED, f"rank {number} cannot be started: {error.strerror}") from error

    def _asked(self, order: Mapping[str, Any], frame: bytes) -> bytes:
        """Gives all ranks an order; what rank 0 answers."""
        for rank in self._ranks:
            rank.tell(order, frame)
        answers: dict[int, Answer] = {}
        try:
            self._answers(self._ranks, answers, None)
            if "failed" in answers.get(0, FAILED)[0]:
                self._check(answers)
        except Lost as lost:
            if "failed" in answers.get(0, FAILED)[0]:
                raise
            self._say(f"training, generation {self.generation}: {lost}; rank 0 had answered")
        self._whole = len(answers) == len(self._ranks) and not any("failed" in said for said, _ in answers.values())
        return answers[0][1]

    def _answers(self, ranks: Sequence[Rank], answers: dict[int, Answer], deadline: float | None) -> dict[int, Answer]:
        """Fills in an answer of each of some ranks: of all of them, or of those that gave one soon after the first.

        Args:
            ranks: that were asked.
            answers: to be filled, also with what comes before the group is lost.
            deadline: of a start, in which rank 0's answer is not enough; None: there is none.

        Raises:
            Lost: a rank has died or hangs, or the deadline is over.
        """
        looked, last = time.monotonic(), math.inf
        while len(answers) < len(ranks) and looked < last:
            with suppress(Empty):
                number, answer = self._events.get(timeout=LOOK)
                if answer is None:
                    raise Lost(Failure.DIED, f"rank {number} has died")
                answers[number] = answer
                if "failed" in answer[0] or (number == 0 and deadline is None):
                    error = answer[0].get("failed") == Failure.TRAINING
                    last = min(last, time.monotonic() + (MOMENT if error else GRACE))
            late, looked = time.monotonic() - looked - LOOK, time.monotonic()
            self._look(ranks, late)
            if deadline is not None and looked > deadline:
                raise Lost(Failure.DIED, f"not started within {self._training.start_timeout:g} s")
        return answers

    def _look(self, ranks: Sequence[Rank], late: float) -> None:
        """Looks whether ranks live. Where we come late, by so many seconds, it was our process that was held up."""
        for rank in ranks:
            if not rank.alive:
                raise Lost(Failure.DIED, f"rank {rank.number} has died")
            if late > LOOK:
                rank.excused(late)
            if rank.hangs:
                raise Lost(Failure.DIED, f"rank {rank.number} hangs: silent for {self._training.heartbeat:g} s")

    def _check(self, answers: Mapping[int, Answer]) -> None:
        """Nothing, if no rank failed.

        Raises:
            ChildFailed: what a rank said it would say again: of the app, the settings, the rows.
            Lost: an error in a rank, which may be another's doing.
        """
        failed = {number: Failure(said["failed"]) for number, (said, _) in sorted(answers.items()) if "failed" in said}
        for number, code in failed.items():
            if code == Failure.TRAINING and len(self._ranks) > 1:
                raise Lost(code, f"an error in rank {number}")
        if failed:
            sits_out = set(failed.values()) == {Failure.SITS_OUT} and len(failed) == len(self._ranks)
            self._whole = self._whole and (sits_out or len(self._ranks) == 1)
            raise ChildFailed(next(iter(failed.values())))

    def _kept(self, frame: bytes) -> dict[str, Any]:
        """Where the ranks keep how far they are with a plan; what is there of another is removed."""
        if not self._training.checkpoint_interval:
            return {"steps": None}
        name = hashlib.sha256(b"%d " % len(self._ranks) + frame).hexdigest()  # each rank's part is one of so many
        self._steps.mkdir(mode=0o700, parents=True, exist_ok=True)
        for other in self._steps.iterdir():
            if other.name != name:
                shutil.rmtree(other)
        (folder := self._steps / name).mkdir(mode=0o700, exist_ok=True)
        return {"steps": self._named(folder)}

    def _named(self, path: Path) -> str:
        """A path as ranks are told it: from the site's folder on, which another machine may have elsewhere."""
        return str(path.relative_to(self._site) if path.is_relative_to(self._site) else path)

    def _end(self) -> None:
        """Ends all ranks, whatever they do."""
        with self._fate:
            ranks, self._ranks, self._whole = self._ranks, [], False
        for rank in ranks:
            rank.kill()
        for rank in ranks:
            rank.bury()
