"""CONNECT through a proxy (RFC 9110, section 9.3.6) and Basic credentials (RFC 7617)."""

import traceback
from pathlib import Path

import pytest

from clients.dial import way
from clients.sitefile import load_site_file
from hansa.dial import PROXY
from hansa.errors import UserError
from hansa.proxy import Connect, Proxy, Refused, parse

SECRET = "http://me:hunter2@p:1"
OPEN = b"HTTP/1.1 200 Connection established\r\n\r\n"


def test_credentials_are_those_of_rfc_7617() -> None:
    """The example of section 2: user Aladdin, password "open sesame"."""
    assert parse("http://Aladdin:open%20sesame@proxy:3128") == Proxy(
        "proxy", 3128, "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="
    )


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://proxy:3128", "proxy:3128"),
        ("http://proxy:3128/", "proxy:3128"),
        ("http://10.0.0.5:80", "10.0.0.5:80"),
        ("http://[2001:db8::7]:3128", "[2001:db8::7]:3128"),
        ("http://a:b:c%40d@proxy:3128", "proxy:3128"),
        ("http://a:b@c@proxy:3128", "proxy:3128"),
        ("http://:@proxy:3128", "proxy:3128"),
    ],
)
def test_what_is_shown_of_a_proxy_is_its_address(url: str, shown: str) -> None:
    proxy = parse(url)
    assert str(proxy) == shown
    assert (proxy.authorization is None) == ("@" not in url)


@pytest.mark.parametrize(
    "url",
    [
        *("", "proxy:3128", "http://", "http://proxy", "http://proxy:0", "http://proxy:x", "http://proxy:3128/x"),
        *("socks5://proxy:1080", "https://proxy:3128", "http://a@proxy:3128", "http://p:1\r\nX: y", "HTTP://p:1", 1),
    ],
)
def test_what_is_no_proxy_is_refused_without_a_word_of_it(url: object) -> None:
    with pytest.raises(ValueError, match=r"^must be http://proxy:3128 or http://user:password@proxy:3128;"):
        parse(url)


def test_the_question_names_the_server_and_who_asks() -> None:
    lines = Connect("fl.example.org:443", parse("http://a:b@proxy:3128")).question.split(b"\r\n")
    assert lines[0] == b"CONNECT fl.example.org:443 HTTP/1.1"
    assert {line.lower() for line in lines[1:-2]} == {b"host: fl.example.org:443", b"proxy-authorization: basic ytpi"}
    assert lines[-2:] == [b"", b""]


def test_the_way_is_open_when_the_whole_head_has_come() -> None:
    connect = Connect("h:1", Proxy("p", 1))
    assert [connect.feed(bytes([byte])) for byte in OPEN] == [False] * (len(OPEN) - 1) + [True]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 407 No\r\ncontent-length: 9\r\n\r\n", "wants another user or password"),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", "status 403"),
        (b"HTTP/1.1 302 Found\r\nlocation: http://login\r\n\r\n", "status 302"),
        (b"\x16\x03\x01\x00\x05hello\r\n\r\n", "no HTTP"),
        (b"SSH-2.0-x\r\n\r\n", "no HTTP"),
        (OPEN + b"x", "more than it should"),
        (b"", "closed the connection without an answer"),
    ],
)
def test_a_proxy_that_does_not_connect_is_told_in_words_without_the_password(answer: bytes, says: str) -> None:
    connect = Connect("h:1", parse(SECRET))
    with pytest.raises(Refused, match=f"^proxy p:1 .*({says})") as raised:
        connect.feed(answer)
    said = "".join(traceback.format_exception(raised.value))
    assert "hunter2" not in said
    assert "bWU6aHVudGVyMg" not in said


def test_the_environment_s_proxy_counts_where_site_toml_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path := tmp_path / "site.toml").write_text('[site]\nname = "lyon"\nserver = "h:443"\n[network]\ngate = true\n')
    monkeypatch.delenv(PROXY, raising=False)
    assert way(load_site_file(path)).proxy is None
    monkeypatch.setenv(PROXY, "http://me:hunter2@theirs:3128")
    assert str(way(load_site_file(path)).proxy) == "theirs:3128"
    monkeypatch.setenv(PROXY, "me:hunter2@theirs:3128")
    with pytest.raises(UserError, match=r"^HANSA_PROXY: must be http://") as raised:
        way(load_site_file(path))
    assert "hunter2" not in "".join(traceback.format_exception(raised.value))
    path.write_text(path.read_text() + 'proxy = "http://mine:3128"\n')
    assert str(way(load_site_file(path)).proxy) == "mine:3128"
