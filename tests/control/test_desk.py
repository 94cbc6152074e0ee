"""The way to the control end, as somebody meets it who means no good: nobody passes for another, all has an end."""

import contextlib
import errno
import json
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.controlclient import Unanswered
from hansa.errors import RunFailed, UserError
from hansa.identity import Credential, fingerprint, make_person
from hansa.roles import Role
from hansa.routes import CONTROL
from server.asking import Ask, Denied, Gone
from server.callers import Caller
from server.desk import AT_ONCE, at_socket, rules
from server.requestfilter import RequestFilter
from server.revoked import Revoked
from server.roles import ACTS

if TYPE_CHECKING:
    from tests.control.conftest import Heart

Start = Callable[..., "Heart"]
WAIT = 60.0
ANN = Caller(Role.RESEARCHER, "ann", "sha256:" + "a" * 64)
IDENTITY = {b"hansa-role": b"researcher", b"hansa-name": b"ann", b"hansa-certificate": ANN.certificate.encode()}


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def fine(ask: Ask) -> dict[str, Any]:
    """A verb that tells who the server takes the caller for."""
    ask.permit()
    return {"role": ask.caller.role, "name": ask.caller.name}


@contextlib.contextmanager
def tls(heart: "Heart", who: str | None) -> Iterator[ssl.SSLSocket]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(heart.server / "ca.crt")
    if who:
        context.load_cert_chain(heart.home(who) / "tls.crt", heart.home(who) / "tls.key")
    with (
        socket.create_connection(("127.0.0.1", heart.port), timeout=WAIT) as plain,
        context.wrap_socket(plain, server_hostname=CONTROL) as end,
    ):
        yield end


def request(verb: str, *lines: str, body: bytes = b"{}") -> bytes:
    heads = [f"POST /v1/control/{verb} HTTP/1.1", "Host: x", *lines]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in lines):
        heads.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*heads, "", ""]).encode() + body


def heard(end: socket.socket) -> bytes:
    """All that comes to the end."""
    taken = b""
    with contextlib.suppress(OSError):
        while data := end.recv(65_536):
            taken += data
    return taken


SPOOFS = [
    ["hansa-role: administrator", "hansa-name: eve"],
    ["Hansa-Role: administrator"],
    ["HANSA-CERTIFICATE: sha256:" + "0" * 64],
    ["x-hansa-role: administrator", "x-forwarded-for: 127.0.0.1", "forwarded: for=127.0.0.1"],
    ["hansa_role: administrator"],
    ["cookie: hansa-role=administrator"],
]


@pytest.mark.parametrize("lines", SPOOFS, ids=range(len(SPOOFS)))
def test_who_calls_is_what_the_certificate_says_whatever_the_heads_say(here: Start, lines: list[str]) -> None:
    heart = here(status=fine)
    with tls(heart, "ann") as end:
        end.sendall(request("status", *lines))
        answer = heard(end)
    assert b'{"result":{"role":"researcher","name":"ann"}}' in answer
    assert heart.acts()[-1]["role"] == "researcher"
    with tls(heart, None) as end:
        end.sendall(request("status", *lines))
        assert heard(end).startswith(b"HTTP/1.1 403")


@pytest.mark.parametrize(
    "lines",
    [
        ["hansa-role: administrator", "hansa-role: administrator"],
        ["Transfer-Encoding: chunked"],
        ["Content-Length: 2", "Content-Length: 9"],
        ["Content-Length: 2\r\nhansa-role: administrator", "X: a\nhansa-role: administrator"],
        ["X: a\r\n hansa-role: administrator"],
    ],
    ids=range(5),
)
def test_what_could_be_read_in_two_ways_is_not_passed(here: Start, lines: list[str]) -> None:
    heart = here(status=fine)
    with tls(heart, "ann") as end:
        end.sendall(request("status", *lines))
        assert heard(end).startswith(b"HTTP/1.1 400")
    assert heart.acts() == []


