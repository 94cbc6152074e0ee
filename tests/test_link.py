"""Both ends of the link over loopback, with certificates made here. A relay between them counts bytes and fails."""

import contextlib
import datetime
import functools
import hashlib
import ipaddress
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from clients import link as site_end
from clients import participant
from clients.child import Ready
from clients.link import Closed, Invitation, Link, Orphaned, PlanOver, Turned, UploadRefused
from clients.sitefile import SiteTrainingTable
from clients.workers.ground import Here
from hansa.errors import UserError
from hansa.wire import rules
from hansa.wire.link_pb2 import (
    Blob,
    Committed,
    Hello,
    Plan,
    Refused,
    Result,
    Secure,
    ServerFrame,
    SiteFrame,
    Taken,
    Waiting,
)
from server import link as server_end
from server.arrivals import Answered, Arrival, Declined, Joined, Left, Said, Spoiled
from server.hello import Terms, token
from server.link import Links

SECRET = b"of the run"
SITES = ["a", "b", *(f"site-{i}" for i in range(100))]
LOOPBACK = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
BEAT = 0.2  # seconds
MB = 1 << 20

E = TypeVar("E", bound=Arrival)
Key = ec.EllipticCurvePrivateKey


class Authority:
    """A CA and what it signs."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.signer = folder, None
        self.signer = self.sign("ca", [])

    def sign(self, name: str, alternatives: list[x509.GeneralName]) -> tuple[Key, x509.Certificate]:
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        signer: tuple[Key, x509.Certificate] | None = self.signer
        builder = (
            x509.CertificateBuilder(subject_name=subject, issuer_name=signer[1].subject if signer else subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(signer is None, None), True)
        )
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), False)
        certificate = builder.sign(signer[0] if signer else key, hashes.SHA256())
        plain = serialization.NoEncryption()
        pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        (self.folder / f"{name}.key").write_bytes(pem)
        (self.folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return key, certificate

    def files(self, name: str) -> tuple[Path, Path, Path]:
        return self.folder / "ca.crt", self.folder / f"{name}.crt", self.folder / f"{name}.key"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    authority = Authority(tmp_path_factory.mktemp("authority"))
    authority.sign("server", [*LOOPBACK])
    for site in SITES:
        authority.sign(site, [x509.UniformResourceIdentifier(f"hansa://site/{site}")])
    return authority


def hang_up(*ends: socket.socket) -> None:
    """Closes sockets, even if another thread waits for what comes from them."""
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


class Relay:
    """TCP to a port of loopback and back; it counts what goes up and down, and cuts or freezes when told."""

    def __init__(self, port: int) -> None:
        self.target, self.up, self.down = port, 0, 0
        self.cut_at = [float("inf"), float("inf")]  # bytes up and down after which all connections are cut, once
        self.on_cut: Callable[[], None] = lambda: None
        self.flowing = threading.Event()
        self.flowing.set()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.flowing.wait()
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                continue
            self._pairs.append((near, far))
            threading.Thread(target=self._pump, args=(near, far, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, upwards: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                self.flowing.wait()
                sink.sendall(data)
                with self._lock:
                    self.up, self.down = self.up + upwards * len(data), self.down + (not upwards) * len(data)
                    if self.up > self.cut_at[0] or self.down > self.cut_at[1]:
                        self.cut_at = [float("inf"), float("inf")]
                        self.on_cut()
                        self.cut()
        except OSError:
            pass
        hang_up(source, sink)

    def cut(self) -> None:
        hang_up(*(end for pair in self._pairs for end in pair))
        self._pairs.clear()

    def close(self) -> None:
        self.flowing.set()
        self._listener.close()
        self.cut()


class Stand:
    """A run's server end, a relay before it, and sites that may dial."""

    def __init__(self, authority: Authority, folder: Path) -> None:
        self.authority, self.folder = authority, folder
        self.servers: list[Links] = []
        self.orphan_after = 10.0
        self.relay = Relay(0)
        self.serve(1)

    def serve(self, epoch: int) -> Links:
        """Another server; whoever dials from now on gets to it."""
        terms = Terms("run", epoch, SITES, "layout", "strategy", SECRET)
        identity = server_end.Identity(*self.authority.files("server"))
        self.links = Links(terms, identity, self.folder / "uploads", heartbeat=BEAT, orphan_after=self.orphan_after)
        self.relay.target = self.links.start("127.0.0.1:0")
        self.servers.append(self.links)
        return self.links

    def invitation(self, site: str = "a", **change: Any) -> Invitation:
        secret = token(SECRET, "run", site, 5)
        said = {"run": "run", "epoch": 1, "node": 5, "layout": "layout", "strategy": "strategy", "token": secret}
        return Invitation(f"127.0.0.1:{self.relay.port}", **{**said, **change})

    def identity(self, name: str = "a") -> site_end.Identity:
        return site_end.Identity(*self.authority.files(name))

    def site(self, site: str = "a", name: str | None = None, orphan_after: float = 5.0, **change: Any) -> Link:
        spool = self.folder / f"spool-{site}"
        return Link(self.invitation(site, **change), self.identity(name or site), spool, orphan_after)

    def until(self, kind: type[E]) -> E:
        """The next event of a kind."""
        while True:
            event = self.links.events.get(timeout=20)
            if isinstance(event, kind):
                return event

    def close(self) -> None:
        for links in self.servers:
            links.stop(0)
        self.relay.close()


