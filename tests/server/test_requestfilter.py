"""What passes to Flower: held against what uvicorn, which serves Flower, makes of the bytes that come through."""

import base64
import posixpath
import socket
import threading
import urllib.parse
from collections.abc import Iterator
from typing import Any

import h11
import pytest
import uvicorn
from hypothesis import example, given
from hypothesis import strategies as st

from server.fleet import LARGEST_BODY, rules
from server.requestfilter import LARGEST_HEAD, Moves, RequestFilter

NODE = "-----BEGIN PUBLIC KEY-----\nMFkw\n-----END PUBLIC KEY-----\n"
KEY = b"flwr-public-key: " + base64.b64encode(NODE.encode())
PATH = b"/v1/fleet/pull-messages"
HOST = "127.0.0.1:9092"
ANSWER = b"HTTP/1.1 200 OK\r\ndate: now\r\ncontent-type: application/x-protobuf\r\ncontent-length: 2\r\n\r\nhi"


def request(
    target: bytes = PATH, *lines: bytes, body: bytes = b"body", method: bytes = b"POST", version: bytes = b"HTTP/1.1"
) -> bytes:
    heads = [b" ".join([method, target, version]), b"Host: 127.0.0.1:1", KEY, *lines]
    if not any(line.lower().startswith((b"content-length", b"transfer-encoding")) for line in lines):
        heads.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*heads, b"", body])


def new() -> RequestFilter:
    return RequestFilter(rules(HOST, [NODE]))


def fed(data: bytes, one: RequestFilter | None = None) -> Moves:
    return (one or new()).from_caller(data)


def status(moves: Moves) -> int:
    """Of a refusal, which reaches the site as one whole answer, and the server not at all."""
    assert moves.over
    assert moves.refused
    assert moves.to_server == b""
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(moves.to_caller)
    response = client.next_event()
    assert isinstance(response, h11.Response)
    assert isinstance(client.next_event(), h11.Data)
    assert isinstance(client.next_event(), h11.EndOfMessage)
    assert client.their_state is h11.MUST_CLOSE
    return response.status_code


