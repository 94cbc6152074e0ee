"""Who gets a session, and what those hear who do not."""

import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.wire.link_pb2 import Hello
from server.hello import Terms, check, known_site, token

SECRET = b"of the run"
TERMS = Terms("run-7", 3, ["a", "b"], "layout", "strategy", SECRET)


def hello(**change: object) -> Hello:
    good = Hello(major=1, minor=0, run="run-7", epoch=2, node=5, layout="layout", strategy="strategy")
    good.token = token(SECRET, "run-7", "a", 5)
    for name, value in change.items():
        setattr(good, name, value)
    return good


def test_token_is_an_hmac_of_run_site_and_node() -> None:
    """By the standard library's one-shot function over the text written out."""
    assert token(b"k", "r", "a", 5) == hmac.digest(b"k", b'["r","a",5]', hashlib.sha256).hex()


def test_invited_site_is_let_in_by_any_minor_and_by_a_later_epoch() -> None:
    assert check(hello(), "a", TERMS) is None
    assert check(hello(minor=9, epoch=3), "a", TERMS) is None


@pytest.mark.parametrize(
    ("change", "site", "code", "says"),
    [
        ({"major": 2}, "a", "version", "this site speaks protocol 2.0, the server 1.2; update hansa at the server"),
        ({"major": 0}, "a", "version", "update hansa at the site"),
        ({}, None, "certificate", "names no site of this federation"),
        ({}, "b", "token", "not one for site b"),
        ({"node": 6}, "a", "token", "not one for site a"),
        ({"token": ""}, "a", "token", "not one for site a"),
        ({"token": "é"}, "a", "token", "not one for site a"),
        ({"run": "run-6", "token": token(SECRET, "run-6", "a", 5)}, "a", "run", "run run-6 is not held here"),
        ({"epoch": 4}, "a", "epoch", "this server is of epoch 3, the site has seen 4"),
        ({"layout": "other"}, "a", "layout", "shared tensors differ"),
        ({"layout": ""}, "a", "layout", "shared tensors differ"),
        ({"strategy": "other"}, "a", "strategy", "[strategy] differs"),
    ],
)
def test_others_are_turned_away_in_one_line(change: dict[str, object], site: str | None, code: str, says: str) -> None:
    turned = check(hello(**change), site, TERMS)
    assert turned is not None
    assert (turned.code, "\n" in turned.line) == (code, False)
    assert says in turned.line


@given(raw=st.binary(max_size=100))
def test_no_random_hello_is_let_in(raw: bytes) -> None:
    said = Hello(major=1, run="run-7", epoch=1, layout="layout", strategy="strategy", token=raw.hex())
    assert check(said, "a", TERMS) is not None


def test_a_certificate_names_a_site_by_its_whole_uri() -> None:
    assert known_site({"hansa://site/a"}, ["a", "b"]) == "a"
    for uri in ("hansa://site/ab", "hansa://site/", "a", "https://site/a", "hansa://site/a/b"):
        assert known_site({uri}, ["a", "b"]) is None


def test_the_secret_is_in_no_repr() -> None:
    assert "of the run" not in repr(TERMS)