@pytest.fixture
def stand(authority: Authority, tmp_path: Path) -> Iterator[Stand]:
    stand = Stand(authority, tmp_path)
    yield stand
    stand.close()


def frame(link: Link) -> ServerFrame:
    got = link.next(20)
    assert got is not None
    return got


def floats(count: int) -> bytes:
    return np.arange(count, dtype="<f4").tobytes()


def result(plan: str, **more: Any) -> SiteFrame:
    return SiteFrame(result=Result(plan=plan, round=1, examples=3, **more))


def uploaded(answer: Answered) -> bytes:
    """The bytes of an upload that was spooled."""
    assert isinstance(answer.upload, Path)
    return answer.upload.read_bytes()


def test_a_round_goes_there_and_back(stand: Stand) -> None:
    vector, update = floats(300_000), floats(100_000) + bytes(16)
    stand.links.expect("p1", 100_000, 2)
    blobs = stand.links.offer("p1", {"params": memoryview(vector), "counters": memoryview(b"")})
    (stand.folder / "update").write_bytes(update)
    with stand.site() as link:
        assert stand.until(Joined) == Joined("a", 5)
        assert stand.links.present() == {"a"}
        stand.links.send("a", ServerFrame(plan=Plan(id="p1", vectors=blobs)))
        files = link.fetch(frame(link).plan)
        assert {name: file.read_bytes() for name, file in files.items()} == {"params": vector}
        blob = link.upload("p1", stand.folder / "update")
        assert (blob.size, blob.sha256) == (len(update), hashlib.sha256(update).digest())
        link.send(result("p1", upload=blob))
        answer = stand.until(Answered)
        assert (answer.site, answer.result.examples) == ("a", 3)
        assert uploaded(answer) == update
        stand.links.send("a", ServerFrame(committed=Committed(round=1)))
        stand.links.over("done")
        assert [one.WhichOneof("frame") for one in link] == ["committed"]
        with pytest.raises(Closed, match="done"):
            link.next(20)
    assert stand.until(Left) == Left("a", "over")
    assert not stand.links.send("a", ServerFrame(committed=Committed(round=1)))


def test_a_site_that_waits_for_machines_is_known_takes_no_plan_and_comes_when_it_has_them(stand: Stand) -> None:
    queued = Waiting(state="queued", starts_in=5400)
    early = stand.invitation(layout="", strategy="")
    with Link(early, stand.identity(), stand.folder / "spool-a", waiting=queued) as link:
        until(lambda: stand.links.waiting())
        assert stand.links.waiting()["a"].line == "waits for machines, expected in 1 h 30 min"
        assert stand.links.present() == set()
        assert not stand.links.send("a", ServerFrame(plan=Plan(id="p1")))
        since = stand.links.waiting()["a"].since
        stand.relay.cut()  # a new connection says it again, and the wait is the same one
        until(lambda: not stand.links.waiting())
        until(lambda: stand.links.waiting())
        link.wait(Waiting(state="starting"))
        until(lambda: stand.links.waiting()["a"].line == "is starting its training processes")
        assert stand.links.waiting()["a"].since == since
        with stand.site() as ready:  # the other end of the wait has the same certificate and another process's number
            assert stand.until(Joined) == Joined("a", 5)
            assert (stand.links.present(), stand.links.waiting()) == ({"a"}, {})
            ready.wait(queued)  # its machines are gone in the middle of a plan
            until(lambda: stand.links.waiting())
            assert stand.links.present() == {"a"}
            ready.wait(None)
            until(lambda: not stand.links.waiting())


def test_a_site_that_waits_learns_that_the_run_is_over(stand: Stand) -> None:
    early = stand.invitation(layout="", strategy="")
    with Link(early, stand.identity(), stand.folder / "spool-a", waiting=Waiting(state="queued")) as link:
        until(lambda: stand.links.waiting())
        stand.links.over("the run is over")
        assert frame(link).over.line == "the run is over"


class Begun:
    """A group that begins when it may."""

    def __init__(self, may: threading.Event) -> None:
        assert may.wait(20)
        self.ready = Ready("layout", "strategy", {}, 0, (), 0, None)
        self.killed = False

    def kill(self) -> None:
        self.killed = True