class Uvicorn:
    """The server that Flower uses; it notes which requests it saw."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, bytes]] = []
        self.server = uvicorn.Server(
            uvicorn.Config(self.app, lifespan="off", interface="asgi3", ws="none", log_level="critical")
        )
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.thread = threading.Thread(target=self.server.run, args=([self.listener],))
        self.thread.start()

    async def app(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        self.seen.append((scope["method"], scope["path"], body))
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    def sees(self, data: bytes) -> list[tuple[str, str, bytes]]:
        """The requests that it takes these bytes for."""
        self.seen.clear()
        with socket.create_connection(self.listener.getsockname(), timeout=10) as client:
            client.sendall(data + b"GET /end HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            while client.recv(65_536):
                pass
        assert self.seen.pop() == ("GET", "/end", b"")  # so all before it was read
        return self.seen


@pytest.fixture(scope="module")
def flower() -> Iterator[Uvicorn]:
    one = Uvicorn()
    yield one
    one.server.should_exit = True
    one.thread.join()
    one.listener.close()


def test_a_request_goes_on_as_it_is_and_its_answer_comes_back(flower: Uvicorn) -> None:
    one = new()
    lines = [b"Content-Type: application/x-protobuf", b"flwr-timestamp: 2026", b"x-flwr-client: x"]
    moves = fed(request(PATH, *lines, body=bytes(range(256))), one)
    assert not moves.over
    assert moves.to_caller == b""
    assert flower.sees(moves.to_server) == [("POST", PATH.decode(), bytes(range(256)))]
    head = moves.to_server.partition(b"\r\n\r\n")[0].lower().split(b"\r\n")
    assert {*head[1:]} >= {b"host: 127.0.0.1:9092", KEY.lower(), *(line.lower() for line in lines)}
    back = one.from_server(ANSWER)
    assert not back.over
    client = h11.Connection(h11.CLIENT)
    client.send(h11.Request(method="POST", target="/", headers=[("host", "x")]))
    client.send(h11.EndOfMessage())
    client.receive_data(back.to_caller)
    response = client.next_event()
    assert isinstance(response, h11.Response)
    assert dict(response.headers) == {b"content-type": b"application/x-protobuf", b"content-length": b"2"}
    assert client.next_event() == h11.Data(data=b"hi")
    assert not fed(request(), one).over  # the connection serves another


def test_it_may_come_and_be_answered_byte_by_byte() -> None:
    one, up, down = new(), b"", b""
    for _ in range(2):
        for byte in request():
            up += one.from_caller(bytes([byte])).to_server
        for byte in ANSWER:
            moves = one.from_server(bytes([byte]))
            assert not moves.over
            down += moves.to_caller
    assert up == 2 * fed(request()).to_server
    assert down.count(b"hi") == 2


def test_an_answer_in_chunks_or_up_to_the_end_comes_back_whole() -> None:
    for answer in (
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nhi",
    ):
        one = new()
        fed(request(), one)
        moves = one.from_server(answer), one.from_server(b"")
        whole = b"".join(move.to_caller for move in moves)
        assert whole.endswith(b"\r\n\r\n2\r\nhi\r\n0\r\n\r\n")
        assert moves[-1].over


def test_who_comes_for_another_node_is_refused() -> None:
    """A certificate of one site and the node key of another: TLS and Flower would each be content."""
    other = base64.b64encode(NODE.replace("MFkw", "MFkx").encode())
    assert status(fed(request().replace(KEY, b"flwr-public-key: " + other))) == 403
    assert status(fed(request().replace(KEY + b"\r\n", b""))) == 403


def test_a_site_speaks_for_each_of_its_nodes() -> None:
    second = NODE.replace("MFkw", "MFkx")
    for node in (NODE, second):
        one, key = RequestFilter(rules(HOST, [NODE, second])), b"flwr-public-key: " + base64.b64encode(node.encode())
        assert key in fed(request().replace(KEY, key), one).to_server


PATHS = [
    b"/v1/control/start-run",
    b"/v1/fleet/../control/start-run",
    b"/v1/fleet/..",
    b"/v1/fleet/%2e%2e/control",
    b"/v1/fleet/%2E%2E%2Fcontrol",
    b"/v1/fleet%2Fpull-messages",
    b"/v1/fleet/%252e%252e/control",
    b"/v1/fleet/..;/control",
    b"/v1/fleet/..\\control",
    b"/v1/fleet//pull-messages",
    b"//v1/fleet/pull-messages",
    b"/v1//fleet/pull-messages",
    b"/v1/fleet/./pull-messages",
    b"/v1/fleet",
    b"/v1/fleet/",
    b"/V1/fleet/pull-messages",
    b"/v1/fleet/pull-messages/",
    b"/v1/fleet/pull-messages?a=/v1/control",
    b"/v1/fleet/pull-messages#x",
    b"/v1/fleet/pull-messages%00",
    b"/api/v1/fleet/pull-messages",
    b"/docs",
    b"*",
    b"http://127.0.0.1:9092/v1/control/start-run",
    b"http://127.0.0.1:9092/v1/fleet/pull-messages",
    b"v1/fleet/pull-messages",
    b"127.0.0.1:9092",
]


@pytest.mark.parametrize("path", PATHS)
def test_no_trick_in_a_path_passes(path: bytes) -> None:
    assert status(fed(request(path))) == 403


@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"OPTIONS", b"CONNECT", b"TRACE", b"post", b"PRI"])
def test_no_other_method_passes(method: bytes) -> None:
    assert status(fed(request(method=method))) in (400, 403)


@pytest.mark.parametrize(
    "raw",
    [
        request(PATH, b"Content-Length: 4", b"Content-Length: 4"),
        request(PATH, b"Content-Length: 4", b"Content-Length: 0"),
        request(PATH, b"Content-Length: 4, 4"),
        request(PATH, b"Content-Length: +4"),
        request(PATH, b"Content-Length: 0x4"),
        request(PATH, b"Content-Length: -1"),
        request(PATH, b"Content-Length : 4"),
        request(PATH, b"Content-Length: " + b"9" * 21),
        request(PATH, b"Content-Length: 4", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        request(PATH, b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"),
        request(PATH, b"Transfer-Encoding: identity"),
        request(PATH, b"transfer-encoding\t: chunked", body=b"0\r\n\r\n"),
        request(PATH, b"X: a", b" b"),
        request(PATH, b"\tX: a"),
        request(PATH, b"X: a\nContent-Length: 0"),
        request(PATH, b"X: a\rContent-Length: 0"),
        request(PATH, b"X: a\0"),
        request(PATH, b"X y: a"),
        request(PATH, b"no colon"),
        request(PATH, b": empty"),
        request(PATH, b"Host: evil"),
        request(version=b"HTTP/1.0"),
        request(version=b"HTTP/2.0"),
        request(version=b"HTTP/1.1 x"),
        b"\r\n" + request(),
        b"\r\n\r\n" + request(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\r\n\r\n",
        bytes(100) + b"\r\n\r\n",
    ],
    ids=range(29),
)
def test_nothing_that_two_readers_may_take_differently_passes(raw: bytes) -> None:
    assert status(fed(raw)) == 400


def test_what_is_too_large_is_refused_before_it_has_come() -> None:
    assert status(fed(b"POST " + PATH + b" HTTP/1.1\r\nX: " + b"a" * LARGEST_HEAD)) == 431
    assert status(fed(request(PATH, *(b"X%d: a" % number for number in range(100))))) == 431
    assert status(fed(request(PATH, b"Content-Length: %d" % (LARGEST_BODY + 1)))) == 413


def test_a_second_request_before_the_answer_ends_the_connection_without_a_word_of_ours() -> None:
    """A word of ours would be taken for the server's answer to the first."""
    one = new()
    assert fed(request(), one).to_server
    assert fed(request(b"/v1/control/start-run"), one) == Moves(
        over=True, refused="a request before the last one was answered"
    )
    moves = fed(request() + request(b"/v1/control/start-run"))
    assert (moves.to_server, moves.to_caller, moves.over) == (b"", b"", True)


