"""Messages: one encoding each, and no bytes that do more than be refused."""

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privacy.secagg.coding import Malformed
from privacy.secagg.keys import SEALED
from privacy.secagg.messages import Advert, Consent, Delivery, Header, Message, Opening, Shares, Survivors
from privacy.secagg.shamir import PRIME, SIZE


def of(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


def rows(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[tuple[tuple[int, bytes], ...]]:
    return st.dictionaries(st.integers(0, 65535), values, max_size=4).map(lambda found: tuple(sorted(found.items())))


SITE, SHARE = st.integers(0, 65535), st.integers(0, PRIME - 1).map(lambda value: value.to_bytes(SIZE))
MESSAGES: dict[type[Message], st.SearchStrategy[Message]] = {
    Advert: st.builds(Advert, SITE, of(32), of(32), of(32), rows(st.just(b"")), of(64)),
    Shares: st.builds(Shares, SITE, of(32), rows(of(SEALED))),
    Delivery: st.builds(Delivery, SITE, of(32), rows(of(SEALED))),
    Header: st.builds(Header, SITE, of(32)),
    Survivors: st.builds(Survivors, of(32), rows(st.just(b""))),
    Consent: st.builds(Consent, SITE, of(64)),
    Opening: st.builds(Opening, SITE, of(32), rows(SHARE), rows(SHARE)),
}
KINDS = list(MESSAGES)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_a_message_is_read_as_it_was_written(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(MESSAGES[kind])
    assert kind.from_bytes(message.to_bytes()) == message


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_other_bytes_are_another_message_or_none(kind: type[Message], data: st.DataObject) -> None:
    """Cut, lengthened, or with some bytes changed: what is still read is written in the same bytes again."""
    found = bytearray(data.draw(MESSAGES[kind]).to_bytes())
    for at, change in data.draw(st.lists(st.tuples(st.integers(0, len(found) - 1), st.integers(1, 255)), max_size=3)):
        found[at] ^= change
    changed = bytes(found[: data.draw(st.integers(0, len(found)))]) + data.draw(st.binary(max_size=3))
    try:
        message = kind.from_bytes(changed)
    except Malformed:
        return
    assert message.to_bytes() == changed


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(data=st.data())
def test_a_message_of_one_kind_is_none_of_another(kind: type[Message], data: st.DataObject) -> None:
    encoded = data.draw(MESSAGES[kind]).to_bytes()
    for other in KINDS:
        if other is not kind:
            with pytest.raises(Malformed, match="not a message of kind"):
                other.from_bytes(encoded)


@pytest.mark.parametrize("sites", [(1, 1), (2, 1)], ids=["twice", "out of order"])
def test_lists_have_each_site_once_and_in_order(sites: tuple[int, int]) -> None:
    with pytest.raises(Malformed, match="not in order, each once"):
        Survivors.from_bytes(Survivors(bytes(32), tuple((site, b"") for site in sites)).to_bytes())


def test_a_share_has_one_encoding() -> None:
    """The prime itself stands for 0, which has an encoding already."""
    with pytest.raises(Malformed, match="no element of the field"):
        Opening.from_bytes(Opening(0, bytes(32), ((0, PRIME.to_bytes(SIZE)),), ()).to_bytes())


def test_a_length_that_is_not_there_costs_no_memory() -> None:
    """1024 sealed shares would be 84 kB; the message has none of them."""
    data = Shares(0, bytes(32), ()).to_bytes()[:-2] + b"\x04\x00"
    tracemalloc.start()
    with pytest.raises(Malformed, match="ends too early"):
        Shares.from_bytes(data)
    assert tracemalloc.get_traced_memory()[1] < 20_000
    tracemalloc.stop()


def test_nothing_of_a_message_is_shown() -> None:
    assert repr(Opening(0, bytes(32), ((0, bytes(SIZE)),), ())) == "Opening()"