@pytest.mark.parametrize("early", [True, False])
def test_a_run_knows_a_site_whose_processes_start_slowly(
    stand: Stand, monkeypatch: pytest.MonkeyPatch, early: bool
) -> None:
    monkeypatch.setattr(participant, "SOON", 0.0)
    groups: list[Begun] = []
    may, nobody = threading.Event(), cast(Any, None)

    def invite(ready: Ready | None) -> Invitation:
        return stand.invitation(layout="", strategy="") if ready is None else stand.invitation()

    def start() -> Any:
        groups.append(Begun(may))
        return groups[0]

    spool = stand.folder / "spool"
    here, who = Here(spool, SiteTrainingTable()), stand.identity()
    site = participant.Participant(invite, start, who, spool, print, nobody, nobody, True, nobody, here)
    with ThreadPoolExecutor(1) as pool:
        took_part = pool.submit(site.take_part)
        until(lambda: stand.links.waiting())
        assert stand.links.waiting()["a"].line == "is starting its training processes"
        if early:
            stand.links.over("the run is over")
            may.set()
        else:
            may.set()
            assert stand.until(Joined) == Joined("a", 5)
            stand.links.over("the run is over")
        assert took_part.result(20) == "the run is over"
    assert groups[0].killed


def test_what_a_waiting_site_answers_counts_for_nothing(stand: Stand) -> None:
    """It has not shown that it has the model."""
    said, early = stand.invitation(), Hello(major=1, minor=2, run="run", epoch=1, node=5, instance=b"i")
    early.token, early.waiting.state = said.token, "queued"
    stand.links.expect("p1", 0, 0)
    session(stand, SiteFrame(hello=early).SerializeToString(), result("p1").SerializeToString())
    with stand.site("b") as link:
        link.send(result("p1"))
        assert stand.until(Answered).site == "b"


@pytest.mark.parametrize("change", [{"layout": ""}, {"layout": "", "token": "guessed"}])
def test_only_who_waits_may_leave_the_model_open(stand: Stand, change: dict[str, Any]) -> None:
    with stand.site(**change) as link, pytest.raises(Turned):
        link.next(20)


def until(true: Callable[[], object]) -> None:
    """Waits until something is so."""
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_plan_without_upload_is_answered_without(stand: Stand) -> None:
    stand.links.expect("p1", 0, 0)
    with stand.site() as link:
        link.send(result("p1"))
        assert stand.until(Answered).upload is None


def test_a_refusal_is_told_once_and_in_one_line(stand: Stand) -> None:
    stand.links.expect("p1", 1, 0)
    with stand.site() as link:
        for _ in range(2):
            link.send(SiteFrame(refused=Refused(plan="p1", code="policy", line="not\non\x1b[31m Sundays")))
        assert stand.until(Declined).refused.line == "not on [31m Sundays"
        stand.links.expect("p2", 0, 0)
        link.send(result("p2"))
        assert isinstance(stand.links.events.get(timeout=20), Answered)


def test_a_site_that_says_goodbye_is_told_with_its_words(stand: Stand) -> None:
    with stand.site() as link:
        stand.until(Joined)
        link.close("the operator stopped it")
    assert stand.until(Left) == Left("a", "the operator stopped it")


def test_a_site_of_another_major_is_turned_away(stand: Stand) -> None:
    said = stand.invitation()
    hello = Hello(major=2, minor=0, run="run", epoch=1, node=5, token=said.token, layout="layout", strategy="strategy")
    answers = session(stand, SiteFrame(hello=hello).SerializeToString())
    assert [one.turned.code for one in answers] == ["version"]
    assert answers[0].turned.line == "this site speaks protocol 2.0, the server 1.2; update hansa at the server"


def session(stand: Stand, *frames: bytes, name: str = "a") -> list[ServerFrame]:
    """What the server says to frames of any kind, up to its last."""
    with stand.identity(name).channel(f"127.0.0.1:{stand.relay.port}") as channel:
        call = channel.stream_stream(rules.method(rules.SESSION), None, None)(iter(frames))
        return [ServerFrame.FromString(raw) for raw in call]