def test_an_end_that_closes_ends_the_other() -> None:
    for cut in (0, 40, len(request()) - 1):
        one = new()
        if cut:
            fed(request()[:cut], one)
        assert fed(b"", one).over
    assert new().from_server(b"").over
    one = new()
    fed(request(), one)
    assert one.from_server(ANSWER[:-1]).to_caller
    assert one.from_server(b"").over


def test_an_answer_that_nobody_asked_for_reaches_nobody() -> None:
    assert new().from_server(ANSWER) == Moves(over=True)


def test_an_early_refusal_of_the_server_s_comes_back_and_ends_the_connection() -> None:
    one = new()
    fed(request()[:-1], one)
    moves = one.from_server(ANSWER.replace(b"200 OK", b"401 No"))
    assert moves.to_caller.startswith(b"HTTP/1.1 401 No")
    assert moves.over


def passed(moves: Moves, flower: Uvicorn) -> None:
    """What came through is one request, and it is for the sites' interface."""
    if not moves.to_server:
        return
    (seen,) = flower.sees(moves.to_server)
    method, path, _ = seen
    assert method == "POST"
    assert path.startswith("/v1/fleet/")
    assert posixpath.normpath(urllib.parse.unquote(path)) == path


WORDS = [b"v1", b"fleet", b"control", b"get-run", b"http:", b"%2e", b"%2F", b"%5c", b"..", b"//", b"\r\n"]
PIECES = st.sampled_from([*WORDS, *(bytes([byte]) for byte in b"/.%\\;?#-A \t\0\xff@*")])


@given(tail=st.lists(PIECES, max_size=6), head=st.sampled_from([b"/v1/fleet/", b"/v1/fleet", b"/v1/", b"/", b""]))
@example(tail=[b"get-run"], head=b"/v1/fleet/")
def test_whatever_passes_is_for_the_sites_interface(flower: Uvicorn, head: bytes, tail: list[bytes]) -> None:
    passed(fed(request(head + b"".join(tail))), flower)


@given(st.data())
def test_a_damaged_request_is_one_request_for_the_sites_interface_or_none(flower: Uvicorn, data: st.DataObject) -> None:
    raw = bytearray(request(PATH, b"Content-Type: a/b", body=b"\r\n\r\nPOST /v1/control/start-run HTTP/1.1\r\n\r\n"))
    marks = st.sampled_from(
        [b"", b"\r\n", b"\n", b"\r", b" ", b":", b"\0", b"%2e", b"..", b"5", b"Content-Length: 3\r\n"]
    )
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw)))
        raw[at : at + data.draw(st.integers(0, 2))] = data.draw(marks)
    one, to_server, cut = new(), b"", data.draw(st.integers(0, len(raw)))
    for piece in (bytes(raw[:cut]), bytes(raw[cut:])):
        moves = one.from_caller(piece) if piece else Moves()
        to_server += moves.to_server
        if moves.over:
            break
    if h11_complete(to_server):
        passed(Moves(to_server=to_server), flower)


def h11_complete(data: bytes) -> bool:
    """Whether all of a request is there: the rest of a cut one would be waited for."""
    one = h11.Connection(h11.SERVER)
    if not data:
        return False
    one.receive_data(data)
    while one.next_event() not in (h11.NEED_DATA, h11.PAUSED):
        pass
    return one.their_state is h11.DONE
