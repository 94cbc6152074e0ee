"""Invitation kits: what comes as one is whole and signed, or is told in one line that repeats nothing of it."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hansa.errors import UserError
from hansa.identity import make_authority, make_signing_key, make_site
from hansa.kit import LARGEST, Facts, make_kit, parse_kit, read_kit

NOW = datetime.now(UTC)
AUTHORITY, ROSTER_KEY = make_authority("heart", NOW), make_signing_key()
FACTS = Facts(
    hansa_kit=1,
    consortium="heart",
    server="fl.example.org:443",
    ca=AUTHORITY.certificate.decode(),
    roster_key=ROSTER_KEY.public,
)
KIT = make_kit(FACTS, "bern", ROSTER_KEY.private, NOW)
DATA = KIT.to_bytes()
TOKENS = (KIT.invited.invitation.nonce, KIT.invited.signature)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def line(data: bytes) -> str:
    """The refusal: one line that holds nothing of what lets somebody in."""
    with pytest.raises(UserError) as raised:
        parse_kit(data, "bern.kit")
    (problem,) = raised.value.problems
    assert problem.startswith("bern.kit: ")
    assert "\n" not in problem
    assert len(problem) < 200
    assert not [token for token in TOKENS if token[:16] in problem]
    return problem


def changed(path: tuple[str, ...], value: Any) -> bytes:
    fields = json.loads(DATA)
    at = fields
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = value
    return json.dumps(fields).encode()


def test_a_kit_comes_back_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "bern.kit").write_bytes(DATA)
    assert read_kit(tmp_path / "bern.kit") == KIT
    assert KIT.site == "bern"


def test_there_is_no_private_key_in_it() -> None:
    assert b"PRIVATE" not in DATA
    assert not [text for text in ROSTER_KEY.private.decode().splitlines() if text.encode() in DATA and "--" not in text]


@given(st.binary(max_size=300))
def test_any_bytes_are_a_line(data: bytes) -> None:
    line(data)


@given(JSON)
def test_any_json_is_a_line(value: Any) -> None:
    line(json.dumps(value).encode())


FIELDS = [
    ("hansa_kit",),
    ("consortium",),
    ("server",),
    ("ca",),
    ("roster_key",),
    ("invited",),
    ("invited", "signature"),
    ("invited", "invitation"),
    ("invited", "invitation", "site"),
    ("invited", "invitation", "nonce"),
    ("invited", "invitation", "expires"),
    ("something else",),
]


@given(st.sampled_from(FIELDS), JSON)
def test_any_other_value_of_a_field_is_a_line(field: tuple[str, ...], value: Any) -> None:
    data = changed(field, value)
    try:
        kit = parse_kit(data, "bern.kit")
    except UserError:
        line(data)
    else:
        assert kit == KIT


@given(st.integers(0, len(DATA) - 1), st.integers(0, 7))
def test_a_flipped_bit_changes_nothing_that_counts(at: int, bit: int) -> None:
    data = bytearray(DATA)
    data[at] ^= 1 << bit
    try:
        kit = parse_kit(bytes(data), "bern.kit")
    except UserError:
        line(bytes(data))
    else:
        assert kit == KIT


@given(st.integers(0, len(DATA) - 2))
def test_a_kit_that_is_cut_short_is_a_line(length: int) -> None:
    line(DATA[:length])


def test_what_the_kit_says_of_another_one_is_told() -> None:
    other = make_signing_key()
    assert "the kit's roster_key has not signed what it says" in line(changed(("roster_key",), other.public))
    assert "the kit's roster_key has not signed what it says" in line(changed(("server",), "evil.example.org:443"))
    assert "no certificate of an authority" in line(
        changed(("ca",), make_site(AUTHORITY, "bern", NOW).certificate.decode())
    )
    assert "too large" in line(DATA + b" " * LARGEST)
    assert "(server)" in line(changed(("server",), "nowhere"))


def test_a_path_without_a_kit_is_a_line(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(UserError, match="give the path of the kit"):
            read_kit(path)