@pytest.mark.parametrize(
    ("raw", "says"),
    [(b"\xff", "makes no sense"), (SiteFrame().SerializeToString(), "before Hello"), (result("p1"), "result before")],
)
def test_a_bad_frame_ends_its_own_session_only(stand: Stand, raw: bytes | SiteFrame, says: str) -> None:
    with stand.site("b") as link:
        stand.until(Joined)
        bad = raw if isinstance(raw, bytes) else raw.SerializeToString()
        (answer,) = session(stand, bad)
        assert answer.turned.code == "frame"
        assert says in answer.turned.line
        assert stand.links.present() == {"b"}
        stand.links.send("b", ServerFrame(committed=Committed(round=4)))
        assert frame(link).committed.round == 4


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=st.lists(st.binary(max_size=40), min_size=1, max_size=3))
def test_garbage_opens_no_session(stand: Stand, frames: list[bytes]) -> None:
    answers = session(stand, *frames)
    assert all(one.HasField("turned") and "\n" not in one.turned.line for one in answers)
    assert stand.links.present() == set()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"token": token(SECRET, "run", "b", 5)}, "token"),
        ({"token": token(b"guessed", "run", "a", 5)}, "token"),
        ({"node": 6}, "token"),
        ({"layout": "other"}, "layout"),
        ({"strategy": "other"}, "strategy"),
        ({"run": "old", "token": token(SECRET, "old", "a", 5)}, "run"),
    ],
)
def test_a_wrong_hello_is_turned_away_for_good(stand: Stand, change: dict[str, Any], code: str) -> None:
    with stand.site(**change) as link, pytest.raises(Turned) as turned:
        link.next(20)
    assert turned.value.code == code
    assert stand.links.present() == set()


def test_another_site_s_certificate_does_not_help(stand: Stand) -> None:
    with stand.site("a", name="b") as link, pytest.raises(Turned, match="not one for site b"):
        link.next(20)


def test_a_certificate_that_names_no_site_does_not_help(stand: Stand) -> None:
    with stand.site(name="server") as link, pytest.raises(Turned, match="names no site"):
        link.next(20)


def silent(stand: Stand, name: str, hold: contextlib.ExitStack) -> Iterable[bytes]:
    """A session's stream on which a holder of a certificate says nothing: what the server says."""
    channel = hold.enter_context(stand.identity(name).channel(f"127.0.0.1:{stand.relay.port}"))
    said: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    hold.callback(said.put, None)
    frames: Iterable[bytes] = channel.stream_stream(rules.method(rules.SESSION), None, None)(iter(said.get, None))
    return frames


def test_who_is_no_site_is_turned_away_before_it_has_said_anything(stand: Stand) -> None:
    """Else its streams would take the threads that the sites' need."""
    with contextlib.ExitStack() as hold:
        (last,) = [ServerFrame.FromString(raw) for raw in silent(stand, "server", hold)]
    assert last.turned.code == "certificate"


def test_of_a_site_s_silent_streams_only_a_few_stay_open(stand: Stand) -> None:
    with contextlib.ExitStack() as hold:
        streams = [silent(stand, "a", hold) for _ in range(8)]
        ended: queue.SimpleQueue[int] = queue.SimpleQueue()

        def watch(number: int) -> None:
            with contextlib.suppress(grpc.RpcError):
                list(streams[number])
            ended.put(number)

        for number in range(8):
            threading.Thread(target=watch, args=(number,), daemon=True).start()
        assert len({ended.get(timeout=20) for _ in range(5)}) == 5
        with stand.site("b"):
            assert stand.until(Joined).site == "b"


def test_a_foreign_certificate_is_kept_out_by_tls(stand: Stand, tmp_path: Path) -> None:
    foreign = Authority(tmp_path / "foreign")
    foreign.sign("a", [x509.UniformResourceIdentifier("hansa://site/a")])
    _, crt, key = foreign.files("a")
    ca = stand.identity().ca
    link = Link(stand.invitation(), site_end.Identity(ca, crt, key), tmp_path / "spool", orphan_after=0.5)
    with link, pytest.raises(Orphaned, match=r"no server for 0\.5 s; the last attempt met: ."):
        link.next(20)
    assert stand.links.events.empty()


def test_a_server_of_a_foreign_authority_is_not_believed(stand: Stand, tmp_path: Path) -> None:
    foreign = Authority(tmp_path / "foreign")
    _, crt, key = stand.authority.files("a")
    identity = site_end.Identity(foreign.folder / "ca.crt", crt, key)
    with (
        Link(stand.invitation(), identity, tmp_path / "spool", orphan_after=0.5) as link,
        pytest.raises(Orphaned, match="andshake failed"),
    ):
        link.next(20)


def test_without_a_certificate_no_call_is_answered(stand: Stand) -> None:
    credentials = grpc.ssl_channel_credentials(stand.identity().ca.read_bytes())
    with grpc.secure_channel(f"127.0.0.1:{stand.relay.port}", credentials) as channel:
        call = channel.unary_unary(rules.method(rules.HAVE), None, Taken.FromString)
        with pytest.raises(grpc.RpcError) as error:
            call(b"")
    assert error.value.code() == grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("name", ["a", "b"])
