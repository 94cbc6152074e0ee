"""The roster: one changed byte, and nobody believes it."""

import json

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hansa.errors import UserError
from hansa.identity import KeyPair, make_node_key, make_signing_key
from hansa.roster import CONTEXT, Member, Roster, sign, verified

KEY = make_signing_key()
DIGEST = f"sha256:{'0' * 64}"


def member(name: str) -> Member:
    return Member(name=name, tls=DIGEST, sign=make_signing_key().public, nodes=(make_node_key().public,))


ROSTER = Roster(consortium="heart", edition=1, ca=DIGEST, sites=(member("boston"), member("lyon")))
DATA = ROSTER.to_bytes()
SIGNATURE = sign(DATA, KEY.private)


def problem(data: bytes, signature: bytes, key: str) -> str:
    with pytest.raises(UserError) as raised:
        verified(data, signature, key)
    (line,) = raised.value.problems
    return line


def test_what_was_signed_is_read_again() -> None:
    assert verified(DATA, SIGNATURE, f"{KEY.public}\n") == ROSTER
    assert ROSTER.member("lyon") == ROSTER.sites[1]
    assert ROSTER.member("bern") is None


def test_no_two_nodes_have_one_key() -> None:
    """Flower would take what one site's node sends for another's."""
    boston, lyon = ROSTER.sites
    for sites in (
        (boston, lyon.model_copy(update={"nodes": (*lyon.nodes, *boston.nodes)})),
        (boston.model_copy(update={"nodes": boston.nodes * 2}), lyon),
    ):
        with pytest.raises(ValidationError, match="a node's key stands twice"):
            Roster(consortium="heart", edition=1, ca=DIGEST, sites=sites)


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused(at: int, by: int) -> None:
    changed = bytes([*DATA[:at], DATA[at] ^ by, *DATA[at + 1 :]])
    assert problem(changed, SIGNATURE, KEY.public).startswith("roster.json: its signature (roster.sig) is not by")


@pytest.mark.parametrize("signature", [b"", b"zz", b"\xff", sign(DATA, make_signing_key().private), SIGNATURE[:-3]])
def test_another_signature_is_refused(signature: bytes) -> None:
    assert problem(DATA, signature, KEY.public).startswith("roster.json: its signature (roster.sig) is not by")


@pytest.mark.parametrize("key", ["", "zz", KEY.public[:-2], "\N{REPLACEMENT CHARACTER}"])
def test_what_is_no_roster_key_is_told(key: str) -> None:
    line = "roster.pub: not a roster key; copy it anew from the consortium's folder"
    assert problem(DATA, SIGNATURE, key) == line


def test_a_roster_of_a_later_version_is_told() -> None:
    later = json.dumps({**json.loads(DATA), "quorum": 2}).encode()
    line = "roster.json: signed, but not of a form that this version of hansa knows; update it"
    assert problem(later, sign(later, KEY.private), KEY.public) == line


def test_the_signature_is_ed25519_over_the_context_and_the_file() -> None:
    """So that another implementation can check it (RFC 8032)."""
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(KEY.public))
    public.verify(bytes.fromhex(SIGNATURE.decode()), b"hansa/roster/1\n" + DATA)
    assert CONTEXT == b"hansa/roster/1\n"


def test_the_bytes_are_canonical() -> None:
    assert json.dumps(json.loads(DATA), sort_keys=True, separators=(",", ":")).encode() == DATA
    assert DATA.isascii()


@pytest.mark.parametrize("names", [("lyon", "boston"), ("boston", "boston")])
def test_sites_stand_in_order_each_once(names: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError):
        Roster(consortium="heart", edition=1, ca=DIGEST, sites=tuple(map(member, names)))


def test_a_key_pair_does_not_show_its_private_half() -> None:
    for pair in (KEY, make_node_key()):
        assert isinstance(pair, KeyPair)
        assert pair.private.decode().splitlines()[1] not in f"{pair} {pair!r}"