def test_a_second_request_in_the_first_one_s_body_is_its_body(here: Start) -> None:
    heart = here(status=fine, audit=fine)
    inner = request("audit", "hansa-role: auditor")
    with tls(heart, "ann") as end:
        end.sendall(request("status", body=inner))
        assert b" 400 " in heard(end)
    with tls(heart, "ann") as end:
        end.sendall(request("status") + request("audit"))
        heard(end)
    assert {line["verb"] for line in heart.acts()} <= {"status"}


def passed(data: bytes) -> list[h11.Event]:
    """What the control end would read of what gets through."""
    sieve, server = RequestFilter(rules(ANN)), h11.Connection(h11.SERVER)
    if not (through := sieve.from_caller(data).to_server):
        return []
    server.receive_data(through)
    events = []
    while (event := server.next_event()) not in (h11.NEED_DATA, h11.PAUSED):
        events.append(event)
    return events  # type: ignore[return-value]


NAMES = st.sampled_from([*(name.decode() for name in IDENTITY), "Hansa-Role", "host", "connection", "x"])
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=12)


@given(
    st.lists(st.tuples(NAMES, VALUES), max_size=5), st.sampled_from([*ACTS, "x", "../audit", "run/../audit", "a%62c"])
)
def test_whatever_passes_bears_the_gate_s_word_and_no_other(heads: list[tuple[str, str]], verb: str) -> None:
    events = passed(request(verb, *(f"{name}: {value}" for name, value in heads)))
    if not events:
        return
    asked = events[0]
    assert isinstance(asked, h11.Request)
    assert asked.target == f"/v1/control/{verb}".encode()
    assert verb in ACTS
    for name, value in IDENTITY.items():
        assert [v for n, v in asked.headers if n == name] == [value]
    known = {*IDENTITY, b"host", b"connection", b"content-type", b"content-length"}
    assert {name for name, _ in asked.headers} <= known


def test_a_certificate_that_names_nobody_known_is_turned_away_in_words(here: Start) -> None:
    heart = here(status=fine)
    own = heart.folder / "consortium"
    authority = Credential((own / "ca.crt").read_bytes(), (own / "ca.key").read_bytes())
    for role in ("king", "nobody"):
        odd = make_person(authority, role, "x", datetime.now(UTC))  # type: ignore[arg-type]
        (heart.home("ann") / "tls.crt").write_bytes(odd.certificate)
        (heart.home("ann") / "tls.key").write_bytes(odd.key)
        with pytest.raises(UserError, match="names nobody"):
            heart.ask("ann", "status")
    assert heart.acts() == []


def test_who_is_revoked_is_out_at_once_also_in_the_midst_of_an_answer(here: Start) -> None:
    def talks(ask: Ask) -> dict[str, Any]:
        ask.permit()
        while True:
            ask.say("still here")
            ask.answer.wait(0.05)

    heart, said = here(status=fine, logs=talks), list[str]()
    over: list[Exception] = []

    def listen() -> None:
        try:
            heart.control("ann").ask("logs", {"run": "r"}, said.append)
        except RunFailed as error:
            over.append(error)

    thread = threading.Thread(target=listen)
    thread.start()
    until(lambda: said)
    Revoked(heart.server).add(fingerprint((heart.home("ann") / "tls.crt").read_bytes()))
    thread.join(WAIT)
    assert isinstance(over[0], Unanswered)
    with pytest.raises(UserError, match="researcher ann: the certificate was revoked"):
        heart.ask("ann", "status")
    heart.ask("amy", "status")


@pytest.mark.parametrize("damage", ["{", None])
def test_while_the_revocations_are_damaged_or_missing_nobody_is_let_in(here: Start, damage: str | None) -> None:
    heart, file = here(status=fine), "revoked.json"
    (heart.server / file).unlink()
    if damage is not None:
        (heart.server / file).write_text(damage)
    with pytest.raises(Unanswered):
        heart.ask("ann", "status")
    until(lambda: any("until it is mended, nobody is let in" in line for line in heart.notes))