def test_bulk_calls_need_the_caller_s_own_session(stand: Stand, name: str) -> None:
    stand.links.expect("p1", 1, 0)
    with stand.site("b"):
        stand.until(Joined)
        for said in ("", "0" * 32, stand.links._sites["b"].id if name == "a" else ""):
            with stand.identity(name).channel(f"127.0.0.1:{stand.relay.port}") as channel:
                call = channel.unary_unary(rules.method(rules.HAVE), None, Taken.FromString)
                with pytest.raises(grpc.RpcError) as error:
                    call(b"", metadata=((rules.SESSION_KEY, said),))
            assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("offset", ["9" * 5000, "-1", "x", ""])
def test_an_upload_from_no_byte_at_all_is_told_to_ask(stand: Stand, offset: str) -> None:
    stand.links.expect("p1", 1, 0)
    with stand.site("b"):
        stand.until(Joined)
        said = (rules.SESSION_KEY, stand.links._sites["b"].id), (rules.PLAN_KEY, "p1"), (rules.OFFSET_KEY, offset)
        with stand.identity("b").channel(f"127.0.0.1:{stand.relay.port}") as channel:
            call = channel.stream_unary(rules.method(rules.UPLOAD), None, Taken.FromString)
            with pytest.raises(grpc.RpcError) as error:
                call(iter([bytes(4)]), metadata=said)
        assert error.value.code() == grpc.StatusCode.ABORTED


def test_a_second_process_of_a_site_is_turned_away_while_the_first_lives(stand: Stand) -> None:
    with stand.site():
        stand.until(Joined)
        with stand.site() as second, pytest.raises(Turned, match="site a has a session already"):
            second.next(20)
        assert stand.links.present() == {"a"}


def test_a_cut_connection_is_made_again_by_the_same_process(stand: Stand) -> None:
    with stand.site() as link:
        stand.until(Joined)
        stand.relay.cut()
        stand.until(Left)
        stand.until(Joined)
        stand.links.send("a", ServerFrame(committed=Committed(round=2)))
        assert frame(link).committed.round == 2


def test_a_silent_connection_is_given_up_at_both_ends_and_made_again(stand: Stand) -> None:
    """Nothing is closed, nothing comes through: three missed beats tell."""
    with stand.site():
        stand.until(Joined)
        stand.relay.flowing.clear()
        assert stand.until(Left).why.startswith("silent for")
        stand.relay.cut()
        stand.relay.flowing.set()
        stand.until(Joined)


def test_a_site_without_a_server_gives_up(stand: Stand) -> None:
    stand.links.stop(0)
    with stand.site(orphan_after=0.3) as link, pytest.raises(Orphaned, match=r"no server for 0\.3 s"):
        link.next(20)


def test_a_missing_key_is_the_user_s_mistake(stand: Stand) -> None:
    ca, crt, _ = stand.authority.files("a")
    identity = site_end.Identity(ca, crt, stand.folder / "none.key")
    with Link(stand.invitation(), identity, stand.folder / "spool") as link, pytest.raises(UserError, match="enrol"):
        link.next(20)


def test_a_taken_port_is_the_user_s_mistake(stand: Stand) -> None:
    terms = Terms("run", 1, SITES, "layout", "strategy", SECRET)
    second = Links(terms, server_end.Identity(*stand.authority.files("server")), stand.folder / "second")
    with pytest.raises(UserError, match="cannot listen there"):
        second.start(f"127.0.0.1:{stand.relay.target}")


def sending(stand: Stand, link: Link, size: int) -> queue.Queue[Any]:
    """Sends an upload of so many floats in a thread of its own; the queue gets what comes of it."""
    file, done = stand.folder / "update", queue.Queue[Any]()
    file.write_bytes(floats(size))

    def work() -> None:
        try:
            done.put(link.upload("p1", file))
        except Exception as error:
            done.put(error)

    threading.Thread(target=work, daemon=True).start()
    return done


def test_a_cut_upload_goes_on_at_the_byte(stand: Stand) -> None:
    """32 MB, cut after 28: from the start again it would be 60. What was on its way at the cut is sent twice."""
    stand.links.expect("p1", 8 * MB, 0)
    with stand.site() as link:
        stand.until(Joined)
        stand.relay.cut_at[0] = 28 * MB
        blob = sending(stand, link, 8 * MB).get(timeout=30)
        link.send(result("p1", upload=blob))
        answer = stand.until(Answered)
    assert uploaded(answer) == floats(8 * MB)
    assert stand.relay.cut_at[0] == float("inf")
    assert 32 * MB < stand.relay.up < 46 * MB


def test_a_cut_download_goes_on_at_the_byte(stand: Stand) -> None:
    vector = floats(8 * MB)
    blobs = stand.links.offer("p1", {"params": memoryview(vector)})
    with stand.site() as link:
        stand.until(Joined)
        stand.relay.cut_at[1] = 28 * MB
        files = link.fetch(Plan(id="p1", vectors=blobs))
        assert files["params"].read_bytes() == vector
    assert stand.relay.cut_at[1] == float("inf")
    assert 32 * MB < stand.relay.down < 46 * MB


