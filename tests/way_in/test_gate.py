"""The gate, with real TLS, real ends of runs and the HTTP server that Flower uses. Who comes in, and who does not."""

import base64
import contextlib
import datetime
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import h11
import pytest

from clients.link import Turned
from hansa import identity
from hansa.identity import Credential
from hansa.routes import CONTROL, FLEET, session_name
from hansa.wire.link_pb2 import Plan, ServerFrame
from server.arrivals import Joined, Left
from server.sessions import SESSION

if TYPE_CHECKING:
    from tests.way_in.conftest import Consortium, Flower

PATH = "/v1/fleet/pull-messages"
WAIT = 20.0
NOT_LET_IN = (OSError, EOFError)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@contextlib.contextmanager
def tls(context: ssl.SSLContext, port: int, name: str) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=WAIT) as plain,
        context.wrap_socket(plain, server_hostname=name) as end,
    ):
        yield end


def post(end: ssl.SSLSocket, node: str, path: str = PATH, body: bytes = b"hello") -> tuple[int, bytes]:
    """Status and body of the answer.

    Raises:
        EOFError, OSError: there is none.
    """
    http = h11.Connection(h11.CLIENT)
    key = base64.b64encode(node.encode())
    heads = [("host", "x"), ("content-length", str(len(body))), ("flwr-public-key", key.decode())]
    request = http.send(h11.Request(method="POST", target=path, headers=heads)) or b""
    end.sendall(request + (http.send(h11.Data(data=body)) or b"") + (http.send(h11.EndOfMessage()) or b""))
    status, content = 0, b""
    while True:
        event = http.next_event()
        if event is h11.NEED_DATA:
            if not (data := end.recv(65_536)) and not status:
                raise EOFError
            http.receive_data(data)
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            content += event.data
        else:
            return status, content


def noted(consortium: "Consortium", text: str) -> None:
    """A line of the gate's log, which may come after the caller has gone."""
    until(lambda: any(text in line for _, line in consortium.notes))


def node(consortium: "Consortium", site: str) -> str:
    member = consortium.roster.member(site)
    assert member is not None
    return member.nodes[0]


def test_a_site_reaches_flower_and_only_by_the_sites_interface(consortium: "Consortium", flower: "Flower") -> None:
    gate = consortium.gate(flower.port)
    context, key = consortium.context(consortium.site("boston")), node(consortium, "boston")
    with tls(context, gate, FLEET) as end:
        for body in (b"one", bytes(3_000_000), b""):
            assert post(end, key, body=body) == (200, body)
    for path in ("/v1/control/list-runs", "/v1/fleet/../control/list-runs", "/v1/runtime/pull"):
        with tls(context, gate, FLEET) as end:
            assert post(end, key, path)[0] == 403
            assert end.recv(1) == b""
    assert {seen[1] for seen in flower.seen} == {PATH}


def test_a_site_does_not_speak_for_another_one_s_node(consortium: "Consortium", flower: "Flower") -> None:
    gate = consortium.gate(flower.port)
    with tls(consortium.context(consortium.site("boston")), gate, FLEET) as end:
        assert post(end, node(consortium, "lyon"))[0] == 403
    assert flower.seen == []
    noted(consortium, "none that the roster has")


WHO = ["a stranger", "another consortium's site", "the server itself", "an expired one", "a revoked one", "no member"]


@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize("name", [FLEET, CONTROL, session_name("run")])
def test_nobody_else_comes_in_by_any_name(
    consortium: "Consortium", flower: "Flower", strangers: Path, who: str, name: str, tmp_path: Path
) -> None:
    gate, run = consortium.gate(flower.port), consortium.run("run")
    now = datetime.datetime.now(datetime.UTC)
    shown: dict[str, Path | Credential | None] = {
        "a stranger": None,
        "another consortium's site": strangers / "sites" / "boston",
        "the server itself": consortium.server,
        "an expired one": consortium.expired("boston"),
        "a revoked one": consortium.site("boston"),
        "no member": identity.make_site(consortium.authority, "berlin", now),
    }
    consortium.revoke("boston")
    if name == session_name("run") and who in ("a revoked one", "no member"):
        if who == "a revoked one":  # the run's own end reads the certificate: Hello is turned away
            with consortium.link("boston", "run", gate, tmp_path) as link, pytest.raises(Turned, match="was revoked"):
                link.next(WAIT)
        assert run.links.present() == set()
        return
    context = consortium.context(shown[who])
    context.set_alpn_protocols(["h2"])
    with pytest.raises(NOT_LET_IN), tls(context, gate, name) as end:
        post(end, node(consortium, "boston"))
    assert flower.seen == []
    assert run.links.present() == set()


