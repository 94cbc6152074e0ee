"""A site's end of its session, kept through the loss of connections and servers. Light: no torch, no NumPy.

Nothing of gRPC goes beyond this file.
"""

import collections
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import grpc
from google.protobuf.message import DecodeError

from clients.transfers import Sending, Vectors
from hansa.errors import UserError
from hansa.wire import rules
from hansa.wire.link_pb2 import (
    Beat,
    Blob,
    Bye,
    Fetch,
    Hello,
    Plan,
    ServerFrame,
    SiteFrame,
    Taken,
    Upload,
    Waiting,
    Welcome,
)

T = TypeVar("T")

SHORTEST, LONGEST = 0.05, 0.5  # seconds between two attempts
CODES = grpc.StatusCode


@dataclass(frozen=True)
class Invitation:
    """Where a site dials, and what it says there."""

    address: str  # host:port
    run: str
    epoch: int
    node: int  # Flower's
    layout: str  # digest; empty while nobody at the site knows the model
    strategy: str  # digest, as well
    token: str = field(repr=False)
    sums: tuple[tuple[str, tuple[int, ...]], ...] = ()  # names and shapes of the site's metric sums, if it is to tell


@dataclass(frozen=True)
class Identity:
    """The files with which a site shows who it is (PEM). They are read anew for every connection."""

    ca: Path
    crt: Path
    key: Path
    server_name: str | None = None  # that the server's certificate must bear, where it is not the address

    def channel(self, address: str) -> grpc.Channel:
        """A connection of its own.

        Raises:
            UserError: a file cannot be read.
        """
        try:
            ca, crt, key = (file.read_bytes() for file in (self.ca, self.crt, self.key))
        except OSError as error:
            raise UserError(f"{error.filename}: {error.strerror}; enrol the site to get its certificate") from None
        name = (("grpc.ssl_target_name_override", self.server_name),) if self.server_name else ()
        options = (*rules.KEEPALIVE, ("grpc.use_local_subchannel_pool", 1), *name)
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, crt), options)


class Turned(Exception):
    """The server has turned the site away; the text is one line, fit to print."""

    def __init__(self, code: str, line: str) -> None:
        super().__init__(line)
        self.code = code


class Orphaned(Exception):
    """No server for `orphan_after` seconds; the text says what the last attempt met."""


class Closed(Exception):
    """The session is over: `Over` was read, or `close` was called."""


class UploadRefused(Exception):
    """The server cannot use an upload; one line. The session goes on."""


class PlanOver(Exception):
    """The server holds the plan no longer: its deadline has passed, say. Drop the work; the session goes on."""


class _Bulk:
    """The calls beside the session, on a connection of their own."""

    def __init__(self, channel: grpc.Channel, session: str) -> None:
        self.channel, self._session = channel, session
        self._download = channel.unary_stream(rules.method(rules.DOWNLOAD), Fetch.SerializeToString, None)
        self._have = channel.unary_unary(rules.method(rules.HAVE), Upload.SerializeToString, Taken.FromString)
        self._upload = channel.stream_unary(rules.method(rules.UPLOAD), None, Taken.FromString)

    def download(self, sha256: bytes, offset: int) -> Iterable[bytes]:
        return self._download(Fetch(sha256=sha256, offset=offset), metadata=self._say())

    def have(self, plan: str) -> Taken:
        taken: Taken = self._have(Upload(plan=plan), metadata=self._say())
        return taken

    def upload(self, plan: str, offset: int, chunks: Iterator[bytes]) -> Taken:
        said = ((rules.PLAN_KEY, plan), (rules.OFFSET_KEY, str(offset)))
        taken: Taken = self._upload(chunks, metadata=(*self._say(), *said))
        return taken

    def _say(self) -> tuple[tuple[str, str], ...]:
        return ((rules.SESSION_KEY, self._session),)