def test_a_new_server_adopts_the_site_and_goes_on_with_its_upload(stand: Stand) -> None:
    """The first server ends in the middle of 32 MB; the second, of the next epoch, has what it left."""
    stand.links.expect("p1", 8 * MB, 0)
    cut = threading.Event()

    def gone() -> None:
        stand.relay.target = 1  # nobody listens there
        cut.set()

    with stand.site() as link:
        stand.until(Joined)
        stand.relay.cut_at[0], stand.relay.on_cut = 28 * MB, gone
        done = sending(stand, link, 8 * MB)
        assert cut.wait(20)
        stand.links.stop(0)
        stand.serve(2)
        stand.until(Joined)
        with pytest.raises(queue.Empty):
            done.get(timeout=0.3)  # it waits for the server to get to the plan
        stand.links.expect("p1", 8 * MB, 0)
        blob = done.get(timeout=30)
        link.send(result("p1", upload=blob))
        answer = stand.until(Answered)
        assert uploaded(answer) == floats(8 * MB)
        assert 32 * MB < stand.relay.up < 46 * MB


def test_a_server_that_has_been_replaced_gets_no_site_back(stand: Stand) -> None:
    stand.orphan_after = 1.0
    with stand.site() as link:
        stand.until(Joined)
        stand.serve(2)
        stand.relay.cut()
        stand.until(Joined)
        stand.serve(1)
        stand.relay.cut()
        with pytest.raises(Orphaned, match="a server that has been replaced"):
            link.next(20)


def test_an_answer_made_again_replaces_what_came_of_the_first(stand: Stand) -> None:
    """A worker that died trains once more, to other bytes: the beginning that the server has is of no use."""
    stand.links.expect("p1", MB, 0)
    old = stand.links._spool.upload("p1", "a")
    assert old is not None
    old.take(old.begin(0), np.ones(1000, "<f4").tobytes())
    with stand.site() as link:
        blob = sending(stand, link, MB).get(timeout=30)
        link.send(result("p1", upload=blob))
        answer = stand.until(Answered)
        assert uploaded(answer) == floats(MB)


def test_a_complete_upload_is_not_sent_twice(stand: Stand) -> None:
    stand.links.expect("p1", MB, 0)
    with stand.site() as link:
        assert sending(stand, link, MB).get(timeout=30).size == 4 * MB
        before = stand.relay.up
        assert sending(stand, link, MB).get(timeout=30).size == 4 * MB
        assert stand.relay.up - before < 0.1 * MB


def test_an_answer_that_was_handed_on_is_not_replaced(stand: Stand) -> None:
    stand.links.expect("p1", MB, 0)
    with stand.site() as link:
        blob = sending(stand, link, MB).get(timeout=20)
        link.send(result("p1", upload=blob))
        answer = stand.until(Answered)
        np.ones(MB, "<f4").tofile(stand.folder / "other")
        with pytest.raises(PlanOver):
            link.upload("p1", stand.folder / "other")
        assert uploaded(answer) == floats(MB)


def test_small_vectors_and_uploads_go_in_the_frames(stand: Stand) -> None:
    vector, update = floats(1000), floats(500) + bytes(16)
    stand.links.expect("p1", 500, 2)
    blobs = stand.links.offer("p1", {"params": memoryview(vector), "counters": memoryview(b"")})
    shared = ServerFrame(plan=Plan(vectors=blobs)).SerializeToString()
    with stand.site() as link:
        stand.until(Joined)
        stand.links.send("a", ServerFrame(plan=Plan(id="p1", memory="a's own")), shared)
        plan = frame(link).plan
        assert (plan.id, plan.memory) == ("p1", "a's own")
        assert link.fetch(plan) == {}
        assert [(blob.name, blob.data) for blob in plan.vectors] == [("params", vector), ("counters", b"")]
        link.send(result("p1", upload=Blob(size=len(update), data=update)))
        assert stand.until(Answered).upload == update
        assert not (stand.folder / "spool").exists() or not any((stand.folder / "spool").rglob("a"))


@pytest.mark.parametrize("count", [3, 5])
def test_an_upload_in_the_frame_is_as_long_as_the_plan_asks(stand: Stand, count: int) -> None:
    stand.links.expect("p1", 4, 0)
    with stand.site() as link:
        link.send(result("p1", upload=Blob(size=4 * count, data=floats(count))))
        assert f"of {4 * count} bytes where the plan asks for 16" in stand.until(Spoiled).problem


@pytest.mark.parametrize(
    ("update", "problem", "index"),
    [
        (np.array([0, 1, np.nan, 3], "<f4").tobytes(), "float 2 of the upload is nan", 2),
        (floats(5), "more than the 16 bytes", None),
    ],
)
def test_an_upload_beside_the_session_is_looked_at_as_it_comes(
    stand: Stand, update: bytes, problem: str, index: int | None
) -> None:
    stand.links.expect("p1", 4, 0)
    (stand.folder / "update").write_bytes(update)
    with stand.site() as link:
        with pytest.raises(UploadRefused, match=problem):
            link.upload("p1", stand.folder / "update")
        assert stand.until(Spoiled).index == index