def test_who_is_revoked_is_out_at_once_and_the_others_stay(
    consortium: "Consortium", flower: "Flower", tmp_path: Path
) -> None:
    gate, run = consortium.gate(flower.port), consortium.run("run")
    key = node(consortium, "boston")
    with (
        tls(consortium.context(consortium.site("boston")), gate, FLEET) as end,
        consortium.link("boston", "run", gate, tmp_path / "boston") as boston,
        consortium.link("lyon", "run", gate, tmp_path / "lyon") as lyon,
    ):
        assert post(end, key)[0] == 200
        until(lambda: run.links.present() == {"boston", "lyon"})
        consortium.revoke("boston")
        with pytest.raises(NOT_LET_IN):
            post(end, key)
        assert len(flower.seen) == 1
        assert not run.links.send("boston", ServerFrame(plan=Plan(id="p")))
        assert run.links.send("lyon", ServerFrame(plan=Plan(id="p")))
        with pytest.raises(Turned, match="was revoked"):
            boston.next(WAIT)
        frame = lyon.next(WAIT)
        assert frame is not None
        assert frame.plan.id == "p"
    events = [run.links.events.get(timeout=WAIT) for _ in range(3)]
    assert {type(event) for event in events} == {Joined, Left}


@pytest.mark.parametrize("damage", ["[]", None])
def test_a_damaged_or_missing_list_of_revocations_lets_nobody_in(
    consortium: "Consortium", flower: "Flower", tmp_path: Path, damage: str | None
) -> None:
    gate, run = consortium.gate(flower.port), consortium.run("run")
    (consortium.server / "revoked.json").unlink()
    if damage is not None:
        (consortium.server / "revoked.json").write_text(damage)
    with pytest.raises(NOT_LET_IN), tls(consortium.context(consortium.site("lyon")), gate, FLEET) as end:
        post(end, node(consortium, "lyon"))
    noted(consortium, "until it is mended, nobody is let in")
    with consortium.link("lyon", "run", gate, tmp_path) as link, pytest.raises(Turned, match="damaged") as turned:
        link.next(WAIT)
    assert str(consortium.server) not in str(turned.value)
    assert run.links.present() == set()


def test_two_runs_are_told_apart_by_name_and_a_run_that_is_gone_has_no_way_in(
    consortium: "Consortium", flower: "Flower", tmp_path: Path
) -> None:
    gate, one, two = consortium.gate(flower.port), consortium.run("one"), consortium.run("two")
    with consortium.link("boston", "one", gate, tmp_path / "1"), consortium.link("lyon", "two", gate, tmp_path / "2"):
        until(lambda: one.links.present() and two.links.present())
        assert (one.links.present(), two.links.present()) == ({"boston"}, {"lyon"})
    context = consortium.context(consortium.site("boston"))
    with pytest.raises(NOT_LET_IN), tls(context, gate, session_name("three")):
        pass
    noted(consortium, "a session of a run that is not held here")


def test_the_port_that_a_dead_run_has_left_leads_nowhere(consortium: "Consortium", flower: "Flower") -> None:
    """Flower's SuperLink may have got that port since, and it asks for no certificate."""
    gate, run = consortium.gate(flower.port), consortium.run("run")
    noted = consortium.server / "runs" / "run" / SESSION
    noted.write_text(noted.read_text().replace(str(run.port), str(flower.port)).replace('"epoch": 1', '"epoch": 0'))
    with pytest.raises(NOT_LET_IN), tls(consortium.context(None), gate, session_name("run")) as end:
        post(end, "")
    assert flower.seen == []


