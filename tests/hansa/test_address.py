"""Addresses: what is one, and what is told about one that is not."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from hansa.address import Dialled, Listens, is_host, is_loopback, join, split
from hansa.words import spoken

HOSTS = st.one_of(st.ip_addresses().map(str), st.sampled_from(["localhost", "fl.example.org", "a_b-c.d", "x"]))


@given(HOSTS, st.integers(0, 65535))
def test_split_undoes_join(host: str, port: int) -> None:
    assert is_host(host)
    assert split(join(host, port)) == (host, port)


@pytest.mark.parametrize(
    "text",
    [
        *("", "host", ":1", "host:", "host:x", "host:-1", "host:65536", "::1:80", "[host]:80", "[::1]", "h:1:2"),
        *("a b:1", "http://h:1", "1.2.3:80", "256.1.1.1:80", "a..b:1", "-a:1", "h:1\n", "h:\N{ARABIC-INDIC DIGIT ONE}"),
        *(f"{'a' * 64}:1", f"{'a.' * 127}b:1"),
    ],
)
def test_what_is_no_address_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=re.escape("must be host:port, e.g. fl.example.org:9092; got ")):
        split(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("h:0", 'port 0 cannot be dialled; give the port of the other end; got "h:0"'),
        ("0.0.0.0:1", "0.0.0.0 cannot be dialled; give the name or IP address of the other end"),
        ("[::]:1", ":: cannot be dialled; give the name or IP address of the other end"),
    ],
)
def test_where_one_listens_is_not_always_where_one_dials(text: str, line: str) -> None:
    assert TypeAdapter(Listens).validate_python(text) == text
    with pytest.raises(ValidationError) as raised:
        TypeAdapter(Dialled).validate_python(text)
    assert spoken(raised.value.errors()[0]) == line


def test_loopback_is_this_machine_s() -> None:
    hosts = {
        host: is_loopback(host) for host in ["localhost", "127.0.0.1", "127.8.8.8", "::1", "10.0.0.1", "0.0.0.0", "h"]
    }
    assert [host for host, loopback in hosts.items() if loopback] == ["localhost", "127.0.0.1", "127.8.8.8", "::1"]
