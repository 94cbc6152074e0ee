"""The server name in a ClientHello, against hellos that OpenSSL makes and hellos that are built here (RFC 8446)."""

import contextlib
import itertools
import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.clienthello import LARGEST, HelloReader, NoName

NAME = "0123456789abcdef0123456789abcdef.session.hansa"
GREASE = 0x0A0A  # RFC 8701


def openssl(name: str | None = NAME) -> bytes:
    """What OpenSSL sends first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    down, up = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(down, up, server_hostname=name).do_handshake()
    return up.read()


HELLO = openssl()


def vector(size: int, content: bytes) -> bytes:
    return len(content).to_bytes(size, "big") + content


def server_name(*names: bytes) -> bytes:
    return vector(2, b"".join(b"\0" + vector(2, name) for name in names))


def hello(*extensions: tuple[int, bytes], behind: bytes = b"") -> bytes:
    """The message: version, random, session, suites, compression, extensions."""
    listed = b"".join(kind.to_bytes(2, "big") + vector(2, content) for kind, content in extensions)
    body = b"\x03\x03" + bytes(32) + vector(1, bytes(32)) + vector(2, b"\x13\x01") + vector(1, b"\0")
    return b"\x01" + vector(3, body + vector(2, listed) + behind)


def records(message: bytes, *cuts: int) -> bytes:
    """A message in TLS records, cut there."""
    ends = sorted({*(cut % len(message) for cut in cuts), len(message)} - {0})
    parts = [message[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    return b"".join(b"\x16\x03\x01" + vector(2, part) for part in parts)


def read(*pieces: bytes) -> str | None:
    reader, name = HelloReader(), None
    for piece in pieces:
        assert name is None
        name = reader.feed(piece)
    assert reader.taken == b"".join(pieces)
    return name


@pytest.mark.parametrize("name", ["fleet.hansa", NAME, "Fleet.Hansa", "a" * 63 + ".x", "localhost"])
def test_the_name_that_openssl_asks_for_is_read(name: str) -> None:
    assert read(openssl(name)) == name.lower()


def test_one_byte_less_is_not_enough_and_never_an_error() -> None:
    for end in range(len(HELLO)):
        assert read(HELLO[:end]) is None


def test_a_hello_may_come_byte_by_byte() -> None:
    assert read(*(HELLO[at : at + 1] for at in range(len(HELLO)))) == NAME


@given(cuts=st.lists(st.integers(0, 10_000)), pieces=st.lists(st.integers(0, 10_000)))
def test_neither_the_records_nor_the_pieces_matter(cuts: list[int], pieces: list[int]) -> None:
    whole = records(HELLO[5:], *cuts)
    marks = sorted({0, len(whole), *(piece % len(whole) for piece in pieces)})
    assert read(*(whole[begin:end] for begin, end in itertools.pairwise(marks))) == NAME


def test_a_hello_may_have_a_record_for_every_byte() -> None:
    assert read(records(HELLO[5:], *range(len(HELLO)))) == NAME


def test_what_follows_the_hello_is_kept_for_who_ends_the_tls() -> None:
    reader = HelloReader()
    assert reader.feed(HELLO + b"\x17\x03\x03early data") == NAME
    assert reader.taken == HELLO + b"\x17\x03\x03early data"


@given(others=st.lists(st.tuples(st.integers(1, 0xFFFF), st.binary(max_size=20)), unique_by=lambda one: one[0]))
def test_extensions_that_nobody_knows_do_not_matter(others: list[tuple[int, bytes]]) -> None:
    at = len(others) // 2
    listed = [*others[:at], (0, server_name(b"fleet.hansa")), *others[at:]]
    if GREASE not in dict(others):
        listed = [(GREASE, b""), *listed]
    assert read(records(hello(*listed))) == "fleet.hansa"


def test_a_name_that_stands_twice_is_no_name() -> None:
    """Two readers might take different ones."""
    one, other = server_name(b"fleet.hansa"), server_name(b"control.hansa")
    for message in (hello((0, one), (0, other)), hello((0, one), (0, one))):
        with pytest.raises(NoName, match="stands twice"):
            read(records(message))
    with pytest.raises(NoName, match="makes no sense"):
        read(records(hello((0, server_name(b"fleet.hansa", b"control.hansa")))))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        server_name(),
        server_name(b""),
        server_name(b"fleet.hansa\0"),
        server_name(b"fleet..hansa"),
        server_name(b"fl\xc3\xa9et.hansa"),
        server_name(b"a" * 64),
        server_name(b".".join([b"a" * 60] * 5)),
        server_name(b"fleet.hansa")[:-1],
        server_name(b"fleet.hansa") + b"\0",
        vector(2, b"\1" + vector(2, b"fleet.hansa")),
    ],
    ids=range(11),
)
def test_a_name_that_makes_no_sense_is_no_name(content: bytes) -> None:
    with pytest.raises(NoName):
        read(records(hello((0, content))))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (openssl(None), "no server name"),
        (records(hello()), "no server name"),
        (records(hello((0, server_name(b"a")), behind=b"x")), "more behind it"),
        (records(b"\x01" + vector(3, b"\x03\x03" + bytes(20))), "cut short"),
        (records(b"\x01" + (1 << 23).to_bytes(3, "big")), "too long"),
        (records(b"\x02" + vector(3, b"")), "no hello"),
        (b"GET / HTTP/1.1\r\n", "no TLS"),
        (b"\x16\x02", "no TLS"),
        (b"\x16\x03\x01\x00\x00", "no TLS"),  # an empty record
        (b"\x16\x03\x01\xff\xff", "no TLS"),
        (b"\x17\x03\x01\x00\x01\x00", "no TLS"),
        (b"\x80\x2e\x01\x00\x02", "no TLS"),  # SSL 2
    ],
    ids=range(12),
)
def test_what_is_no_hello_with_a_name_is_told_at_once(data: bytes, says: str) -> None:
    with pytest.raises(NoName, match=says):
        read(data)


def test_a_hello_that_never_ends_is_given_up() -> None:
    reader, message = HelloReader(), b"\x01\x00\x40\x00" + bytes(16_000)
    whole = records(message, *range(len(message)))
    for byte in whole[:LARGEST]:
        assert reader.feed(bytes([byte])) is None
    with pytest.raises(NoName, match="too long"):
        reader.feed(whole[LARGEST : LARGEST + 1])
    assert len(reader.taken) == LARGEST + 1


@given(data=st.binary(max_size=400))
def test_garbage_is_waited_for_or_refused(data: bytes) -> None:
    with contextlib.suppress(NoName):
        assert read(data) is None


@given(st.data())
def test_a_damaged_hello_is_read_waited_for_or_refused(data: st.DataObject) -> None:
    damaged = bytearray(HELLO)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        name = read(bytes(damaged))
    except NoName:
        return
    assert name is None or name.isascii()
