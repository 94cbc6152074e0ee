"""The server's end of the sessions of one run: mutually authenticated gRPC, and nothing of it beyond this file."""

import queue
import re
import secrets
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from hansa.errors import UserError
from hansa.identity import fingerprint
from hansa.wire import rules
from hansa.wire.link_pb2 import (
    Beat,
    Blob,
    Fetch,
    Hello,
    Over,
    Result,
    ServerFrame,
    SiteFrame,
    Taken,
    Turned,
    Waiting,
    Welcome,
)
from hansa.wire.link_pb2 import Upload as Upload_
from server.arrivals import Answered, Arrival, Declined, Joined, Left, Said, Shapes, Spoiled, one_line
from server.hello import NO_SITE, Terms, check, is_early, known_site, turned
from server.offers import Offers, chunks
from server.spool import BadUpload, Spool, Superseded, Upload
from server.waiting import Wait, Waits

OPTIONS = (
    *rules.KEEPALIVE,
    ("grpc.so_reuseport", 0),  # a second server on the port is an error, not a coin toss
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.max_concurrent_streams", 16),  # of one connection
    # What is on its way from a site and not yet read waits in memory. gRPC would let it grow to some ten MB a site;
    # two are a hundred MB/s at a round trip of 20 ms.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 2 << 20),
)


OFFSET = re.compile(r"[0-9]{1,18}")  # bytes; Python reads no number of thousands of digits
UNGREETED = 3  # connections of one site that have not said Hello


@dataclass(frozen=True)
class Identity:
    """The files with which the server shows who it is (PEM). They are read anew when they change."""

    ca: Path
    crt: Path
    key: Path

    def credentials(self) -> grpc.ServerCredentials:
        """Of a server that lets nobody in without a certificate of the CA's.

        Raises:
            UserError: a file cannot be read.
        """
        seen = self._read()

        def changed() -> grpc.ServerCertificateConfiguration | None:  # None: as before
            nonlocal seen
            try:
                now = self._read()
            except UserError:
                return None  # in the middle of a change: the old ones stand
            if now == seen:
                return None
            seen = now
            return _certificates(*now)

        first = _certificates(*seen)
        return grpc.dynamic_ssl_server_credentials(first, changed, True)  # type: ignore[arg-type]

    def _read(self) -> tuple[bytes, bytes, bytes]:
        try:
            return self.ca.read_bytes(), self.crt.read_bytes(), self.key.read_bytes()
        except OSError as error:
            raise UserError(f"{error.filename}: {error.strerror}; the server's certificate is needed") from None


class _Session:
    """One stream of control frames. A site may have several for a moment: the newest counts."""

    def __init__(self, context: grpc.ServicerContext) -> None:
        self.context = context
        self.out: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.heard = time.monotonic()
        self.id = secrets.token_hex(16)
        self.site: str | None = None  # once welcomed
        self.instance = b""
        self.why = "the connection was lost"

    @cached_property
    def certificate(self) -> str:
        """Its fingerprint: a session has one as long as it lives."""
        shown: Iterable[bytes] = self.context.auth_context()["x509_pem_cert"]  # type: ignore[assignment]
        return fingerprint(next(iter(shown)))

    def say(self, frame: ServerFrame, more: bytes = b"") -> None:
        self.out.put(frame.SerializeToString() + more)

    def end(self, why: str) -> None:
        """Closes the stream behind the frames that are on their way."""
        self.why = why
        self.out.put(None)