def test_a_body_has_an_end(here: Start) -> None:
    heart = here(status=fine)
    with tls(heart, "ann") as end:
        end.sendall(request("status", f"Content-Length: {ACTS['status'].largest + 1}", body=b""))
        assert heard(end).startswith(b"HTTP/1.1 413")
    assert heart.acts() == []
    with pytest.raises(UserError):  # what is no JSON object, or has no end of brackets
        heart.ask("ann", "status", [1])  # type: ignore[arg-type]
    for body in (b"[" * 60_000, b"{", b'{"a": NaN}', b'{"a": 1e999}', b"\xff", b""):
        with tls(heart, "ann") as end:
            end.sendall(request("status", body=body))
            answer = heard(end)
        assert b" 400 " in answer or b'{"result"' in answer


def trickle(end: ssl.SSLSocket, data: bytes) -> None:
    """Sends a byte each 20 ms, as long as somebody takes them."""
    for at in range(len(data)):
        end.sendall(data[at : at + 1])
        time.sleep(0.02)


@pytest.mark.parametrize("who", ["ann", None])
def test_who_is_slow_to_ask_is_closed(here: Start, monkeypatch: pytest.MonkeyPatch, who: str | None) -> None:
    monkeypatch.setattr("server.desk.ASKING", 0.5)
    monkeypatch.setattr("server.desk.STRANGER", 0.5)
    heart = here(status=fine, enrol=fine)
    with tls(heart, who) as end:
        head, _, body = request("status" if who else "enrol", body=b" " * 1000).partition(b"\r\n\r\n")
        end.sendall(head + b"\r\n\r\n")
        with pytest.raises((ConnectionError, ssl.SSLError)):
            trickle(end, body)
    assert heart.acts() == []