def test_a_result_before_all_of_its_upload_has_come_is_spoiled(stand: Stand) -> None:
    stand.links.expect("p1", 4, 0)
    with stand.site() as link:
        link.send(result("p1", upload=Blob(size=16, sha256=bytes(32))))
        assert "of 0 bytes where the plan asks for 16" in stand.until(Spoiled).problem


def test_a_vector_that_is_held_is_not_fetched_again(stand: Stand) -> None:
    """Not in the same process, not in the next; but after two plans without it, it is gone."""
    old, new = floats(MB), floats(MB)[::-1]
    blobs = stand.links.offer("p1", {"params": memoryview(old), "shared/c": memoryview(b"c" * 4)})
    with stand.site() as link:
        link.fetch(Plan(vectors=blobs))
        before = stand.relay.down
        link.fetch(Plan(vectors=blobs))
        assert stand.relay.down - before < 0.1 * MB
    stand.until(Left)
    before = stand.relay.down
    more = stand.links.offer("p2", {"params": memoryview(new)})
    with stand.site() as link:
        assert link.fetch(Plan(vectors=blobs))["params"].read_bytes() == old
        assert stand.relay.down - before < 0.1 * MB
        link.fetch(Plan(vectors=more))
        assert len(list((stand.folder / "spool-a").iterdir())) == 3
        link.fetch(Plan(vectors=[more[0]]))
        link.fetch(Plan(vectors=stand.links.offer("p3", {"params": memoryview(floats(MB + 1))})))
        assert len(list((stand.folder / "spool-a").iterdir())) == 2


def test_a_vector_that_rots_on_the_site_s_disk_is_fetched_anew(stand: Stand) -> None:
    vector = floats(MB)
    blobs = stand.links.offer("p1", {"params": memoryview(vector)})
    (stand.folder / "spool-a").mkdir()
    (stand.folder / "spool-a" / blobs[0].sha256.hex()).write_bytes(vector[:-1] + b"!")
    with stand.site() as link:
        assert link.fetch(Plan(vectors=blobs))["params"].read_bytes() == vector


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_number_that_is_not_finite_spoils_the_upload_and_no_more(stand: Stand, bad: float) -> None:
    values = np.zeros(2 * MB, "<f4")
    values[MB + 7] = bad
    values.tofile(stand.folder / "update")
    stand.links.expect("p1", 2 * MB, 0)
    with stand.site() as link:
        for _ in range(2):
            with pytest.raises(UploadRefused, match=f"float {MB + 7} of the upload is"):
                link.upload("p1", stand.folder / "update")
        link.send(result("p1"))
        spoiled = stand.until(Spoiled)
        assert (spoiled.site, spoiled.plan, spoiled.index, str(spoiled.value)) == ("a", "p1", MB + 7, str(bad))
        stand.links.expect("p2", 0, 0)
        link.send(result("p2"))
        assert isinstance(stand.links.events.get(timeout=20), Answered)


def test_no_byte_is_taken_beyond_what_the_plan_asks_for(stand: Stand) -> None:
    stand.links.expect("p1", MB, 0)
    with stand.site() as link:
        assert isinstance(outcome := sending(stand, link, MB + 1).get(timeout=20), UploadRefused)
        assert f"more than the {4 * MB} bytes" in str(outcome)
        assert f"more than the {4 * MB} bytes" in stand.until(Spoiled).problem


def test_an_answer_without_its_upload_is_spoiled(stand: Stand) -> None:
    stand.links.expect("p1", 100, 0)
    with stand.site() as link:
        link.send(result("p1"))
        assert "an upload of 0 bytes where the plan asks for 400" in stand.until(Spoiled).problem


def test_a_plan_that_is_over_takes_and_gives_nothing(stand: Stand) -> None:
    stand.links.expect("p1", MB, 0)
    blobs = stand.links.offer("p1", {"params": memoryview(floats(MB))})
    stand.links.retire("p1")
    with stand.site() as link:
        assert isinstance(sending(stand, link, MB).get(timeout=20), PlanOver)
        with pytest.raises(PlanOver):
            link.fetch(Plan(vectors=blobs))
        link.send(result("p1"))
        stand.links.expect("p2", 0, 0)
        link.send(result("p2"))
        assert stand.until(Answered).result.plan == "p2"