class Links:
    """The sessions of one run, over mutually authenticated gRPC. All methods may be called from any thread.

    `events` tells what happens: `Joined` before all else of a site, `Left` when its session has ended. After `Joined`
    send again what the site was asked and has not answered. A site that answers is told once a plan, by `Answered`,
    `Declined` or `Spoiled`, whatever is sent twice.

    Args:
        terms: what a site's Hello is held against.
        identity: the server's certificate; a site's must be signed by the same CA.
        spool: a folder of this run for uploads; what a killed server left in it is gone on with.
        heartbeat: seconds between two beats; after three missed ones a session is ended.
        orphan_after: seconds that a site waits for a server that is gone.
        revoked: the fingerprints of certificates that count no longer, asked at each Hello and before each plan.
    """

    def __init__(
        self,
        terms: Terms,
        identity: Identity,
        spool: Path,
        heartbeat: float = rules.HEARTBEAT,
        orphan_after: float = rules.ORPHAN_AFTER,
        revoked: Callable[[], Container[str]] = frozenset,
    ) -> None:
        self.events: queue.Queue[Arrival] = queue.Queue()
        self._terms, self._identity = terms, identity
        self._heartbeat, self._orphan_after, self._revoked = heartbeat, orphan_after, revoked
        self._offers, self._spool = Offers(), Spool(spool)
        self._lock = threading.Lock()
        self._streams: set[_Session] = set()
        self._sites: dict[str, _Session] = {}
        self._early: dict[str, _Session] = {}  # of sites that cannot take plans yet
        self._waits = Waits()
        self._done: dict[str, set[str]] = {}  # plan -> sites whose answer was told
        self._attempts: set[str] = set()  # those of its plans that are answered under masks
        self._begun = False  # whether there was a plan yet
        self._stopped = threading.Event()
        self._server: grpc.Server | None = None

    def start(self, address: str) -> int:
        """Listens on `host:port` (port 0: one that is free) and returns the port.

        Raises:
            UserError: the address cannot be used, or a file of the identity cannot be read.
        """
        calls = ThreadPoolExecutor(4 * len(self._terms.sites) + 16, thread_name_prefix="link")
        server = grpc.server(calls, options=OPTIONS)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(rules.SERVICE, self._handlers()),))
        try:
            port: int = server.add_secure_port(address, self._identity.credentials())
        except RuntimeError:
            raise UserError(f"{address}: cannot listen there; it is taken, or not an address of this machine") from None
        server.start()
        self._server = server
        threading.Thread(target=self._pulse, name="pulse", daemon=True).start()
        return port

    def stop(self, grace: float = 1.0) -> None:
        """Ends all sessions; calls in flight get `grace` seconds."""
        self._stopped.set()
        for session in list(self._streams):
            session.end("the server stopped")
        if self._server is not None:
            self._server.stop(grace).wait()
        self._spool.close()

    def present(self) -> set[str]:
        """The sites whose session is open, and that can take plans."""
        return set(self._sites)

    def waiting(self) -> dict[str, Wait]:
        """The sites that are here and wait for their own machines: not present yet, or with a plan in hand."""
        with self._lock:
            return self._waits.now()

    def over(self, line: str) -> None:
        """Tells all sites that are here, ready or not, that the run is over."""
        for session in [*self._sites.values(), *self._early.values()]:
            session.say(ServerFrame(over=Over(line=line)))
            session.end("over")

    def send(self, site: str, frame: ServerFrame, more: bytes = b"") -> bool:
        """Puts a frame on its way; False if the site has no session that takes it.

        Args:
            site: that gets it.
            frame: what is for this site alone.
            more: fields of the frame that are the same for all sites, in its wire form: parsed, the two become one.
        """
        session = self._sites.get(site)
        if session is None:
            return False
        if frame.HasField("plan") and (out := self._out(session)):
            session.say(ServerFrame(turned=out))
            with self._lock:
                self._drop(session, out.line)
            return False
        session.say(frame, more)
        return True

    def offer(self, plan: str, vectors: Mapping[str, memoryview]) -> list[Blob]:
        """Makes vectors of a plan ready for download, and hashes them. They are not copied: leave them as they are.

        A site that holds a vector with the same hash does not fetch it again. Small ones need no download: what is
        returned holds a copy.
        """
        return self._offers.offer(plan, vectors)

    def expect(self, plan: str, floats: int, integers: int, masked: int = 0) -> None:
        """Says how large each upload of a plan is. Nothing is taken that was not expected.

        Args:
            plan: its id, or the name of an attempt at secure aggregation.
            floats: float32, which must be finite.
            integers: int64 that follow.
            masked: bytes that follow, of which nothing is known.
        """
        with self._lock:
            self._done.setdefault(plan, set())
            if masked:
                self._attempts.add(plan)
        self._spool.expect(plan, floats, integers, masked)
        self._begun = True

    def retire(self, plan: str) -> None:
        """Forgets a plan: its vectors are no longer offered, uploads and late answers to it are dropped."""
        with self._lock:
            self._done.pop(plan, None)
            self._attempts.discard(plan)
        self._offers.retire(plan)
        self._spool.retire(plan)

    # sessions

    def _handlers(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        return {
            rules.SESSION: grpc.stream_stream_rpc_method_handler(self._session),
            rules.DOWNLOAD: grpc.unary_stream_rpc_method_handler(self._download, Fetch.FromString),
            rules.HAVE: grpc.unary_unary_rpc_method_handler(self._have, Upload_.FromString, Taken.SerializeToString),
            rules.UPLOAD: grpc.stream_unary_rpc_method_handler(self._upload, None, Taken.SerializeToString),
        }

    def _session(self, frames: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        session = _Session(context)
        site = known_site(_uris(context), self._terms.sites)
        if why := NO_SITE if site is None else self._out(session):  # before it costs a thread
            return iter([ServerFrame(turned=why).SerializeToString()])
        with self._lock:
            waiting = [one for one in self._streams if one.site is None and one.certificate == session.certificate]
            self._streams.add(session)
        for one in waiting[: 1 - UNGREETED]:
            one.end("a later connection took its place before it had said Hello")
        if not context.add_callback(lambda: self._gone(session)):
            self._gone(session)
        threading.Thread(target=self._listen, args=(session, frames), name="listen", daemon=True).start()
        return iter(session.out.get, None)

    def _listen(self, session: _Session, frames: Iterator[bytes]) -> None:
        try:
            for raw in frames:
                session.heard = time.monotonic()
                self._heard(session, SiteFrame.FromString(raw))
        except DecodeError:
            self._turn_away(session, turned("frame", "a frame that makes no sense; update hansa at the site"))
        except grpc.RpcError:
            pass  # the connection is gone, and `_gone` knows
        session.end(session.why)

    def _heard(self, session: _Session, frame: SiteFrame) -> None:
        kind = frame.WhichOneof("frame")
        if session.site is None:
            if kind == "hello":
                self._greet(session, frame.hello)
            else:
                self._turn_away(session, turned("frame", f"{kind or 'a frame'} before Hello; update hansa at the site"))
        elif kind == "waiting":
            self._wait(session, frame.waiting)
        elif kind == "bye":
            session.end(one_line(frame.bye.line) or "it said goodbye")
        elif self._early.get(session.site) is session:
            pass  # it was asked for nothing
        elif kind == "result":
            self._answered(session.site, frame.result)
        elif kind == "secure" and frame.secure.attempt in self._done:
            self.events.put(Said(session.site, frame.secure))
        elif kind == "refused" and self._may_refuse(frame.refused.plan, session.site):
            frame.refused.line = one_line(frame.refused.line)
            self.events.put(Declined(session.site, frame.refused))

    def _greet(self, session: _Session, hello: Hello) -> None:
        site = known_site(_uris(session.context), self._terms.sites)
        no = check(hello, site, self._terms) or self._out(session)
        if no or site is None:
            self._turn_away(session, no or turned("certificate", "no site"))
            return
        with self._lock:
            there = self._sites.get(site)
            if there and there.instance != hello.instance and time.monotonic() - there.heard < 2 * self._heartbeat:
                self._turn_away(session, turned("here", f"site {site} has a session already; end the other process"))
                return
            if there:
                self._drop(there, "it came back on a new connection")
            session.site, session.instance = site, hello.instance
            self._enter(session, site, hello)
        welcome = Welcome(minor=rules.MINOR, epoch=self._terms.epoch, session=session.id)
        welcome.heartbeat, welcome.orphan_after = self._heartbeat, self._orphan_after
        session.say(ServerFrame(welcome=welcome))

    def _enter(self, session: _Session, site: str, hello: Hello) -> None:
        """Puts a session into the register; with the lock held."""
        if earlier := self._early.pop(site, None):
            earlier.end("it came back on a new connection")
        if is_early(hello):
            self._early[site] = session
        else:
            self._sites[site] = session
            self.events.put(Joined(site, hello.node, _shapes(hello)))
        self._waits.says(site, hello.waiting, time.monotonic())

    def _wait(self, session: _Session, said: Waiting) -> None:
        with self._lock:
            site = session.site
            if site is not None and session in (self._sites.get(site), self._early.get(site)):
                self._waits.says(site, said, time.monotonic())

    def _out(self, session: _Session) -> Turned | None:
        """Why a session's certificate counts no longer, if it does not."""
        try:
            out = session.certificate in self._revoked()
        except UserError:  # nobody knows who is out
            return turned(
                "certificate", "the server's list of revoked certificates is damaged; its operator must mend it"
            )
        line = "the site's certificate was revoked; ask the consortium for another one"
        return turned("certificate", line) if out else None

    def _turn_away(self, session: _Session, why: Turned) -> None:
        session.say(ServerFrame(turned=why))
        session.end(why.line)

    def _drop(self, session: _Session, why: str) -> None:
        """Takes a session out of the register; with the lock held."""
        if (site := session.site) is not None and self._early.get(site) is session:
            del self._early[site]
            self._waits.gone(site)
        elif site is not None and self._sites.get(site) is session:
            del self._sites[site]
            self._waits.gone(site)
            self.events.put(Left(site, why))
        session.end(why)

    def _gone(self, session: _Session) -> None:
        with self._lock:
            self._streams.discard(session)
            self._drop(session, session.why)

    def _pulse(self) -> None:
        """Beats, and ends the sessions that are silent."""
        while not self._stopped.wait(self._heartbeat):
            for session in list(self._streams):
                silent = time.monotonic() - session.heard
                if silent > rules.MISSED * self._heartbeat:
                    session.end(f"silent for {silent:.0f} s")
                    session.context.cancel()  # type: ignore[no-untyped-call]
                elif session.site is not None:
                    session.say(ServerFrame(beat=Beat()))

    # answers

    def _first(self, plan: str, site: str) -> bool:
        """Whether this is a site's first answer to a plan in hand."""
        with self._lock:
            done = self._done.get(plan)
            if done is None or site in done:
                return False
            done.add(site)
            return True

    def _may_refuse(self, plan: str, site: str) -> bool:
        """Whether a refusal is told. A site may leave an attempt at secure aggregation after its update has come."""
        return plan in self._attempts or self._first(plan, site)

    def _answered(self, site: str, result: Result) -> None:
        size = self._spool.size(result.plan)
        if size is None or not self._first(result.plan, site):
            return
        try:
            self.events.put(Answered(site, result, self._uploaded(site, result, size)))
        except BadUpload as bad:
            self.events.put(Spoiled(site, result.plan, bad.problem, bad.index, bad.value))

    def _uploaded(self, site: str, result: Result, size: int) -> Path | bytes | None:
        """What a result brings, complete: in itself, or before it and beside the session."""
        said, data = result.upload, result.upload.data  # which is copied at each look
        if len(data) == size:
            return data or None
        upload = self._spool.upload(result.plan, site)
        if data or upload is None:
            raise BadUpload(f"an upload of {len(data)} bytes where the plan asks for {size}")
        upload.seal(said.sha256, said.size)
        return upload.path

    def _spoil(self, site: str, plan: str, bad: BadUpload) -> None:
        if self._first(plan, site):
            self.events.put(Spoiled(site, plan, bad.problem, bad.index, bad.value))

    # bulk

    def _caller(self, context: grpc.ServicerContext) -> tuple[str, dict[str, str]]:
        """The site that calls, and the call's metadata."""
        said = {key: str(value) for key, value in context.invocation_metadata()}
        site = known_site(_uris(context), self._terms.sites)
        session = self._sites.get(site or "")
        if site is None or session is None or session.id != said.get(rules.SESSION_KEY):
            _abort(context, grpc.StatusCode.UNAUTHENTICATED, "no such session")
        return site, said

    def _download(self, fetch: Fetch, context: grpc.ServicerContext) -> Iterator[bytes]:
        self._caller(context)
        vector = self._offers.find(fetch.sha256)
        if vector is None:
            self._plan_over(context)
        return chunks(vector, fetch.offset)

    def _find(self, plan: str, site: str, context: grpc.ServicerContext) -> Upload:
        upload = self._spool.upload(plan, site)
        if upload is None:
            self._plan_over(context)
        return upload

    def _plan_over(self, context: grpc.ServicerContext) -> NoReturn:
        """Refuses what belongs to no plan in hand. A server that has just been resumed may get to the plan yet."""
        if self._begun:
            _abort(context, grpc.StatusCode.NOT_FOUND, "the plan is over")
        _abort(context, grpc.StatusCode.UNAVAILABLE, "no plan yet")

    def _have(self, which: Upload_, context: grpc.ServicerContext) -> Taken:
        site, _ = self._caller(context)
        size, sha256 = self._find(which.plan, site, context).pause()
        return Taken(size=size, sha256=sha256)

    def _upload(self, pieces: Iterator[bytes], context: grpc.ServicerContext) -> Taken:
        site, said = self._caller(context)
        plan, offset = said.get(rules.PLAN_KEY, ""), said.get(rules.OFFSET_KEY, "")
        upload = self._find(plan, site, context)
        try:
            turn = upload.begin(int(offset) if OFFSET.fullmatch(offset) else -1)
            for piece in pieces:
                upload.take(turn, piece)
        except BadUpload as bad:
            self._spoil(site, plan, bad)
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, bad.problem)
        except Superseded:
            if site in self._done.get(plan, ()):  # its answer has been handed on
                self._plan_over(context)
            _abort(context, grpc.StatusCode.ABORTED, "ask from which byte to go on")
        except grpc.RpcError:
            pass  # the connection is gone: what came is kept
        size, sha256 = upload.held()
        return Taken(size=size, sha256=sha256)


def _certificates(ca: bytes, crt: bytes, key: bytes) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(key, crt)], ca)


def _uris(context: grpc.ServicerContext) -> set[str]:
    """What the caller's certificate says."""
    uris: Iterable[bytes] = context.auth_context().get("peer_uri", ())  # type: ignore[assignment]
    return {uri.decode("utf-8", "replace") for uri in uris}


def _shapes(hello: Hello) -> Shapes:
    return tuple((one.name, tuple(one.shape)) for one in hello.sums)


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, line: str) -> NoReturn:
    context.abort(code, line)
    raise AssertionError("abort has returned")