def test_what_is_no_hello_is_closed_at_once_and_a_slow_one_in_time(consortium: "Consortium", flower: "Flower") -> None:
    gate = consortium.gate(flower.port, hello=0.3)
    for data in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05\x01\x00\x80\x00\x00", b"\x16\x03\x01\x00\x00"):
        with socket.create_connection(("127.0.0.1", gate), timeout=WAIT) as end:
            end.sendall(data)
            with contextlib.suppress(ConnectionError):
                assert end.recv(1) == b""
    with socket.create_connection(("127.0.0.1", gate), timeout=WAIT) as end:
        end.sendall(b"\x16\x03\x01\x02\x00")
        with pytest.raises(ConnectionError):
            trickle(end)


def trickle(end: socket.socket) -> None:
    """Sends a byte each 20 ms, as long as somebody takes them."""
    for _ in range(10_000):
        end.sendall(b"\0")
        time.sleep(0.02)


@pytest.mark.parametrize("name", ["fl.example.org", "x.session.hansa", "a" * 32 + ".session.hansa.evil", "localhost"])
def test_another_name_leads_nowhere(consortium: "Consortium", flower: "Flower", name: str) -> None:
    gate = consortium.gate(flower.port)
    with pytest.raises(NOT_LET_IN), tls(consortium.context(consortium.site("boston")), gate, name):
        pass


def test_idle_connections_do_not_starve_a_real_one(consortium: "Consortium", flower: "Flower") -> None:
    gate = consortium.gate(flower.port, hello=60.0)
    with contextlib.ExitStack() as idle:
        for number in range(200):
            end = idle.enter_context(socket.create_connection(("127.0.0.1", gate), timeout=WAIT))
            if number % 2:
                end.sendall(b"\x16\x03\x01\x02\x00\x01")
        with tls(consortium.context(consortium.site("boston")), gate, FLEET) as real:
            assert post(real, node(consortium, "boston")) == (200, b"hello")


def test_of_too_many_that_say_nothing_the_oldest_goes(
    consortium: "Consortium", flower: "Flower", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.gate.WAITING", 3)
    gate = consortium.gate(flower.port, hello=60.0)
    with contextlib.ExitStack() as idle:
        ends = [idle.enter_context(socket.create_connection(("127.0.0.1", gate), timeout=WAIT)) for _ in range(4)]
        with contextlib.suppress(ConnectionError):
            assert ends[0].recv(1) == b""
        ends[3].settimeout(0.2)
        with pytest.raises(TimeoutError):
            ends[3].recv(1)
        with tls(consortium.context(consortium.site("boston")), gate, FLEET) as real:
            assert post(real, node(consortium, "boston"))[0] == 200


def test_one_address_does_not_take_all_places(
    consortium: "Consortium", flower: "Flower", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.gate.FROM_ONE", 2)
    gate = consortium.gate(flower.port, hello=60.0)
    places = [socket.create_connection(("127.0.0.1", gate), timeout=WAIT) for _ in range(3)]
    with contextlib.suppress(ConnectionError):
        assert places[2].recv(1) == b""
    for place in places:
        place.close()
    context = consortium.context(consortium.site("boston"))

    def let_in() -> bool:
        with contextlib.suppress(*NOT_LET_IN), tls(context, gate, FLEET) as real:
            return post(real, node(consortium, "boston"))[0] == 200
        return False

    until(let_in)


def test_a_new_certificate_counts_without_a_restart_and_a_half_written_one_does_not_stop_it(
    consortium: "Consortium", flower: "Flower"
) -> None:
    gate, context = consortium.gate(flower.port), consortium.context(consortium.site("boston"))

    def seen() -> bytes | None:
        with tls(context, gate, FLEET) as end:
            post(end, node(consortium, "boston"))
            return end.getpeercert(binary_form=True)

    first = seen()
    new = identity.make_server(consortium.authority, ["127.0.0.1"], datetime.datetime.now(datetime.UTC))
    (consortium.server / "tls.crt").write_bytes(new.certificate)  # its key is still the old one
    assert seen() == first
    noted(consortium, "the one before stands")
    (consortium.server / "tls.key").write_bytes(new.key)
    assert seen() == ssl.PEM_cert_to_DER_cert(new.certificate.decode())


def test_while_flower_is_down_the_site_gets_no_answer(consortium: "Consortium", flower: "Flower") -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    gate = consortium.gate(port)
    with pytest.raises(NOT_LET_IN), tls(consortium.context(consortium.site("boston")), gate, FLEET) as end:
        post(end, node(consortium, "boston"))