@pytest.mark.parametrize("number", [20, pytest.param(100, marks=pytest.mark.long)])
def test_many_sites_at_once(stand: Stand, number: int) -> None:
    vector = floats(MB // 2)
    blobs = stand.links.offer("p1", {"params": memoryview(vector)})
    stand.links.expect("p1", MB // 2, 0)

    def work(site: str) -> None:
        with stand.site(site, orphan_after=30) as link:
            for one in link:
                files = link.fetch(one.plan)
                link.send(result("p1", upload=link.upload("p1", files["params"])))

    threads = [threading.Thread(target=functools.partial(work, site), daemon=True) for site in SITES[2 : number + 2]]
    for thread in threads:
        thread.start()
    answered: set[str] = set()
    while len(answered) < number:
        event = stand.links.events.get(timeout=30)
        if isinstance(event, Joined):
            stand.links.send(event.site, ServerFrame(plan=Plan(id="p1", vectors=blobs)))
        elif isinstance(event, Answered):
            assert uploaded(event) == vector
            answered.add(event.site)
    stand.links.over("")
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads)


def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "authority")
    _, old = authority.sign("server", [*LOOPBACK])
    authority.sign("a", [x509.UniformResourceIdentifier("hansa://site/a")])
    stand = Stand(authority, tmp_path)

    def shown() -> int:
        context = ssl.create_default_context(cafile=str(authority.folder / "ca.crt"))
        context.load_cert_chain(*authority.files("a")[1:])
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection(("127.0.0.1", stand.relay.target)) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as wrapped,
        ):
            raw = wrapped.getpeercert(True)
        assert raw is not None
        return x509.load_der_x509_certificate(raw).serial_number

    try:
        assert shown() == old.serial_number
        _, new = authority.sign("server", [*LOOPBACK])
        assert shown() == new.serial_number
        with stand.site():
            stand.until(Joined)
    finally:
        stand.close()


@pytest.mark.long
def test_three_gigabytes_go_both_ways(stand: Stand) -> None:
    """Beyond 2 GB: sparse at one end, so that it costs the test little memory."""
    size = 3 << 30
    with open(stand.folder / "sparse", "wb") as file:
        file.truncate(size)
        file.seek(size - 4)
        file.write(np.float32(1.5).tobytes())
    vector = np.memmap(stand.folder / "sparse", np.uint8, "r")
    blobs = stand.links.offer("p1", {"params": vector.data})
    stand.links.expect("p1", size // 4, 0)
    with stand.site() as link:
        vectors = link.fetch(Plan(vectors=blobs))
        link.send(result("p1", upload=link.upload("p1", vectors["params"])))
        answer = stand.until(Answered)
    assert isinstance(answer.upload, Path)
    assert answer.upload.stat().st_size == size
    assert answer.result.upload.sha256 == blobs[0].sha256


def test_a_site_tells_the_shapes_of_its_metric_sums_when_it_comes(stand: Stand) -> None:
    sums = (("train/loss", (2,)), ("valid/auc", (2, 1024)))
    with stand.site(sums=sums):
        assert stand.until(Joined) == Joined("a", 5, sums)


def test_steps_of_an_attempt_go_both_ways_and_only_while_it_is_in_hand(stand: Stand) -> None:
    with stand.site() as link:
        stand.until(Joined)
        stand.links.expect("p0", 0, 0)
        link.send(SiteFrame(secure=Secure(attempt="p1.1.1", step="advertise", messages=[b"too early"])))
        link.send(result("p0"))
        stand.until(Answered)  # what was sent before it has come, too
        stand.links.send("a", ServerFrame(secure=Secure(attempt="p1.1.1", step="share", messages=[b"one", b"two"])))
        assert frame(link).secure.messages == [b"one", b"two"]
        stand.links.expect("p1.1.1", 0, 0, 10)
        link.send(SiteFrame(secure=Secure(attempt="p1.1.1", step="share", messages=[b"in time"])))
        assert stand.until(Said).secure.messages == [b"in time"]


def test_masked_words_are_no_floats(stand: Stand) -> None:
    """A large one goes beside the session."""
    data = np.full(2 * MB, np.nan, "<f4").tobytes()
    stand.links.expect("p1.1.1", 0, 0, len(data))
    (stand.folder / "masked").write_bytes(data)
    with stand.site() as link:
        link.send(result("p1.1.1", upload=link.upload("p1.1.1", stand.folder / "masked")))
        assert uploaded(stand.until(Answered)) == data


def test_a_site_may_leave_an_attempt_after_its_update_has_come(stand: Stand) -> None:
    """Another process of it, say, which does not know the secrets of the one before."""
    stand.links.expect("p1.1.1", 0, 0, 3)
    with stand.site() as link:
        link.send(result("p1.1.1", upload=Blob(data=b"abc", size=3)))
        stand.until(Answered)
        link.send(SiteFrame(refused=Refused(plan="p1.1.1", code="secure_refused", line="gone")))
        assert stand.until(Declined).refused.line == "gone"