class Link:
    """One session, kept through the loss of connections and of servers. All methods may be called from any thread.

        with Link(invitation, identity, spool) as link:
            for frame in link:  # Plan, Secure, Committed; ends after Over
                ...

    A plan that comes again (same id) was lost on the way, or its answer was: answer again. What the server has of an
    upload is not sent twice.

    Args:
        invitation: from the server, by Flower.
        identity: the site's certificate and the one CA that it trusts.
        spool: folder for vectors, each a file under its hash in hex; other names in it are left alone.
        orphan_after: seconds to look for a server before the first Welcome says how long.
        waiting: what the site waits for, if it does.
    """

    def __init__(
        self,
        invitation: Invitation,
        identity: Identity,
        spool: Path,
        orphan_after: float = rules.ORPHAN_AFTER,
        waiting: Waiting | None = None,
    ) -> None:
        self._invitation, self._identity = invitation, identity
        self._vectors = Vectors(spool)
        self._instance = secrets.token_bytes(16)
        self._epoch, self._heartbeat, self._orphan_after = invitation.epoch, rules.HEARTBEAT, orphan_after
        self._turn = threading.Condition()  # guards all below
        self._inbox: collections.deque[ServerFrame] = collections.deque()
        self._outbox: collections.deque[SiteFrame] = collections.deque()
        self._connection = 0  # counts attempts: what belongs to an earlier one stops
        self._call: grpc.Call | None = None
        self._bulk: _Bulk | None = None  # while there is a session
        self._heard = self._contact = time.monotonic()
        self._end: Exception | None = None
        self._waiting = waiting
        self._closing, self._tick = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="link", daemon=True)

    def __enter__(self) -> Self:
        self._heard = self._contact = time.monotonic()
        self._thread.start()
        threading.Thread(target=self._pulse, name="pulse", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def next(self, timeout: float | None = None) -> ServerFrame | None:
        """The next Plan, Secure, Committed or Over; None after `timeout` seconds.

        Raises:
            Turned: the server wants nothing of this site.
            Orphaned: the server is gone.
            Closed: there is nothing to come.
            UserError: the identity cannot be read.
        """
        with self._turn:
            self._turn.wait_for(lambda: self._inbox or self._end, timeout)
            if self._inbox:
                return self._inbox.popleft()
            if self._end:
                raise self._end
            return None

    def __iter__(self) -> Iterator[ServerFrame]:
        """Frames up to Over. Raises as `next` does."""
        while frame := self.next():
            if frame.WhichOneof("frame") == "over":
                return
            yield frame

    def send(self, frame: SiteFrame) -> None:
        """Puts a Result, Secure or Refused on its way: it leaves when there is a session."""
        with self._turn:
            self._outbox.append(frame)
            self._turn.notify_all()

    def wait(self, waiting: Waiting | None) -> None:
        """Tells what the site waits for, or that it waits no longer; after a loss the connection's Hello says it."""
        with self._turn:
            self._waiting = waiting
            self._outbox.append(SiteFrame(waiting=waiting or Waiting()))
            self._turn.notify_all()

    def fetch(self, plan: Plan) -> dict[str, Path]:
        """The plan's vectors by name, as files in the spool: fetched where it has none with that hash, and checked.

        Those that are in the plan itself are left there. Files that neither this plan nor the one before names are
        removed. Raises as `next` does, and

        Raises:
            PlanOver: the server no longer offers a vector.
            UserError: the disk is full.
        """
        beside = [blob for blob in plan.vectors if blob.sha256]
        files = {blob.name: self._fetch(blob) for blob in beside}
        if beside:
            self._vectors.keep({blob.sha256 for blob in beside})
        return files

    def upload(self, plan: str, file: Path) -> Blob:
        """Sends an upload, and says under which hash the server has it; goes on at the byte after a drop.

        Raises as `next` does, and

        Raises:
            UploadRefused: the server cannot use it.
            PlanOver: the server does not wait for it.
        """
        with Sending(file) as sending:
            while not self._beside(lambda bulk: self._push(bulk, plan, sending)):
                pass
            return Blob(sha256=sending.sha256(sending.size), size=sending.size)

    def close(self, line: str = "") -> None:
        """Says Bye with a line, and closes."""
        with self._turn:
            self._outbox.append(SiteFrame(bye=Bye(line=line)))
            self._closing.set()
            self._tick.set()
            self._end = self._end or Closed("the session is closed")
            self._turn.notify_all()
        if self._thread.is_alive():
            self._thread.join(1.0)
        with self._turn:
            if self._call is not None:
                self._call.cancel()  # type: ignore[no-untyped-call]
        self._lose(self._connection)

    # bulk

    def _fetch(self, blob: Blob) -> Path:
        while (path := self._vectors.find(blob)) is None:
            self._beside(lambda bulk: self._vectors.take(blob, lambda at: bulk.download(blob.sha256, at)))
        return path

    @staticmethod
    def _push(bulk: _Bulk, plan: str, sending: Sending) -> bool:
        """Sends what the server has not; whether it then has all."""
        there = bulk.have(plan)
        same = there.size <= sending.size and there.sha256 == sending.sha256(there.size)
        if not same or there.size < sending.size:
            offset = there.size if same else 0
            there = bulk.upload(plan, offset, sending.chunks(offset))
        return there.size == sending.size and there.sha256 == sending.sha256(sending.size)

    def _beside(self, work: Callable[[_Bulk], T]) -> T:
        """Does work beside the session, and once more whenever the connection was lost on the way."""
        delay = SHORTEST
        while True:
            with self._turn:
                self._turn.wait_for(lambda: self._bulk or self._end)
                if self._bulk is None or self._closing.is_set():
                    raise self._end or Closed("the session is closed")
                bulk = self._bulk
            try:
                return work(bulk)
            except grpc.RpcError as error:
                code, line = _status(error)
                if code == CODES.NOT_FOUND:
                    raise PlanOver(line) from None
                if code == CODES.INVALID_ARGUMENT:
                    raise UploadRefused(line) from None
            except ValueError:
                if self._bulk is bulk:  # not a call on a channel that was closed meanwhile
                    raise
            self._closing.wait(delay)
            delay = min(2 * delay, LONGEST)

    # the session

    def _run(self) -> None:
        """Connects, as often as it takes."""
        delay, met = SHORTEST, ""
        while not self._end:
            before = self._contact
            try:
                met = self._connect()
            except (Turned, Closed, UserError) as end:
                self._finish(end)
            if self._contact != before:
                delay = SHORTEST
            if time.monotonic() - self._contact > self._orphan_after:
                address, seconds = self._invitation.address, self._orphan_after
                self._finish(Orphaned(f"{address}: no server for {seconds:g} s; the last attempt met: {met}"))
            self._closing.wait(delay)
            delay = min(2 * delay, LONGEST)

    def _finish(self, end: Exception) -> None:
        with self._turn:
            self._end = self._end or end
            self._turn.notify_all()
        self._tick.set()

    def _connect(self) -> str:
        """One connection, from Hello to its loss; says what ended it.

        Raises:
            Turned, Closed, UserError: there is to be no other.
        """
        channel = self._identity.channel(self._invitation.address)
        with self._turn:
            self._connection += 1
            mine, self._heard = self._connection, time.monotonic()
        call = channel.stream_stream(rules.method(rules.SESSION), None, None)(self._outgoing(mine))
        with self._turn:
            self._call = call
        try:
            for raw in call:
                if not self._take(ServerFrame.FromString(raw), mine):
                    return "a server that has been replaced"
            return "the server ended the session"
        except DecodeError:
            raise Turned("frame", "the server says what makes no sense here; update hansa at both ends") from None
        except grpc.RpcError as error:
            return _status(error)[1]
        finally:
            self._lose(mine)
            channel.close()

    def _lose(self, mine: int) -> None:
        with self._turn:
            if mine == self._connection:
                self._connection += 1
            bulk, self._bulk, self._call = self._bulk, None, None
            self._turn.notify_all()
        if bulk:
            bulk.channel.close()

    def _outgoing(self, mine: int) -> Iterator[bytes]:
        """Hello, then what is in the outbox once there is a session, up to Bye or the connection's loss."""
        yield SiteFrame(hello=self._hello()).SerializeToString()
        while True:
            with self._turn:
                self._turn.wait_for(lambda: mine != self._connection or (self._outbox and self._speaks()))
                if mine != self._connection:
                    return
                frame = self._outbox.popleft()
            yield frame.SerializeToString()
            if frame.HasField("bye"):
                return

    def _speaks(self) -> bool:
        """Whether more than Hello may be said: in a session, or to take leave before there is one."""
        return self._bulk is not None or self._closing.is_set()

    def _hello(self) -> Hello:
        said = self._invitation
        hello = Hello(major=rules.MAJOR, minor=rules.MINOR, run=said.run, epoch=self._epoch, node=said.node)
        hello.token, hello.layout, hello.strategy = said.token, said.layout, said.strategy
        hello.instance = self._instance
        for name, shape in said.sums:
            hello.sums.add(name=name, shape=shape)
        if self._waiting is not None:
            hello.waiting.CopyFrom(self._waiting)
        return hello

    def _take(self, frame: ServerFrame, mine: int) -> bool:
        """Takes a frame in; False from a server that has been replaced."""
        kind = frame.WhichOneof("frame")
        self._heard = time.monotonic()
        if kind == "turned":
            if frame.turned.code == "epoch":
                return False
            raise Turned(frame.turned.code, frame.turned.line)
        if kind == "welcome":
            return self._welcomed(frame.welcome)
        self._contact = self._heard
        if kind in ("plan", "secure", "committed", "over"):
            with self._turn:
                self._inbox.append(frame)
                self._turn.notify_all()
        if kind == "over":
            raise Closed(frame.over.line)
        return True

    def _welcomed(self, welcome: Welcome) -> bool:
        if welcome.epoch < self._epoch:
            return False
        bulk = _Bulk(self._identity.channel(self._invitation.address), welcome.session)
        with self._turn:
            self._epoch, self._heartbeat = welcome.epoch, welcome.heartbeat
            self._orphan_after, self._contact = welcome.orphan_after, time.monotonic()
            self._bulk = bulk
            self._turn.notify_all()
        self._tick.set()  # the time between two beats may be another now
        return True

    def _pulse(self) -> None:
        """Beats, and hangs up on a server that is silent."""
        while not self._end:
            self._tick.wait(self._heartbeat)
            self._tick.clear()
            with self._turn:
                if self._bulk:
                    self._outbox.append(SiteFrame(beat=Beat()))
                    self._turn.notify_all()
                if self._call and time.monotonic() - self._heard > rules.MISSED * self._heartbeat:
                    self._call.cancel()  # type: ignore[no-untyped-call]


def _status(error: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    """What a failed call met: the code, and one line."""
    if not isinstance(error, grpc.Call):
        return CODES.UNKNOWN, "no status"
    return error.code(), " ".join((error.details() or str(error.code())).split())[:300]