def test_a_stranger_s_question_has_an_end_also_while_it_is_answered(
    here: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.desk.STRANGER", 0.5)
    gone = threading.Event()

    def slow(ask: Ask) -> dict[str, Any]:
        ask.permit()
        try:
            ask.answer.wait(WAIT)
        except Gone:
            gone.set()
            raise
        return {}

    heart = here(enrol=slow)
    with pytest.raises(Unanswered):
        heart.ask(None, "enrol")
    assert gone.wait(WAIT)


def test_of_one_certificate_so_many_questions_are_answered_at_once(here: Start) -> None:
    ready = threading.Event()

    def waits(ask: Ask) -> dict[str, Any]:
        ask.permit()
        while not ready.is_set():
            ask.answer.wait(0.02)
        return {}

    heart = here(status=waits, audit=fine)
    threads = [threading.Thread(target=heart.ask, args=("ann", "status")) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    until(lambda: len(heart.acts()) == AT_ONCE)
    with pytest.raises(UserError, match="too many questions at once"):
        heart.ask("ann", "status")
    heart.ask("bob", "audit")  # nobody else is kept out by that
    ready.set()
    for thread in threads:
        thread.join(WAIT)
    heart.ask("ann", "status")


def test_a_stranger_s_address_does_not_take_all_places(here: Start) -> None:
    heart = here(enrol=fine, status=fine)
    with contextlib.ExitStack() as held:
        ends = [held.enter_context(tls(heart, None)) for _ in range(AT_ONCE)]
        for end in ends:
            end.sendall(b"POST /v1/control/enrol HTTP/1.1\r\n")

        def refused() -> bool:
            with contextlib.suppress(UserError):
                heart.ask(None, "enrol")
                return False
            return True

        until(refused)
        heart.ask("ann", "status")
    until(lambda: not refused())


def test_strangers_do_not_fill_the_record(here: Start) -> None:
    def refuses(ask: Ask) -> dict[str, Any]:
        raise Denied("forged", "no")

    heart = here(enrol=refuses)
    for _ in range(70):
        with pytest.raises(UserError):
            heart.ask(None, "enrol")
    assert [line["reason"] for line in heart.acts()] == ["forged"] * 60 + ["too_many"]


def test_a_caller_who_leaves_ends_the_work(here: Start) -> None:
    gone, cut = threading.Event(), threading.Event()

    def endless(ask: Ask) -> dict[str, Any]:
        ask.permit()
        ask.answer.at_close(cut.set)
        ask.say("begun")
        try:
            while True:
                ask.answer.wait(1.0)
        except Gone:
            gone.set()
            raise

    heart = here(logs=endless)
    with tls(heart, "ann") as end:
        end.sendall(request("logs"))
        while b"begun" not in end.recv(65_536):
            pass
    assert gone.wait(WAIT)
    assert cut.wait(WAIT)


def test_a_slow_reader_keeps_the_work_waiting_and_takes_no_memory(here: Start) -> None:
    made = 0

    def pours(ask: Ask) -> dict[str, Any]:
        nonlocal made
        ask.permit()
        for _ in range(2_000):
            ask.say("x" * 100_000)
            made += 1
        return {}

    heart = here(logs=pours)
    with tls(heart, "ann") as end:
        end.sendall(request("logs"))
        until(lambda: made)
        before = -1
        while made != before:  # until it stands still
            before = made
            time.sleep(1.0)
        assert made < 500
        taken = 0
        while data := end.recv(1 << 20):
            taken += len(data)
    assert taken > 2_000 * 100_000


def test_a_quiet_answer_shows_that_it_is_alive(here: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.control.BEAT", 0.05)

    enough = threading.Event()

    def quiet(ask: Ask) -> dict[str, Any]:
        ask.permit()
        while not enough.is_set():
            ask.answer.wait(0.02)
        return {}

    heart = here(logs=quiet)
    with tls(heart, "ann") as end:
        end.sendall(request("logs"))
        taken = b""
        while taken.count(b"{}\n") < 4:
            data = end.recv(65_536)
            assert data
            taken += data
        enough.set()
        assert b'{"result":{}}' in heard(end)


def test_a_bug_is_told_without_what_it_was_and_noted(here: Start, capfd: pytest.CaptureFixture[str]) -> None:
    def broken(ask: Ask) -> dict[str, Any]:
        raise LookupError("the secret is 42")

    def forgetful(ask: Ask) -> dict[str, Any]:
        return {}

    heart = here(status=broken, audit=forgetful)
    for who, verb in (("ann", "status"), ("bob", "audit")):
        with pytest.raises(RunFailed, match=r"control\.log") as told:
            heart.ask(who, verb, {"password": "hunter2"})
        assert "42" not in str(told.value)
    assert [line["reason"] for line in heart.acts()] == ["failed", "failed"]
    logged = capfd.readouterr().err
    assert "LookupError" in logged
    assert "hunter2" not in logged


def test_where_the_record_cannot_be_written_nothing_is_done(here: Start) -> None:
    done: list[str] = []

    def does(ask: Ask) -> dict[str, Any]:
        ask.permit()
        done.append(ask.verb)
        return {}

    heart = here(status=does)
    (heart.server / "acts.jsonl").mkdir()
    with pytest.raises(RunFailed, match="cannot write its record of acts"):
        heart.ask("ann", "status")
    assert done == []


class Full:
    """A log that there is no room for."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    flush = lambda self: None  # noqa: E731


@pytest.mark.parametrize("log", [True, False])
def test_that_the_server_s_disk_is_full_is_said_and_logged(
    here: Start, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], log: bool
) -> None:
    def full(path: Path, line: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def breaks(ask: Ask) -> dict[str, Any]:
        raise LookupError

    def asks(ask: Ask) -> dict[str, Any]:
        ask.permit()
        return {}

    heart = here(status=asks, audit=breaks)
    monkeypatch.setattr("server.acts.append_line", full)
    if not log:
        monkeypatch.setattr(sys, "stderr", Full())
    for who, verb in (("ann", "status"), ("bob", "audit")):
        with pytest.raises(RunFailed, match=r"^the server's disk is full: .*; its operator must make room$"):
            heart.ask(who, verb)
    lines = [line for line in capfd.readouterr().err.splitlines() if "the record cannot be written" in line]
    assert len(lines) == 2 * log
    assert all("No space left on device" in line for line in lines)


def test_the_line_is_on_disk_before_it_is_done_and_has_nothing_of_the_question(here: Start) -> None:
    found: list[bytes] = []

    def looks(ask: Ask) -> dict[str, Any]:
        ask.run()
        ask.permit()
        found.append((ask.folder / "acts.jsonl").read_bytes())
        return {}

    heart = here(logs=looks)
    heart.ask("ann", "logs", {"run": "r1", "more": "hunter2"})
    line = json.loads(found[0])
    assert (line["verb"], line["subject"], line["outcome"]) == ("logs", "r1", "allowed")
    assert b"hunter2" not in found[0]
    for name in ("../r1", "r1\nfake", "", 5, None, "r" * 65):
        with pytest.raises(UserError, match="no name of a run"):
            heart.ask("ann", "logs", {"run": name})
        assert (heart.acts()[-1]["subject"], heart.acts()[-1]["reason"]) == ("", "form")


def test_only_this_user_reaches_the_socket(here: Start) -> None:
    heart = here(status=fine)
    assert (heart.server / "run" / "control.sock").stat().st_mode & 0o077 == 0
    assert (heart.server / "run").stat().st_mode & 0o077 == 0
    for role in ("nobody", "site"):  # the control end does not count on the gate alone
        with at_socket(heart.server) as path, socket.socket(socket.AF_UNIX) as end:
            end.connect(path)
            lines = [f"hansa-role: {role}", "hansa-name: ", "hansa-certificate: ", "connection: close"]
            end.sendall(request("status", *lines))
            assert b"may not status" in heard(end)


def test_lines_cannot_move_the_terminal(here: Start) -> None:
    def rude(ask: Ask) -> dict[str, Any]:
        ask.permit()
        ask.say("\x1b[2J\x1b]0;title\x07red\r\x9b31m")
        return {}

    heart = here(logs=rude)
    assert heart.ask("ann", "logs", {"run": "r"}) == ["[2J]0;titlered31m"]


def test_lines_do_not_say_where_the_server_s_folder_is(here: Start) -> None:
    def tells(ask: Ask) -> dict[str, Any]:
        ask.permit()
        ask.say(f"{ask.folder}/runs/r1: see {ask.folder}")
        raise UserError(f"{ask.folder}/server.toml: wrong")

    heart, said = here(logs=tells), list[str]()
    with pytest.raises(UserError, match=r"^server.toml: wrong$"):
        heart.control("ann").ask("logs", {}, said.append)
    assert said == ["runs/r1: see the server's folder"]


def test_a_control_end_that_is_down_is_told_in_a_line(here: Start) -> None:
    heart = here(status=fine)
    (heart.server / "run" / "control.sock").unlink()
    with pytest.raises(Unanswered, match=rf"^127.0.0.1:{heart.port}: "):
        heart.ask("ann", "status")


def test_another_server_than_the_consortium_s_is_not_asked(here: Start, tmp_path: Path) -> None:
    heart = here(status=fine)
    other = make_person(
        Credential(
            (heart.folder / "consortium" / "ca.crt").read_bytes(), (heart.folder / "consortium" / "ca.key").read_bytes()
        ),
        Role.RESEARCHER,
        "ann",
        datetime.now(UTC),
    )
    (heart.server / "tls.crt").write_bytes(other.certificate)  # a member's certificate is good for no server
    (heart.server / "tls.key").write_bytes(other.key)
    with pytest.raises(Unanswered, match="not this consortium's server") as met:
        heart.ask("ann", "status")
    assert isinstance(met.value.error, ssl.SSLCertVerificationError)
    assert heart.acts() == []
